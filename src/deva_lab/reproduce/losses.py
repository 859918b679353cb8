"""`fig-nanogpt`, `fig-variants`, their tables and `table-snr`: runs on text at the usual rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..models.gpt import SIZES
from ..render import NONE, count, markdown_table, percent
from ..render.figures import GREY, Style, draw, draw_curves, line_style
from ..run.progress import Result
from .experiment import Shown, shown
from .measures import (
    Finding,
    Measured,
    Place,
    at,
    at_one_speed,
    below,
    compared,
    curve_of,
    final,
    gap,
    judged,
    lowest,
    milliseconds,
    noise,
    order,
    select,
    share_to,
    speeds,
    throughout,
)
from .paper import (
    DEVA,
    FACTORED,
    INSTANTANEOUS,
    LOOKS,
    METHODS,
    MUON,
    NAMES,
    OTHERS,
    PAPER_STEPS,
    PRINTED,
    SOAP,
    UNSIGNED,
    VARIANTS,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = dict[str, list[Result]]  # label → its runs
Numbers = dict[str, Measured]
TITLE: Final[dict[str, Any]] = {"fontsize": 9, "loc": "left", "color": GREY}  # of a panel
PANELS: Final = {"loss": "validation loss", "train_loss": "training loss"}
COUNTS: Final = (
    "Runs of one seed share the first weights and the batches. A difference counts if it is larger "
    "than its standard deviation over the seeds; between single runs, than that of the methods "
    "where they have several seeds."
)
ONE_SEED: Final = "One seed, so the spread is not known and every difference counts."


def scale_of(results: Sequence[Result]) -> str:
    """How far runs on text are from the paper's: why they may come out otherwise."""
    run = results[0]
    steps = run["settings"]["steps"]
    return (
        f"Scale: a GPT of {count(run['parameters'])} parameters sees {count(steps * run['units'])} "
        f"tokens in {steps:,} steps here, in the paper one of 276M sees 1.4G in {PAPER_STEPS:,}."
    )


def about(results: Sequence[Result]) -> str:
    """The setting of runs on text in a sentence, beside the paper's."""
    run = results[0]
    settings = run["settings"]
    text = settings["data"]
    if text == "python":
        text += " (the source of Python's standard library, not FineWeb)"
    products = " with bfloat16 products" * (settings["dtype"] == "bfloat16")
    return (
        f"Here: the GPT `{settings['size']}`, {run['parameters']:,} parameters, "
        f"{count(settings['steps'] * run['units'])} tokens of {text}, {run['units']:,} a step, "
        f"float32{products}. In the paper: 275.6 M parameters, 1.4 G tokens of FineWeb, 49,152 a "
        f"step. {COUNTS if len({r['settings']['seed'] for r in results}) > 1 else ONE_SEED}"
    )


def orders(by: str, printed: Mapping[str, float], here: Numbers, names: Mapping[str, str]) -> str:
    """The paper's order of some labels and ours in a sentence."""
    theirs = order({names[label]: Measured({0: value}) for label, value in printed.items()})
    ours = order({names[label]: here[label] for label in printed})
    return f"{by}: in the paper {theirs}; here {ours}."


def points_panel(
    axes: Axes, lines: Mapping[Style, Mapping[Place, Measured]], *, title: str, x: str, y: str
) -> None:
    """Draw numbers over a setting, a bar where there are seeds and a cross where a run diverged.

    Args:
        axes: Where.
        lines: Look → place on the x axis → what was measured there.
        title: Above the panel.
        x: What the setting is; its axis is logarithmic, its ticks are the settings that were run.
        y: What was measured.
    """
    axes.set_xscale("log")
    axes.minorticks_off()
    for look, points in lines.items():
        known = {place: one for place, one in points.items() if math.isfinite(one.mean)}
        spreads = [math.nan if one.spread is None else one.spread for one in known.values()]
        axes.errorbar(
            list(known),
            [one.mean for one in known.values()],
            yerr=None if all(map(math.isnan, spreads)) else spreads,
            label=look.name,
            marker="o",
            markersize=4,
            capsize=3,
            elinewidth=0.9,
            **line_style(look),
        )
        lost = [place for place in points if place not in known]
        cross: dict[str, Any] = {"color": look.light, "marker": "x", "markersize": 5}
        top = axes.get_xaxis_transform()
        axes.plot(lost, [0.985] * len(lost), transform=top, linestyle="", **cross)
    places = sorted({place for points in lines.values() for place in points})
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, **TITLE)
    axes.grid(axis="y")


