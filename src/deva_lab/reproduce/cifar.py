"""`fig-cifar`: ResNet-20 on CIFAR-10, vector and matrix methods over learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..figures import draw
from ..progress import Result
from .claims import Finding, findings_table, sentence, throughout
from .experiment import Shown, markdown_table
from .image_runs import MATRIX, NAMES, VECTOR, look
from .measures import Measured, below, final, order, select
from .panels import points_panel
from .printed import PRINTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Errors = Mapping[str, Mapping[float, Measured]]  # method → rate → validation error, per cent
GROUPS: Final = {"vector": VECTOR, "matrix": MATRIX}
NEAR: Final = 2.0  # a rate is near another up to this factor
VALIDATED: Final = {"digits": 364, "cifar10-small": 2_000, "cifar10": 10_000}


def show(results: Sequence[Result], folder: Path) -> Shown:
    """Accuracies over rates, the best of each method, and what the paper says of them."""
    errors = errors_of(results)
    noise = resolution(errors, VALIDATED.get(results[0]["settings"]["data"], 10_000))
    found = findings(errors, noise)
    text = [
        _about(results, noise),
        _table(errors),
        _order(errors, noise),
        findings_table(found),
        "The paper names its best rates twice, and differently: about 0.005 and 0.01 with the "
        "figure, 0.05 and 0.001 in its table of hyper-parameters. The figure's are taken here.",
    ]
    figures = draw(folder, "fig-cifar", (8.0, 3.6), lambda figure: _fill(figure, errors))
    caption = "Validation accuracy at the end over the learning rate; a cross is a diverged run"
    return Shown("\n\n".join(text), sentence(found), figures, caption)


def errors_of(results: Sequence[Result]) -> Errors:
    """The validation error at the end of every run, in per cent."""
    rates = sorted({float(result["settings"]["lr"]) for result in results})
    return {
        method: {lr: _error(select(results, optimizer=label, lr=lr)) for lr in rates}
        for group in GROUPS.values()
        for method, label in group.items()
    }


def _error(runs: Sequence[Result]) -> Measured:
    accuracy = final(runs, "accuracy")
    return Measured({seed: 100 * (1 - value) for seed, value in accuracy.values.items()})


def best_rate(errors: Mapping[float, Measured]) -> float:
    """The rate with the lowest error."""
    return min(errors, key=lambda lr: errors[lr].mean)


def resolution(errors: Errors, images: int) -> float:
    """The standard error of a difference of two errors that are counted on so many images."""
    lowest = min(error.mean for rates in errors.values() for error in rates.values()) / 100
    share = min(max(lowest, 1 / images), 0.5)
    return 100 * math.sqrt(2 * share * (1 - share) / images)


def findings(errors: Errors, noise: float) -> list[Finding]:
    """The paper's claims about the figure."""
    rates = {method: best_rate(found) for method, found in errors.items()}
    best = {method: errors[method][rate] for method, rate in rates.items()}
    found = []
    for group, first in (("vector", "devalinf"), ("matrix", "soap")):
        found.append(_first(group, first, best, noise))
    for group, rate in PRINTED["fig-cifar"]["best rate"].items():
        parts = [_near(rates[method], rate, NAMES[method]) for method in GROUPS[group]]
        claim = f"best rates of {group} methods are near {rate:g}"
        found.append(throughout(claim, "best rate of the grid", parts))
    low, high = PRINTED["fig-cifar"]["range"]
    claim = f"the best rate of all methods is between {low:g} and {high:g}"
    parts = [_within(rates[method], low, high, NAMES[method]) for method in rates]
    outside = [part.how for part in parts if part.verdict != "holds"]
    how = "; ".join(outside) + " lie outside" if outside else "all do"
    return [*found, throughout(claim, "best rate of the grid", parts, how)]


def _first(group: str, first: str, best: Mapping[str, Measured], noise: float) -> Finding:
    others = [method for method in GROUPS[group] if method != first]
    parts = [
        below("", NAMES[other], best[first], best[other], spread=noise, spec=".1f")
        for other in others
    ]
    claim = f"{NAMES[first]} is the best of the {group} methods"
    how = f"{best[first].text('.1f')} against " + ", ".join(
        f"{best[other].text('.1f')} ({NAMES[other]})" for other in others
    )
    return throughout(claim, "validation error in per cent, each at its best rate", parts, how)


def _near(rate: float, wanted: float, name: str) -> Finding:
    return _within(rate, wanted / NEAR, wanted * NEAR, name)


def _within(rate: float, low: float, high: float, name: str) -> Finding:
    inside = low * 0.999 <= rate <= high * 1.001  # rates are decimal fractions
    return Finding("", "", "holds" if inside else "does not hold", f"{name} {rate:g}", rate)


def _about(results: Sequence[Result], noise: float) -> str:
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


def _table(errors: Errors) -> str:
    """The accuracies, the best of each method in bold."""
    rates = list(next(iter(errors.values())))
    rows = []
    for method, found in errors.items():
        best = best_rate(found)
        cells = [_accuracy(found[lr], strong=lr == best) for lr in rates]
        printed = next(
            rate
            for group, rate in PRINTED["fig-cifar"]["best rate"].items()
            if method in GROUPS[group]
        )
        rows.append((NAMES[method], *cells, f"{best:g}", f"≈ {printed:g}"))
    head = ("accuracy in % at rate", *(f"{lr:g}" for lr in rates), "best rate", "the paper's")
    return markdown_table(head, rows)


def _accuracy(error: Measured, *, strong: bool) -> str:
    if not math.isfinite(error.mean):
        return "diverged"
    text = f"{100 - error.mean:.1f}"
    return f"**{text}**" if strong else text


def _order(errors: Errors, noise: float) -> str:
    """The methods from the lowest error on, in both."""
    lines = []
    for group, methods in GROUPS.items():
        best = {NAMES[method]: errors[method][best_rate(errors[method])] for method in methods}
        lines.append((group, PRINTED["fig-cifar"]["order"][group], order(best, noise)))
    return markdown_table(("order by error", "the paper", "here"), lines)


def _fill(figure: Figure, errors: Errors) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (group, methods) in zip(panels, GROUPS.items(), strict=True):
        lines = {
            look(method): [
                (lr, Measured({seed: 100 - value for seed, value in error.values.items()}))
                for lr, error in errors[method].items()
            ]
            for method in methods
        }
        points_panel(axes, lines, title=f"{group} methods", x="learning rate", y="")
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("validation accuracy (%)")
