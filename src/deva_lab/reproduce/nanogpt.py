"""`fig-nanogpt` and `table-nanogpt`: losses along the way and at the end, and time against Muon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..figures import draw
from ..progress import Result
from ..wording import NONE, percent
from .claims import Finding, compared, findings_table, judged, sentence, throughout
from .experiment import Shown, markdown_table
from .language_methods import DEVA, KEYS, LOOKS, METHODS, MUON, NAMES, OTHERS, SOAP, UNSIGNED
from .language_runs import about
from .measures import (
    Measured,
    at,
    at_one_speed,
    below,
    curve_of,
    final,
    gap,
    milliseconds,
    noise,
    order,
    select,
    share_to,
    speeds,
)
from .panels import curves_panel, legend_below
from .printed import PRINTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Groups = dict[str, list[Result]]
FEWER: Final = PRINTED["fig-nanogpt"]["fewer tokens than Muon to its final loss"]
LOSS: Final = PRINTED["table-nanogpt"]["loss"]
TIME: Final = PRINTED["table-nanogpt"]["ms / 1k tokens"]
ALIKE: Final = 0.005  # relative: half of DeVA's gain over Muon in the paper, which has 0.000


def groups(results: Sequence[Result]) -> Groups:
    """Label → its runs, the paper's methods first."""
    found = {label: select(results, optimizer=label) for label in (*METHODS, UNSIGNED, *OTHERS)}
    return {label: runs for label, runs in found.items() if runs}


# The figure ---------------------------------------------------------------------------------------


def show_figure(results: Sequence[Result], folder: Path) -> Shown:
    """Both losses along the way, and the tokens to Muon's final loss."""
    runs = groups(results)
    findings = [
        _fewer(
            runs,
            SOAP,
            MUON,
            f"SOAP reaches Muon's final loss with {percent(FEWER['soap'], 1)} fewer tokens",
        ),
        _fewer(runs, DEVA, MUON, f"DeVA-S∞ reaches it with {percent(FEWER['deva'], 1)} fewer"),
        _fewer(runs, DEVA, SOAP, "DeVA-S∞ needs fewer tokens than SOAP"),
        _training(runs),
    ]
    text = [about(results), findings_table(findings), _tokens(runs)]
    figures = draw(folder, "fig-nanogpt", (8.4, 4.0), lambda figure: _fill(figure, runs))
    caption = (
        "Validation and training loss in nats a token, mean over the seeds, the band from the "
        "lowest to the highest; dotted lines have one seed and may leave the picture. The training "
        "loss is the mean since the evaluation before."
    )
    return Shown("\n\n".join(text), sentence(findings), figures, caption)


def _fewer(runs: Groups, one: str, other: str, claim: str) -> Finding:
    """One needs fewer tokens than the other where it ends below it."""
    a, b = final(runs[one]), final(runs[other])
    target = final(runs[MUON]).mean
    needed = [_needed(share_to(target, runs[label])) for label in (one, other)]
    how = f"{NAMES[one]} {needed[0]}, {NAMES[other]} {needed[1]}"
    computed = "tokens to Muon's final loss, in per cent of all; by the loss at the end"
    return compared(claim, computed, gap(a, b), noise=noise(a, b), how=how)


def _needed(share: float | None) -> str:
    return "does not reach it" if share is None else percent(share, 1)


def _training(runs: Groups) -> Finding:
    """At every evaluation DeVA-S∞ has the lowest training loss of the three."""
    evaluations = range(1, min(len(run["curve"]["train_loss"]) for run in runs[DEVA]))
    parts = []
    for index in evaluations:
        ours, *others = (at(runs[label], index, "train_loss") for label in (DEVA, MUON, SOAP))
        nearest = min(others, key=lambda other: gap(ours, other))
        parts.append(below("", "", ours, nearest))
    lowest = sum(part.verdict == "holds" for part in parts)
    return throughout(
        "DeVA-S∞ has the lowest training loss throughout",
        "the training loss at every evaluation, against the lower of the others",
        parts,
        f"lowest at {lowest} of {len(parts)} evaluations",
    )


def _asked(label: str) -> str:
    return percent(1 - FEWER.get(KEYS[label], 0.0), 1)


def _tokens(runs: Groups) -> str:
    target = final(runs[MUON]).mean
    rows = []
    for label, own in runs.items():
        printed = _asked(label) if label in METHODS else NONE
        rows.append((NAMES[label], printed, _needed(share_to(target, own)), final(own).text()))
    head = ("", "paper: tokens to Muon's final loss", "here", "final validation loss")
    return markdown_table(head, rows)


