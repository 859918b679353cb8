"""`fig-nanogpt`, `fig-variants`, their tables, `table-snr`, `fig-vit`: runs at the usual rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..models.gpt import SIZES
from ..render import percent
from ..render.figures import GREY, draw, draw_curves
from ..results import Curve
from ..run.progress import Result
from .experiment import Shown, shown
from .measures import (
    Finding,
    Measured,
    at,
    at_one_speed,
    below,
    curve_of,
    final,
    gap,
    judged,
    lowest,
    milliseconds,
    order,
    select,
    share_to,
    throughout,
)
from .paper import (
    DEVA,
    FACTORED,
    IMAGE_LOOKS,
    IMAGE_NAMES,
    IMAGENET,
    INSTANTANEOUS,
    LOOKS,
    METHODS,
    MUON,
    NAMES,
    OTHERS,
    PRINTED,
    SOAP,
    UNSIGNED,
    VARIANTS,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = dict[str, list[Result]]  # label → its runs
TITLE: Final[dict[str, Any]] = {"fontsize": 9, "loc": "left", "color": GREY}  # of a panel
PANELS: Final = {"loss": "validation loss", "train_loss": "training loss"}


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


# NanoGPT: losses along the way; losses at the end, and times --------------------------------------

ALIKE: Final = 0.005  # relative: half of DeVA's gain over Muon in the paper, which has 0.000


def show_nanogpt_figure(results: Sequence[Result], folder: Path) -> Shown:
    """Both losses along the way, and the tokens to Muon's final loss."""
    runs = _groups(results, (*METHODS, UNSIGNED, *OTHERS))
    ends = {label: final(own) for label, own in runs.items()}
    shares = {label: share_to(ends[MUON].mean, curve_of(own)) for label, own in runs.items()}
    needed = {
        label: "does not reach it" if share is None else percent(share, 1)
        for label, share in shares.items()
    }

    def fewer(one: str, other: str) -> Finding:
        """One needs fewer tokens than the other where it ends below it."""
        how = f"{NAMES[one]} {needed[one]}, {NAMES[other]} {needed[other]}"
        return below(ends[one], ends[other], how=how)

    found = {
        "soap_muon": fewer(SOAP, MUON),
        "deva_muon": fewer(DEVA, MUON),
        "deva_soap": fewer(DEVA, SOAP),
        "lowest": _lowest_throughout(runs),
    }
    figures = _draw(folder, "fig-nanogpt", runs, ("loss", "train_loss"), fitted=METHODS)
    return shown("fig-nanogpt", found, figures, results=results, needed=needed, ends=ends)


def _lowest_throughout(runs: Groups) -> Finding:
    """At every evaluation DeVA-S∞ has the lowest training loss of the three."""
    parts = []
    for index in range(1, min(len(run["curve"]["train_loss"]) for run in runs[DEVA])):
        ours, *others = (at(runs[label], index, "train_loss") for label in (DEVA, MUON, SOAP))
        parts.append(below(ours, min(others, key=lambda other: gap(ours, other))))
    return throughout(parts, "lowest at {} of {} evaluations")


def show_nanogpt_table(results: Sequence[Result], folder: Path) -> Shown:
    """Final losses and times, each against Muon's."""
    runs = _groups(at_one_speed(results), (*METHODS, UNSIGNED, *OTHERS))
    losses = {NAMES[label]: final(own) for label, own in runs.items()}
    times, optimizer_times = (
        {NAMES[label]: milliseconds(own, *part, per_units=1000) for label, own in runs.items()}
        for part in ((), ("optimizer",))
    )
    muon, soap, deva = (losses[NAMES[label]] for label in METHODS)
    relative = abs(gap(muon, soap)) / muon.mean
    how = f"{percent(relative, 2)}: {soap.text()} against {muon.text()}"
    found = {
        "deva_muon": below(deva, muon),
        "deva_soap": below(deva, soap),
        "soap_muon": judged(relative, most=ALIKE, how=how),
        "muon_faster": below(times["Muon"], times["SOAP"], spec=".1f"),
        "soap_faster": below(times["SOAP"], times["DeVA-S∞"], spec=".1f"),
    }
    values: dict[str, Any] = {"losses": losses, "times": times, "optimizer_times": optimizer_times}
    return shown("table-nanogpt", found, results=results, alike=ALIKE, **values)


# Variants of DeVA-S∞: what the second moment is made of, and the sign trick ----------------------

PAPER: Final = PRINTED["table-variants"]
SMALL: Final = 0.02  # of the loss: what the factored variant may lose; in the paper it is 1.2 %
UNFACTORED: Final = [label for label in VARIANTS if label != FACTORED]


def show_variants_table(results: Sequence[Result], folder: Path) -> Shown:
    """The lowest validation losses beside the paper's: factored is worst but not by much."""
    runs = _groups(results, VARIANTS)
    losses = {label: lowest(own) for label, own in runs.items()}
    above = [below(losses[label], losses[FACTORED]) for label in UNFACTORED]
    loses = gap(losses[DEVA], losses[FACTORED]) / losses[DEVA].mean
    found = {
        "worst": throughout(above, "above {} of {}"),
        "little": judged(loses, most=SMALL, how=percent(loses, 1, signed=True)),
        "sign": below(losses[UNSIGNED], losses[DEVA]),
        "instantaneous": below(losses[INSTANTANEOUS], losses[DEVA]),
    }
    here = dict(zip(PAPER, losses.values(), strict=True))
    return shown("table-variants", found, results=results, runs=runs, losses=here, small=SMALL)