def legend_below(figure: Figure, axes: Axes, *, columns: int = 4) -> None:
    """Write the names of the lines of a panel below the whole figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def _groups(results: Sequence[Result], labels: Sequence[str]) -> Groups:
    """Label → its runs, those that there are."""
    found = {label: select(results, optimizer=label) for label in labels}
    return {label: runs for label, runs in found.items() if runs}


def _draw(
    folder: Path, name: str, runs: Groups, columns: Sequence[str], fitted: Sequence[str] = ()
) -> tuple[Path, Path]:
    """A panel a column, the losses along the way in it; those of `fitted` must be in view."""

    def fill(figure: Figure) -> None:
        panels = figure.subplots(1, 2)
        for axes, column in zip(panels, columns, strict=True):
            curves = {LOOKS[label]: curve_of(own, column) for label, own in runs.items()}
            seen = [curves[LOOKS[label]] for label in fitted]
            draw_curves(axes, curves, x="tokens", y="nats a token", fitted=seen)
            axes.locator_params(axis="x", nbins=5)
            axes.set_title(PANELS[column], **TITLE)
        legend_below(figure, panels[0])

    return draw(folder, name, (8.4, 4.0), fill)


# NanoGPT: losses along the way --------------------------------------------------------------------

ONE_RATE: Final = (
    "The claims are about one learning rate for all methods; table-lr has each at its best."
)
FEWER: Final = PRINTED["fig-nanogpt"]


def show_nanogpt_figure(results: Sequence[Result], folder: Path) -> Shown:
    """Both losses along the way, and the tokens to Muon's final loss."""
    runs = _groups(results, (*METHODS, UNSIGNED, *OTHERS))
    target = final(runs[MUON]).mean
    shares = {label: share_to(target, curve_of(own)) for label, own in runs.items()}
    needed = {
        label: "does not reach it" if share is None else percent(share, 1)
        for label, share in shares.items()
    }

    def fewer(one: str, other: str, claim: str) -> Finding:
        """One needs fewer tokens than the other where it ends below it."""
        a, b = final(runs[one]), final(runs[other])
        how = f"{NAMES[one]} {needed[one]}, {NAMES[other]} {needed[other]}"
        computed = "tokens to Muon's final loss, in per cent of all; by the loss at the end"
        return compared(claim, computed, gap(a, b), noise=noise(a, b), how=how)

    claim = f"SOAP reaches Muon's final loss with {percent(FEWER[SOAP], 1)} fewer tokens"
    findings = [
        fewer(SOAP, MUON, claim),
        fewer(DEVA, MUON, f"DeVA-S∞ reaches it with {percent(FEWER[DEVA], 1)} fewer"),
        fewer(DEVA, SOAP, "DeVA-S∞ needs fewer tokens than SOAP"),
        _lowest_throughout(runs),
    ]
    rows = [
        (
            NAMES[label],
            percent(1 - FEWER[label], 1) if label in FEWER else NONE,
            needed[label],
            final(own).text(),
        )
        for label, own in runs.items()
    ]
    head = ("", "paper: tokens to Muon's final loss", "here", "final validation loss")
    return shown(
        about(results),
        findings,
        markdown_table(head, rows),
        figures=_draw(folder, "fig-nanogpt", runs, ("loss", "train_loss"), fitted=METHODS),
        caption="Validation and training loss in nats a token, mean over the seeds, the band from "
        "the lowest to the highest; dotted lines have one seed and may leave the picture. The "
        "training loss is the mean since the evaluation before.",
        why=f"{scale_of(results)} {ONE_RATE}",
    )