def _fill(figure: Figure, runs: Groups) -> None:
    left, right = figure.subplots(1, 2)
    for axes, column, title in (
        (left, "loss", "validation loss"),
        (right, "train_loss", "training loss"),
    ):
        curves = {LOOKS[label]: curve_of(own, column) for label, own in runs.items()}
        fitted = [curves[LOOKS[label]] for label in METHODS]
        curves_panel(axes, curves, title=title, x="tokens", y="nats a token", fitted=fitted)
    legend_below(figure, left)


# The table ----------------------------------------------------------------------------------------


def show_table(results: Sequence[Result], folder: Path) -> Shown:
    """Final losses and times, each against Muon's."""
    runs = groups(at_one_speed(results))
    losses = {label: final(own) for label, own in runs.items()}
    times = {label: milliseconds(own, per_units=1000) for label, own in runs.items()}
    findings = _loss_findings(losses) + _time_findings(times)
    text = [about(results), _table(runs, losses, times), _orders(losses, times)]
    text += [findings_table(findings), f"{TIMES_ARE} {speeds(results)}"]
    return Shown("\n\n".join(text), sentence(findings))


TIMES_ARE: Final = (
    "Times are means over all steps, of runs that may have gone side by side; the paper's are of "
    "a GPU. How much of a step is the optimizer's depends on the batch: see fig-batch. In the "
    "paper SOAP at this rate ends at 3.304 in this table and at 3.281 in that of the learning "
    "rates, DeVA-S∞ at 3.271 in both."
)


def _loss_findings(losses: dict[str, Measured]) -> list[Finding]:
    computed = "final validation loss, mean ± deviation over seeds"
    relative = abs(gap(losses[MUON], losses[SOAP])) / losses[MUON].mean
    return [
        below("DeVA-S∞ ends below Muon", computed, losses[DEVA], losses[MUON]),
        below("DeVA-S∞ ends below SOAP", computed, losses[DEVA], losses[SOAP]),
        judged(
            "SOAP ends like Muon (−0.0 %)",
            f"relative difference, at most {percent(ALIKE, 1)}",
            relative,
            most=ALIKE,
            how=f"{percent(relative, 2)}: {losses[SOAP].text()} against {losses[MUON].text()}",
        ),
    ]


def _time_findings(times: dict[str, Measured]) -> list[Finding]:
    computed = "ms for 1,000 tokens"
    return [
        below("Muon is faster than SOAP", computed, times[MUON], times[SOAP], spec=".1f"),
        below("SOAP is faster than DeVA-S∞", computed, times[SOAP], times[DEVA], spec=".1f"),
    ]


def _table(runs: Groups, losses: dict[str, Measured], times: dict[str, Measured]) -> str:
    rows = []
    for label, own in runs.items():
        key = KEYS.get(label)
        optimizer = milliseconds(own, "optimizer", per_units=1000)
        rows.append(
            (
                NAMES[label],
                _printed(LOSS, key, ".3f", 1),
                losses[label].text() + _against(losses[label].mean, losses[MUON].mean, 1),
                _printed(TIME, key, ".2f", 0),
                times[label].text(".1f") + _against(times[label].mean, times[MUON].mean, 0),
                optimizer.text(".1f"),
            )
        )
    head = ("", "paper: loss", "here: loss", "paper: ms / 1k tokens", "here: ms / 1k tokens")
    return markdown_table((*head, "of which the optimizer"), rows)


def _printed(values: dict[str, float], key: str | None, spec: str, digits: int) -> str:
    if key is None:
        return NONE
    return format(values[key], spec) + _against(values[key], values["muon"], digits)


def _against(value: float, muon: float, digits: int) -> str:
    return "" if value == muon else f" ({percent(value / muon - 1, digits, signed=True)})"


def _orders(losses: dict[str, Measured], times: dict[str, Measured]) -> str:
    def printed(values: dict[str, float]) -> str:
        return order({NAMES[label]: Measured({0: values[KEYS[label]]}) for label in METHODS})

    def here(values: dict[str, Measured]) -> str:
        return order({NAMES[label]: values[label] for label in METHODS})

    return (
        f"Order by loss: in the paper {printed(LOSS)}; here {here(losses)}. "
        f"By time: in the paper {printed(TIME)}; here {here(times)}."
    )
