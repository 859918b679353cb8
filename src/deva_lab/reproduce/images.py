"""`fig-cifar`: ResNet-20 over learning rates; `fig-vit`: a vision transformer at a fixed rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..progress import Result
from ..render import loss, percent
from ..render.figures import draw
from ..results.curves import Curve
from .experiment import Shown, markdown_table, shown
from .measures import (
    Finding,
    Measured,
    below,
    curve_of,
    final,
    order,
    select,
    share_to,
    throughout,
)
from .panels import curves_panel, legend_below, points_panel
from .printed import PRINTED
from .runs import IMAGE_LOOKS, IMAGE_NAMES, IMAGENET, MATRIX, VECTOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# CIFAR-10 -----------------------------------------------------------------------------------------

Errors = Mapping[str, Mapping[float, Measured]]  # method → rate → validation error, per cent
CIFAR: Final = PRINTED["fig-cifar"]
GROUPS: Final = {"vector": VECTOR, "matrix": MATRIX}
FIRST_OF: Final = {"vector": "devalinf", "matrix": "soap"}
NEAR: Final = 2.0  # a rate is near another up to this factor
VALIDATED: Final = {"digits": 364, "cifar10-small": 2_000, "cifar10": 10_000}
TWO_BEST_RATES: Final = (
    "The paper names its best rates twice, and differently: about 0.005 and 0.01 with the figure, "
    "0.05 and 0.001 in its table of hyper-parameters. The figure's are taken here."
)


def show_cifar(results: Sequence[Result], folder: Path) -> Shown:
    """Accuracies over rates, the best of each method, and what the paper says of them."""
    errors = errors_of(results)
    noise = resolution(errors, VALIDATED.get(results[0]["settings"]["data"], 10_000))
    orders = []
    for group, methods in GROUPS.items():
        best = {IMAGE_NAMES[method]: _best(errors[method]) for method in methods}
        orders.append((group, CIFAR["order"][group], order(best, noise)))
    return shown(
        _about_cifar(results, noise),
        _accuracies(errors),
        markdown_table(("order by error", "the paper", "here"), orders),
        cifar_findings(errors, noise),
        TWO_BEST_RATES,
        figures=draw(folder, "fig-cifar", (8.0, 3.6), lambda figure: _fill_cifar(figure, errors)),
        caption="Validation accuracy at the end over the learning rate; a cross is a diverged run",
        why=f"Steps: a run sees {_seen(results)} here, in the paper 2,000,000 in 15,625.",
    )


def _seen(results: Sequence[Result]) -> str:
    settings, units = results[0]["settings"], results[0]["units"]
    steps = settings["steps"]
    return f"{steps * units:,} images of {settings['data']} in {steps:,} steps"


def errors_of(results: Sequence[Result]) -> Errors:
    """The validation error at the end of every run, in per cent."""
    rates = sorted({float(result["settings"]["lr"]) for result in results})
    return {
        method: {
            lr: _error(final(select(results, optimizer=label, lr=lr), "accuracy")) for lr in rates
        }
        for group in GROUPS.values()
        for method, label in group.items()
    }


def _error(accuracy: Measured) -> Measured:
    return Measured({seed: 100 * (1 - value) for seed, value in accuracy.values.items()})


def best_rate(errors: Mapping[float, Measured]) -> float:
    """The rate with the lowest error."""
    return min(errors, key=lambda lr: errors[lr].mean)


def _best(errors: Mapping[float, Measured]) -> Measured:
    return errors[best_rate(errors)]


def resolution(errors: Errors, images: int) -> float:
    """The standard error of a difference of two errors that are counted on so many images."""
    lowest = min(error.mean for rates in errors.values() for error in rates.values()) / 100
    share = min(max(lowest, 1 / images), 0.5)
    return 100 * math.sqrt(2 * share * (1 - share) / images)


def cifar_findings(errors: Errors, noise: float) -> list[Finding]:
    """The paper's claims about the figure."""
    rates = {method: best_rate(found) for method, found in errors.items()}
    best = {method: _best(found) for method, found in errors.items()}
    found = [_first(group, best, noise) for group in GROUPS]
    for group, rate in CIFAR["best rate"].items():
        claim = f"best rates of {group} methods are near {rate:g}"
        parts = [_within(rates, method, rate / NEAR, rate * NEAR) for method in GROUPS[group]]
        found.append(throughout(claim, "best rate of the grid", parts))
    low, high = CIFAR["range"]
    claim = f"the best rate of all methods is between {low:g} and {high:g}"
    parts = [_within(rates, method, low, high) for method in rates]
    outside = [part.how for part in parts if part.verdict != "holds"]
    how = "; ".join(outside) + " lie outside" if outside else "all do"
    return [*found, throughout(claim, "best rate of the grid", parts, how)]


def _first(group: str, best: Mapping[str, Measured], noise: float) -> Finding:
    first = FIRST_OF[group]
    others = [method for method in GROUPS[group] if method != first]
    parts = [below(best[first], best[other], spread=noise) for other in others]
    claim = f"{IMAGE_NAMES[first]} is the best of the {group} methods"
    how = f"{best[first].text('.1f')} against " + ", ".join(
        f"{best[other].text('.1f')} ({IMAGE_NAMES[other]})" for other in others
    )
    return throughout(claim, "validation error in per cent, each at its best rate", parts, how)