def _lowest_throughout(runs: Groups) -> Finding:
    """At every evaluation DeVA-S∞ has the lowest training loss of the three."""
    parts = []
    for index in range(1, min(len(run["curve"]["train_loss"]) for run in runs[DEVA])):
        ours, *others = (at(runs[label], index, "train_loss") for label in (DEVA, MUON, SOAP))
        parts.append(below(ours, min(others, key=lambda other: gap(ours, other))))
    return throughout(
        "DeVA-S∞ has the lowest training loss throughout",
        "the training loss at every evaluation, against the lower of the others",
        parts,
        "lowest at {} of {} evaluations",
    )


# NanoGPT: losses at the end, and times ------------------------------------------------------------

LOSS, TIME = PRINTED["table-nanogpt"].values()
ALIKE: Final = 0.005  # relative: half of DeVA's gain over Muon in the paper, which has 0.000
TIMES_ARE: Final = (
    "Times are means over all steps, of runs that may have gone side by side; the paper's are of "
    "a GPU. How much of a step is the optimizer's depends on the batch: see fig-batch. In the "
    "paper SOAP at this rate ends at 3.304 in this table and at 3.281 in that of the learning "
    "rates, DeVA-S∞ at 3.271 in both."
)


def show_nanogpt_table(results: Sequence[Result], folder: Path) -> Shown:
    """Final losses and times, each against Muon's."""
    runs = _groups(at_one_speed(results), (*METHODS, UNSIGNED, *OTHERS))
    losses = {label: final(own) for label, own in runs.items()}
    times = {label: milliseconds(own, per_units=1000) for label, own in runs.items()}
    relative = abs(gap(losses[MUON], losses[SOAP])) / losses[MUON].mean
    ends, takes = "final validation loss, mean ± deviation over seeds", "ms for 1,000 tokens"
    findings = [
        below(losses[DEVA], losses[MUON], "DeVA-S∞ ends below Muon", ends),
        below(losses[DEVA], losses[SOAP], "DeVA-S∞ ends below SOAP", ends),
        judged(
            "SOAP ends like Muon (−0.0 %)",
            f"relative difference, at most {percent(ALIKE, 1)}",
            relative,
            most=ALIKE,
            how=f"{percent(relative, 2)}: {losses[SOAP].text()} against {losses[MUON].text()}",
        ),
        below(times[MUON], times[SOAP], "Muon is faster than SOAP", takes, spec=".1f"),
        below(times[SOAP], times[DEVA], "SOAP is faster than DeVA-S∞", takes, spec=".1f"),
    ]
    rows = [
        (
            NAMES[label],
            _printed(LOSS, label, ".3f", 1),
            losses[label].text() + _against(losses[label].mean, losses[MUON].mean, 1),
            _printed(TIME, label, ".2f", 0),
            times[label].text(".1f") + _against(times[label].mean, times[MUON].mean, 0),
            milliseconds(own, "optimizer", per_units=1000).text(".1f"),
        )
        for label, own in runs.items()
    ]
    head = ("", "paper: loss", "here: loss", "paper: ms / 1k tokens", "here: ms / 1k tokens")
    by_loss = orders("Order by loss", LOSS, losses, NAMES)
    return shown(
        about(results),
        markdown_table((*head, "of which the optimizer"), rows),
        f"{by_loss} {orders('By time', TIME, times, NAMES)}",
        findings,
        f"{TIMES_ARE} {speeds(results)}",
        why=f"{scale_of(results)} {ONE_RATE}",
    )