def show_variants_figure(results: Sequence[Result], folder: Path) -> Shown:
    """Both losses along the way, and whether the factored variant is behind in both."""
    runs = _groups(results, VARIANTS)
    found = {column: _behind(runs, column) for column in PANELS}
    figures = _draw(folder, "fig-variants", runs, ("train_loss", "loss"))
    return shown("fig-variants", found, figures, results=results, runs=runs)


def _behind(runs: Groups, column: str) -> Finding:
    """The factored variant ends above the others, which end close together."""
    ends = {label: final(own, column) for label, own in runs.items()}
    least, *_, highest = sorted((ends[label] for label in UNFACTORED), key=lambda one: one.mean)
    how = f"{ends[FACTORED].text()} against {least.mean:.3f} to {highest.mean:.3f}"
    return below(highest, ends[FACTORED], how=how)


# ‖Γ‖_F of early and late layers along the training, by `optimizer.telemetry()` -------------------

PARTS: Final = {"mlp.c_proj": "mlp.down.weight", "attn.c_proj": "attention.out.weight"}
EARLY: Final = 2  # times of five: in the first so many the paper has every peak
BAND: Final = 0.15  # of the smallest: what the paper's later norms vary by at most is 14.5 %
ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


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
    norms = {
        # A matrix that has had no gradient yet rests, and has no row: its Γ is zero.
        name: [record["matrices"].get(ours, {}).get("gamma_norm", 0.0) for record in records]
        for name, (ours, _) in layers(size).items()
    }
    places = {name: row.index(max(row)) for name, row in norms.items()}
    bands = {name: max(row[EARLY:]) / min(row[EARLY:]) - 1 for name, row in norms.items()}
    found = {
        "early": throughout(
            [judged(place, most=EARLY - 1) for place in places.values()],
            ", ".join(f"{name} at the {ORDINALS[place]}" for name, place in places.items()),
        ),
        "narrow": throughout(
            [judged(band, most=BAND) for band in bands.values()],
            ", ".join(f"{name} {percent(band, 1)}" for name, band in bands.items()),
        ),
    }
    paper = dict(PRINTED["table-snr"])
    times = [record["step"] * result["units"] for record in records]
    tables = [
        ("paper", paper.pop("tokens"), paper, layers("paper")),
        ("here", times, norms, layers(size)),
    ]
    return shown("table-snr", found, results=results, tables=tables, early=EARLY, band=BAND)


# A vision transformer on ImageNet -----------------------------------------------------------------

SMOOTH: Final = 0.5  # weight of the past in the average along a curve of means
NOISE: Final = 0.01  # what rounding alone moves a run by; see docs/evidence.md
FIRST: Final = "devasinf"


def show_vit(results: Sequence[Result], folder: Path) -> Shown:
    """The smoothed training losses, and whether DeVA-S∞ is the first."""
    steps = results[0]["settings"]["steps"]
    runs = {method: select(results, optimizer=label) for method, label in IMAGENET.items()}
    curves = {method: smoothed(curve_of(own, "train_loss")) for method, own in runs.items()}
    halfway, ends = (
        {method: _loss_at(curve, step) for method, curve in curves.items()}
        for step in (steps / 2, steps)
    )
    found = {
        other: throughout([below(by[FIRST], by[other], spread=NOISE) for by in (halfway, ends)])
        for other in curves
        if other != FIRST
    }

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        lines = {IMAGE_LOOKS[method]: curve for method, curve in curves.items()}
        draw_curves(axes, lines, x="images", y="training loss, smoothed")
        legend_below(figure, axes, columns=len(lines))

    return shown(
        "fig-vit",
        found,
        draw(folder, "fig-vit", (6.4, 4.0), fill),
        results=results,
        runs=runs,
        noise=NOISE,
        halfway=halfway,
        ends=ends,
        shares={method: share_to(end.mean, curves[FIRST]) for method, end in ends.items()},
        order=order({IMAGE_NAMES[method]: end for method, end in ends.items()}, NOISE),
    )


def smoothed(curve: Curve) -> Curve:
    """The curve as a moving average whose first weights are made up for.

    >>> smoothed(Curve([1, 2], [1, 2], [1, 2], [4.0, 1.0], [4.0, 1.0], [4.0, 1.0])).loss
    [4.0, 2.0]
    """

    def average(values: Sequence[float]) -> list[float]:
        past, found = 0.0, []
        for index, value in enumerate(values, start=1):
            past = SMOOTH * past + (1 - SMOOTH) * value
            found.append(past / (1 - SMOOTH**index))
        return found

    return replace(
        curve, loss=average(curve.loss), low=average(curve.low), high=average(curve.high)
    )


def _loss_at(curve: Curve, step: float) -> Measured:
    """The loss at the first point from a step on; infinite if the run did not get there."""
    pairs = zip(curve.step, curve.loss, strict=True)
    return Measured({0: next((loss for place, loss in pairs if place >= step), math.inf)})
