"""`fig-vit`: the training loss of a vision transformer at a fixed rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..curves import Curve, reach
from ..figures import draw
from ..progress import Result
from ..wording import loss, percent
from .claims import Finding, findings_table, sentence, throughout
from .experiment import Shown, markdown_table
from .image_runs import IMAGENET, NAMES, look
from .measures import Measured, below, curve_of, final, order, select
from .panels import curves_panel, legend_below
from .printed import PRINTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTH: Final = (
    0.5  # weight of the past in the average along a curve, whose points are means already
)
NOISE: Final = 0.01  # what rounding alone moves a run by; see docs/evidence.md
FIRST: Final = "devasinf"


def show(results: Sequence[Result], folder: Path) -> Shown:
    """The smoothed training losses, and whether DeVA-S∞ is the first."""
    curves = {
        method: smoothed(curve_of(select(results, optimizer=label), "train_loss"))
        for method, label in IMAGENET.items()
    }
    steps = results[0]["settings"]["steps"]
    found = findings(curves, steps)
    ends = {NAMES[method]: at(curve, steps) for method, curve in curves.items()}
    orders = [(PRINTED["fig-vit"]["order"], order(ends, NOISE))]
    text = [
        _about(results),
        _table(results, curves, steps),
        markdown_table(("order by training loss: the paper", "here"), orders),
        findings_table(found),
    ]
    figures = draw(folder, "fig-vit", (6.4, 4.0), lambda figure: _fill(figure, curves))
    caption = "Training loss, smoothed, at a fixed learning rate of 0.001"
    return Shown("\n\n".join(text), sentence(found), figures, caption)


def smoothed(curve: Curve) -> Curve:
    """The curve as a moving average whose first weights are made up for.

    >>> smoothed(Curve([1, 2], [1, 2], [1, 2], [4.0, 1.0], [4.0, 1.0], [4.0, 1.0])).loss
    [4.0, 2.0]
    """
    columns = {name: _average(getattr(curve, name)) for name in ("loss", "low", "high")}
    return replace(curve, **columns)


def _average(values: Sequence[float]) -> list[float]:
    average, found = 0.0, []
    for index, value in enumerate(values, start=1):
        average = SMOOTH * average + (1 - SMOOTH) * value
        found.append(average / (1 - SMOOTH**index))
    return found


def at(curve: Curve, step: float) -> Measured:
    """The loss at the first point from a step on; infinite if the run did not get there."""
    pairs = zip(curve.step, curve.loss, strict=True)
    return Measured({0: next((loss for place, loss in pairs if place >= step), math.inf)})


def findings(curves: Mapping[str, Curve], steps: int) -> list[Finding]:
    """The paper's claim about the figure, once for each of the other methods."""
    return [_faster(curves, other, steps) for other in curves if other != FIRST]


def _faster(curves: Mapping[str, Curve], other: str, steps: int) -> Finding:
    parts = [
        below("", "", at(curves[FIRST], step), at(curves[other], step), spread=NOISE)
        for step in (steps / 2, steps)
    ]
    claim = f"{NAMES[FIRST]} converges faster than {NAMES[other]}"
    return throughout(claim, "smoothed training loss halfway and at the end", parts)


def _about(results: Sequence[Result]) -> str:
    run = results[0]
    settings = run["settings"]
    return (
        f"Here: a vision transformer (`{settings['size']}`) with {run['parameters']:,} parameters, "
        f"{settings['steps'] * run['units']:,} images of {settings['data']} in batches of "
        f"{run['units']}. In the paper: ViT-L/16 with 304,326,632 parameters, five epochs of "
        f"ImageNet-1K, {5 * 1_281_167:,} images, in batches of 512. One seed: differences up to "
        f"{NOISE} are not told apart."
    )


def _table(results: Sequence[Result], curves: Mapping[str, Curve], steps: int) -> str:
    rows = []
    for method, curve in curves.items():
        runs = select(results, optimizer=IMAGENET[method])
        accuracy = final(runs, "accuracy").mean
        cells = (
            loss(at(curve, steps / 2).mean, ".3f"),
            loss(at(curve, steps).mean, ".3f"),
            percent(_share(curves[FIRST], at(curve, steps).mean)),
            loss(final(runs).mean, ".3f"),
            f"{100 * accuracy:.1f} %" if math.isfinite(accuracy) else "–",
        )
        rows.append((NAMES[method], *cells))
    head = ("", "training loss, halfway", "at the end", f"{NAMES[FIRST]} is there after",
            "validation loss", "accuracy")  # fmt: skip
    return markdown_table(head, rows)


def _share(curve: Curve, target: float) -> float | None:
    """The share of the way after which a curve has reached a loss."""
    place = reach(curve.units, curve.loss, target) if math.isfinite(target) else None
    return None if place is None else place / curve.units[-1]


def _fill(figure: Figure, curves: Mapping[str, Curve]) -> None:
    axes = figure.add_subplot()
    lines = {look(method): curve for method, curve in curves.items()}
    curves_panel(axes, lines, title="", x="images", y="training loss, smoothed")
    legend_below(figure, axes, columns=len(lines))