def _printed(values: Mapping[str, float], label: str, spec: str, digits: int) -> str:
    if label not in values:
        return NONE
    return format(values[label], spec) + _against(values[label], values[MUON], digits)


def _against(value: float, muon: float, digits: int) -> str:
    return "" if value == muon else f" ({percent(value / muon - 1, digits, signed=True)})"


# Variants of DeVA-S∞: what the second moment is made of, and the sign trick ----------------------

TITLES: Final = {
    DEVA: "DeVA-S∞ w. sign",
    UNSIGNED: "DeVA-S∞ w/o sign",
    FACTORED: "factored w. sign",
    INSTANTANEOUS: "instantaneous w. sign",
}
PAPER: Final = PRINTED["table-variants"]
SMALL: Final = 0.02  # of the loss: what the factored variant may lose; in the paper it is 1.2 %
UNFACTORED: Final = [label for label in VARIANTS if label != FACTORED]


def show_variants_table(results: Sequence[Result], folder: Path) -> Shown:
    """The lowest validation losses beside the paper's: factored is worst but not by much."""
    runs = _groups(results, VARIANTS)
    losses = {label: lowest(own) for label, own in runs.items()}
    loses = gap(losses[DEVA], losses[FACTORED]) / losses[DEVA].mean
    printed = percent(PAPER[FACTORED] / PAPER[DEVA] - 1, 1)
    computed = "lowest validation loss"
    findings = [
        throughout(
            "the factored variant is the worst of the four",
            computed,
            [below(losses[label], losses[FACTORED]) for label in UNFACTORED],
            "above {} of {}",
        ),
        judged(
            "it loses little for a second moment in n + m numbers",
            f"relative, at most {percent(SMALL)} (paper: {printed})",
            loses,
            most=SMALL,
            how=percent(loses, 1, signed=True),
        ),
        below(losses[UNSIGNED], losses[DEVA], "the sign trick makes it worse", computed),
        below(losses[INSTANTANEOUS], losses[DEVA], "the instantaneous variant gains", computed),
    ]
    rows = [
        ("paper", *(f"{PAPER[label]:.3f}" for label in VARIANTS)),
        ("here", *(losses[label].text() for label in VARIANTS)),
        ("state, MB", *(f"{runs[label][0]['state_bytes'] / 1e6:.1f}" for label in VARIANTS)),
    ]
    return shown(
        about(results),
        markdown_table(("lowest validation loss", *TITLES.values()), rows),
        orders("Order", PAPER, losses, TITLES),
        findings,
        why=_too_near(results),
    )


def show_variants_figure(results: Sequence[Result], folder: Path) -> Shown:
    """Both losses along the way, and whether the factored variant is behind in both."""
    runs = _groups(results, VARIANTS)
    return shown(
        about(results),
        [_behind(runs, "loss"), _behind(runs, "train_loss")],
        figures=_draw(folder, "fig-variants", runs, ("train_loss", "loss")),
        caption="Training and validation loss of the variants of DeVA-S∞ in nats a token, mean "
        "over the seeds, the band from the lowest to the highest.",
        why=_too_near(results),
    )


def _too_near(results: Sequence[Result]) -> str:
    """Why variants are not told apart as in the paper."""
    spreads = [final(own).spread for own in _groups(results, VARIANTS).values()]
    known = max((spread for spread in spreads if spread is not None), default=None)
    apart = max(PAPER.values()) - min(PAPER.values())
    seeds = "" if known is None else f", and seeds move a loss by up to {known:.3f} here"
    return f"{scale_of(results)} The paper's variants end {apart:.3f} apart at most{seeds}."