def _within(rates: Mapping[str, float], method: str, low: float, high: float) -> Finding:
    rate = rates[method]
    inside = low * 0.999 <= rate <= high * 1.001  # rates are decimal fractions
    how = f"{IMAGE_NAMES[method]} {rate:g}"
    return Finding("", "", "holds" if inside else "does not hold", how, rate)


def _about_cifar(results: Sequence[Result], noise: float) -> str:
    run = results[0]
    settings = run["settings"]
    images = settings["steps"] * run["units"]
    return (
        f"Here: ResNet-20 with {run['parameters']:,} parameters, {images:,} images of "
        f"{settings['data']} in batches of {run['units']}, a rate that falls to zero from the "
        "first step on. In the paper: 40 epochs of CIFAR-10, 2,000,000 images, in batches of 128. "
        f"Errors that differ by less than {noise:.1f} % are not told apart by so few validation "
        "images."
    )


def _accuracies(errors: Errors) -> str:
    """The accuracies, the best of each method in bold."""
    rates = list(next(iter(errors.values())))
    rows = []
    for group, methods in GROUPS.items():
        printed = CIFAR["best rate"][group]
        for method in methods:
            found, best = errors[method], best_rate(errors[method])
            cells = [loss(100 - found[lr].mean, ".1f") for lr in rates]
            cells[rates.index(best)] = f"**{cells[rates.index(best)]}**"
            rows.append((IMAGE_NAMES[method], *cells, f"{best:g}", f"≈ {printed:g}"))
    head = ("accuracy in % at rate", *(f"{lr:g}" for lr in rates), "best rate", "the paper's")
    return markdown_table(head, rows)


def _fill_cifar(figure: Figure, errors: Errors) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (group, methods) in zip(panels, GROUPS.items(), strict=True):
        lines = {
            IMAGE_LOOKS[method]: [
                (lr, Measured({seed: 100 - value for seed, value in error.values.items()}))
                for lr, error in errors[method].items()
            ]
            for method in methods
        }
        points_panel(axes, lines, title=f"{group} methods", x="learning rate", y="")
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("validation accuracy (%)")


# ImageNet -----------------------------------------------------------------------------------------

SMOOTH: Final = 0.5  # weight of the past in the average along a curve of means
NOISE: Final = 0.01  # what rounding alone moves a run by; see docs/evidence.md
FIRST: Final = "devasinf"


def show_vit(results: Sequence[Result], folder: Path) -> Shown:
    """The smoothed training losses, and whether DeVA-S∞ is the first."""
    runs = {method: select(results, optimizer=label) for method, label in IMAGENET.items()}
    curves = {method: smoothed(curve_of(own, "train_loss")) for method, own in runs.items()}
    steps = results[0]["settings"]["steps"]
    ends = {IMAGE_NAMES[method]: at(curve, steps) for method, curve in curves.items()}
    orders = [(PRINTED["fig-vit"]["order"], order(ends, NOISE))]

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        lines = {IMAGE_LOOKS[method]: curve for method, curve in curves.items()}
        curves_panel(axes, lines, title="", x="images", y="training loss, smoothed")
        legend_below(figure, axes, columns=len(lines))

    return shown(
        _about_vit(results),
        _vit_table(runs, curves, steps),
        markdown_table(("order by training loss: the paper", "here"), orders),
        [_faster(curves, other, steps) for other in curves if other != FIRST],
        figures=draw(folder, "fig-vit", (6.4, 4.0), fill),
        caption="Training loss, smoothed, at a fixed learning rate of 0.001",
        why=f"Scale: a model of {results[0]['parameters']:,} parameters sees {_seen(results)} "
        "here, in the paper one of 304,326,632 sees 6,405,835 in 12,511.",
    )


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


def _faster(curves: Mapping[str, Curve], other: str, steps: int) -> Finding:
    parts = [
        below(at(curves[FIRST], step), at(curves[other], step), spread=NOISE)
        for step in (steps / 2, steps)
    ]
    claim = f"{IMAGE_NAMES[FIRST]} converges faster than {IMAGE_NAMES[other]}"
    return throughout(claim, "smoothed training loss halfway and at the end", parts)


def _about_vit(results: Sequence[Result]) -> str:
    run = results[0]
    settings = run["settings"]
    return (
        f"Here: a vision transformer (`{settings['size']}`) with {run['parameters']:,} parameters, "
        f"{settings['steps'] * run['units']:,} images of {settings['data']} in batches of "
        f"{run['units']}. In the paper: ViT-L/16 with 304,326,632 parameters, five epochs of "
        f"ImageNet-1K, {5 * 1_281_167:,} images, in batches of 512. One seed: differences up to "
        f"{NOISE} are not told apart."
    )


def _vit_table(
    runs: Mapping[str, Sequence[Result]], curves: Mapping[str, Curve], steps: int
) -> str:
    rows = []
    for method, curve in curves.items():
        end, accuracy = at(curve, steps).mean, final(runs[method], "accuracy").mean
        cells = (
            loss(at(curve, steps / 2).mean, ".3f"),
            loss(end, ".3f"),
            percent(share_to(end, curves[FIRST])),
            loss(final(runs[method]).mean, ".3f"),
            f"{100 * accuracy:.1f} %" if math.isfinite(accuracy) else "–",
        )
        rows.append((IMAGE_NAMES[method], *cells))
    head = ("", "training loss, halfway", "at the end", f"{IMAGE_NAMES[FIRST]} is there after",
            "validation loss", "accuracy")  # fmt: skip
    return markdown_table(head, rows)
