"""`fig-cifar`: ResNet-20 over learning rates; `fig-vit`: a vision transformer at a fixed rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..render import NONE, loss, markdown_table, percent
from ..render.figures import draw, draw_curves
from ..results import Curve
from ..run.progress import Result
from .experiment import Shown, shown
from .losses import legend_below, points_panel
from .measures import (
    Finding,
    Measured,
    below,
    best,
    curve_of,
    final,
    order,
    select,
    share_to,
    throughout,
)
from .paper import IMAGE_LOOKS, IMAGE_NAMES, IMAGENET, MATRIX, PRINTED, VECTOR
from .sweeps import in_bold

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
    run, errors = results[0], errors_of(results)
    noise = resolution(errors, VALIDATED.get(run["settings"]["data"], 10_000))
    orders = []
    for group, methods in GROUPS.items():
        own = {IMAGE_NAMES[m]: errors[m][best(errors[m])] for m in methods}
        orders.append((group, CIFAR["order"][group], order(own, noise)))
    return shown(
        f"Here: ResNet-20 with {run['parameters']:,} parameters, "
        f"{run['settings']['steps'] * run['units']:,} images of {run['settings']['data']} in "
        f"batches of {run['units']}, a rate that falls to zero from the first step on. In the "
        "paper: 40 epochs of CIFAR-10, 2,000,000 images, in batches of 128. Errors that differ by "
        f"less than {noise:.1f} % are not told apart by so few validation images.",
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
        for methods in GROUPS.values()
        for method, label in methods.items()
    }


def _error(accuracy: Measured) -> Measured:
    return Measured({seed: 100 * (1 - value) for seed, value in accuracy.values.items()})


def resolution(errors: Errors, images: int) -> float:
    """The standard error of a difference of two errors that are counted on so many images."""
    lowest = min(error.mean for rates in errors.values() for error in rates.values()) / 100
    share = min(max(lowest, 1 / images), 0.5)
    return 100 * math.sqrt(2 * share * (1 - share) / images)


def cifar_findings(errors: Errors, noise: float) -> list[Finding]:
    """The paper's claims about the figure."""
    rates = {method: best(own) for method, own in errors.items()}
    least = {method: own[rates[method]] for method, own in errors.items()}
    found = []
    for group, methods in GROUPS.items():
        first = FIRST_OF[group]
        others = [method for method in methods if method != first]
        found.append(
            throughout(
                f"{IMAGE_NAMES[first]} is the best of the {group} methods",
                "validation error in per cent, each at its best rate",
                [below(least[first], least[other], spread=noise) for other in others],
                f"{least[first].text('.1f')} against "
                + ", ".join(f"{least[m].text('.1f')} ({IMAGE_NAMES[m]})" for m in others),
            )
        )
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


def _within(rates: Mapping[str, float], method: str, low: float, high: float) -> Finding:
    rate = rates[method]
    inside = low * 0.999 <= rate <= high * 1.001  # rates are decimal fractions
    how = f"{IMAGE_NAMES[method]} {rate:g}"
    return Finding("", "", "holds" if inside else "does not hold", how, rate)


def _accuracies(errors: Errors) -> str:
    """The accuracies, the best of each method in bold."""
    rows = []
    for group, methods in GROUPS.items():
        for method in methods:
            own, rate = errors[method], best(errors[method])
            cells = in_bold({lr: loss(100 - error.mean, ".1f") for lr, error in own.items()}, rate)
            printed = f"≈ {CIFAR['best rate'][group]:g}"
            rows.append((IMAGE_NAMES[method], *cells, f"{rate:g}", printed))
    rates = [f"{lr:g}" for lr in next(iter(errors.values()))]
    return markdown_table(("accuracy in % at rate", *rates, "best rate", "the paper's"), rows)


def _fill_cifar(figure: Figure, errors: Errors) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (group, methods) in zip(panels, GROUPS.items(), strict=True):
        lines = {
            IMAGE_LOOKS[method]: {
                lr: Measured({seed: 100 - value for seed, value in error.values.items()})
                for lr, error in errors[method].items()
            }
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
    run = results[0]
    settings, steps = run["settings"], run["settings"]["steps"]
    runs = {method: select(results, optimizer=label) for method, label in IMAGENET.items()}
    curves = {method: smoothed(curve_of(own, "train_loss")) for method, own in runs.items()}
    halfway, ends = (
        {method: _loss_at(curve, step) for method, curve in curves.items()}
        for step in (steps / 2, steps)
    )
    accuracies = {method: final(own, "accuracy").mean for method, own in runs.items()}
    rows = [
        (
            IMAGE_NAMES[method],
            loss(halfway[method].mean, ".3f"),
            loss(ends[method].mean, ".3f"),
            percent(share_to(ends[method].mean, curves[FIRST])),
            loss(final(own).mean, ".3f"),
            percent(accuracies[method], 1) if math.isfinite(accuracies[method]) else NONE,
        )
        for method, own in runs.items()
    ]
    findings = [
        throughout(
            f"{IMAGE_NAMES[FIRST]} converges faster than {IMAGE_NAMES[other]}",
            "smoothed training loss halfway and at the end",
            [below(by[FIRST], by[other], spread=NOISE) for by in (halfway, ends)],
        )
        for other in curves
        if other != FIRST
    ]

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        lines = {IMAGE_LOOKS[method]: curve for method, curve in curves.items()}
        draw_curves(axes, lines, x="images", y="training loss, smoothed")
        legend_below(figure, axes, columns=len(lines))

    head = ("", "training loss, halfway", "at the end", f"{IMAGE_NAMES[FIRST]} is there after",
            "validation loss", "accuracy")  # fmt: skip
    here = order({IMAGE_NAMES[method]: end for method, end in ends.items()}, NOISE)
    return shown(
        f"Here: a vision transformer (`{settings['size']}`) with {run['parameters']:,} parameters, "
        f"{steps * run['units']:,} images of {settings['data']} in batches of "
        f"{run['units']}. In the paper: ViT-L/16 with 304,326,632 parameters, five epochs of "
        f"ImageNet-1K, {5 * 1_281_167:,} images, in batches of 512. One seed: differences up to "
        f"{NOISE} are not told apart.",
        markdown_table(head, rows),
        markdown_table(
            ("order by training loss: the paper", "here"), [(PRINTED["fig-vit"]["order"], here)]
        ),
        findings,
        figures=draw(folder, "fig-vit", (6.4, 4.0), fill),
        caption="Training loss, smoothed, at a fixed learning rate of 0.001",
        why=f"Scale: a model of {run['parameters']:,} parameters sees {_seen(results)} "
        "here, in the paper one of 304,326,632 sees 6,405,835 in 12,511.",
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
