"""`fig-lr` and `table-lr`: the final loss of Muon, SOAP and DeVA-S∞ over the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..figures import draw
from ..progress import Result
from ..wording import rate
from .claims import Finding, findings_table, sentence, throughout
from .experiment import Shown, markdown_table
from .language_methods import DEVA, KEYS, LOOKS, METHODS, MUON, NAMES, SOAP
from .language_runs import about
from .measures import Measured, below, final, order, select
from .panels import legend_below, points_panel
from .printed import PRINTED
from .sweeps import usual_noise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Losses = dict[float, Measured]  # by learning rate, ascending
TABLE: Final = PRINTED["table-lr"]
PAPER: Final[dict[str, Losses]] = {
    label: {lr: Measured({0: loss}) for lr, loss in zip(TABLE["lr"], TABLE[key], strict=True)}
    for label, key in KEYS.items()
}
PAPER_RATE: Final = 1e-3  # the one that the paper uses elsewhere, for all methods


def losses_of(results: Sequence[Result]) -> dict[str, Losses]:
    """Label → learning rate → final loss."""
    rates = sorted({result["settings"]["lr"] for result in results})
    return {
        label: {lr: final(select(results, optimizer=label, lr=lr)) for lr in rates}
        for label in METHODS
    }


def best(losses: Losses) -> float:
    """The rate with the lowest loss."""
    return min(losses, key=lambda lr: losses[lr].mean)


def show_figure(results: Sequence[Result], folder: Path) -> Shown:
    """The losses over the rate, and whether the grid holds a best rate for each."""
    losses, lr = losses_of(results), results[0]["settings"]["lr"]
    findings = [_inside(losses), _common(losses, lr, MUON), _common(losses, lr, SOAP)]
    figures = draw(folder, "fig-lr", (8.4, 3.8), lambda figure: _fill(figure, losses))
    caption = (
        "Validation loss at the end, in nats a token, over the learning rate. Left the paper's "
        "numbers, right ours; bars are deviations over seeds, a cross is a run that diverged. The "
        "grid has the paper's spacing around our usual rate."
    )
    text = [about(results), findings_table(findings), _best_rates(losses)]
    return Shown("\n\n".join(text), sentence(findings), figures, caption)


def show_table(results: Sequence[Result], folder: Path) -> Shown:
    """The same in numbers, each method at its best."""
    losses, lr = losses_of(results), results[0]["settings"]["lr"]
    findings = [
        _best(losses, MUON),
        _best(losses, SOAP),
        _common(losses, lr, MUON),
        _common(losses, lr, SOAP),
    ]
    text = [about(results), _table("paper", PAPER), _table("here", losses), _orders(losses)]
    text += [_best_rates(losses), findings_table(findings)]
    return Shown("\n\n".join(text), sentence(findings))


def _inside(losses: Mapping[str, Losses]) -> Finding:
    """Both ends of the grid are worse than the best rate, for all methods."""
    parts = [
        below("", "", own[best(own)], own[end], spread=usual_noise(losses))
        for own in losses.values()
        for end in (min(own), max(own))
    ]
    inner = [NAMES[label] for label, own in losses.items() if _is_inner(own)]
    return throughout(
        "every method has its best rate inside the grid",
        "the loss at the best rate against that at either end",
        parts,
        f"inside for {', '.join(inner) or 'none'}",
    )


def _is_inner(losses: Losses) -> bool:
    return min(losses) < best(losses) < max(losses)


def _common(losses: Mapping[str, Losses], lr: float, other: str) -> Finding:
    claim = f"at the common rate DeVA-S∞ ends below {NAMES[other]}"
    computed = f"final loss at rate {rate(lr)} (paper: {rate(PAPER_RATE)})"
    return below(claim, computed, losses[DEVA][lr], losses[other][lr])


def _best(losses: Mapping[str, Losses], other: str) -> Finding:
    ours, theirs = losses[DEVA], losses[other]
    claim = f"each at its best rate, DeVA-S∞ ends below {NAMES[other]}"
    computed = f"final loss at rates {rate(best(ours))} and {rate(best(theirs))}"
    return below(
        claim, computed, ours[best(ours)], theirs[best(theirs)], spread=usual_noise(losses)
    )


def _table(where: str, losses: Mapping[str, Losses]) -> str:
    rates = list(losses[DEVA])
    rows = []
    for label, own in losses.items():
        cells = [own[lr].text(".4f" if where == "paper" else ".3f") for lr in rates]
        marked = [f"**{c}**" if lr == best(own) else c for lr, c in zip(rates, cells, strict=True)]
        rows.append((NAMES[label], *marked))
    return markdown_table((f"{where}: rate", *map(rate, rates)), rows)


def _orders(losses: Mapping[str, Losses]) -> str:
    def at_best(table: Mapping[str, Losses]) -> dict[str, Measured]:
        return {NAMES[label]: own[best(own)] for label, own in table.items()}

    here = order(at_best(losses), spread=usual_noise(losses))
    return f"Order, each at its best rate: in the paper {order(at_best(PAPER))}; here {here}."


def _best_rates(losses: Mapping[str, Losses]) -> str:
    texts = [
        f"{NAMES[label]} {rate(best(PAPER[label]))} and {rate(best(own))}"
        for label, own in losses.items()
    ]
    return f"Best rates, in the paper and here: {', '.join(texts)}."


def _fill(figure: Figure, losses: Mapping[str, Losses]) -> None:
    left, right = figure.subplots(1, 2)
    for axes, title, table in ((left, "paper", PAPER), (right, "here", losses)):
        lines = {LOOKS[label]: list(own.items()) for label, own in table.items()}
        points_panel(axes, lines, title=title, x="learning rate", y="final validation loss")
    legend_below(figure, left)