def _behind(runs: Groups, column: str) -> Finding:
    """The factored variant ends above the others, which end close together."""
    ends = {label: at(own, -1, column) for label, own in runs.items()}
    least, *_, highest = sorted((ends[label] for label in UNFACTORED), key=lambda one: one.mean)
    return compared(
        f"{PANELS[column]}: the factored variant ends above the other three",
        "at the end, against the highest of the others",
        gap(highest, ends[FACTORED]),
        noise=noise(highest, ends[FACTORED]),
        how=f"{ends[FACTORED].text()} against {least.mean:.3f} to {highest.mean:.3f}",
    )


# ‖Γ‖_F of early and late layers along the training, by `optimizer.telemetry()` -------------------

Norms = Mapping[str, Sequence[float]]  # layer, in the paper's words → ‖Γ‖_F at each of the times
PARTS: Final = {"mlp.c_proj": "mlp.down.weight", "attn.c_proj": "attention.out.weight"}
EARLY: Final = 2  # times of five: in the first so many the paper has every peak
BAND: Final = 0.15  # of the smallest: what the paper's later norms vary by at most is 14.5 %
ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")
IN_BRACKETS: Final = (
    "In brackets the root mean square of Γ, ‖Γ‖_F / √(n m), by which matrices of different sizes "
    "compare. Ours has the bias correction κ in it, the paper's has none."
)


def layers(size: str) -> dict[str, tuple[str, float]]:
    """The paper's name of a layer → ours, and √(n m), the norm of Γ = 1."""
    last, width = SIZES[size].layers - 1, SIZES[size].width
    sides = {"mlp.c_proj": 2 * width, "attn.c_proj": width}  # √(4w · w), √(w · w)
    return {
        f"block.{block}.{part}": (f"blocks.{block}.{ours}", float(sides[part]))
        for block in (0, last)
        for part, ours in PARTS.items()
    }


def show_snr(results: Sequence[Result], folder: Path) -> Shown:
    """Both tables, the norms over those of Γ = 1, and what the paper sees in them."""
    (result,) = results
    size, records = result["settings"]["size"], result["telemetry"]
    times = [record["step"] * result["units"] for record in records]
    norms = {
        # A matrix that has had no gradient yet rests, and has no row: its Γ is zero.
        name: [record["matrices"].get(ours, {}).get("gamma_norm", 0.0) for record in records]
        for name, (ours, _) in layers(size).items()
    }
    places = {name: row.index(max(row)) for name, row in norms.items()}
    bands = {name: max(row[EARLY:]) / min(row[EARLY:]) - 1 for name, row in norms.items()}
    findings = [
        throughout(
            "the norm peaks early in training",
            f"whether the largest of {len(records)} is among the first {EARLY}",
            [judged("", "", place, most=EARLY - 1, how="") for place in places.values()],
            ", ".join(f"{name} at the {ORDINALS[place]}" for name, place in places.items()),
        ),
        throughout(
            "and then stays within a narrow band",
            f"largest over smallest of the later ones, at most {percent(BAND)} apart",
            [judged("", "", band, most=BAND, how="") for band in bands.values()],
            ", ".join(f"{name} {percent(band, 1)}" for name, band in bands.items()),
        ),
    ]
    paper = dict(PRINTED["table-snr"])
    return shown(
        about(results),
        _norms_table("paper", paper.pop("tokens"), paper, "paper"),
        _norms_table("here", times, norms, size),
        IN_BRACKETS,
        findings,
        why="Steps: the paper looks at Γ after 5M to 500M tokens of training, and the run here "
        f"ends at {count(times[-1])}, after {result['settings']['steps']:,} steps.",
    )


def _norms_table(where: str, times: Sequence[float], norms: Norms, size: str) -> str:
    rows, sizes = [], layers(size)
    for name, row in norms.items():
        cells = [f"{norm:.1f} ({norm / sizes[name][1]:.2f})" for norm in row]
        top = row.index(max(row))
        cells[top] = f"**{cells[top]}**"
        rows.append((f"`{name}`", *cells))
    return markdown_table((f"{where}: ‖Γ‖_F", *(f"{count(t)} tokens" for t in times)), rows)
