"""Curves of the runs of one optimizer: their mean, where it reaches a target, what to show of it.

A curve is of the validation loss, or of what telemetry has kept of the optimizer's steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Final, NamedTuple, TypeGuard

from ..run.progress import Result


@dataclass(frozen=True)
class Curve:
    """The validation loss along the way: mean, lowest and highest over the runs of one entrant."""

    step: list[float]
    units: list[float]
    seconds: list[float]
    loss: list[float]
    low: list[float]
    high: list[float]


class Band(NamedTuple):
    """A line with what lies around it."""

    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


class Quantity(NamedTuple):
    """A quantity of telemetry."""

    key: str
    title: str
    text: str  # what it is, in a sentence
    of: tuple[str, ...]  # the names that it has in a result
    logarithmic: bool = False


_UPDATE = "The norm of an update over that of the weight, ‖ΔX‖ / ‖X‖."
_DRIFT = "The share of a covariance that is off the diagonal in its basis: near 1 the basis is old."
QUANTITIES: Final = (
    Quantity("update", "Update to weight", _UPDATE, ("update_ratio",), logarithmic=True),
    Quantity("gamma", "Norm of Γ", "‖Γ‖ of the variance adaptation.", ("gamma_norm",)),
    Quantity("drift", "Drift of the bases", _DRIFT, ("drift_left", "drift_right")),
    Quantity("msign", "Error of msign", "‖O Oᵀ − I‖ / √r of the matrix sign.", ("msign_error",)),
    Quantity("skipped", "Steps skipped", "So far: a gradient was not finite.", ("skipped",)),
)


def finite(value: float | None) -> TypeGuard[float]:
    """Whether a value of a curve is a number; JSON has null where it was not."""
    return value is not None and math.isfinite(value)


def final_loss(result: Result) -> float:
    """The loss at the end of a run, infinite where it diverged."""
    losses = result["curve"]["loss"]
    ended = result["status"] == "finished" and losses and finite(losses[-1])
    return float(losses[-1]) if ended else math.inf


def mean_curve(results: Sequence[Result]) -> Curve:
    """The mean over runs, at the steps where every run that has any loss has one.

    >>> run = {"curve": {"step": [0, 1], "units": [0, 8], "seconds": [0, 2], "loss": [3, None]}}
    >>> mean_curve([run]).loss
    [3.0]
    """
    curves = [result["curve"] for result in results]
    rows = [zip(c["step"], c["units"], c["seconds"], c["loss"], strict=True) for c in curves]
    found = [{step: row for step, *row in run if finite(row[2])} for run in rows]
    runs = [run for run in found if run]
    steps = sorted(set.intersection(*map(set, runs))) if runs else []
    losses = [[run[step][2] for run in runs] for step in steps]
    return Curve(
        step=steps,
        units=[fmean(run[step][0] for run in runs) for step in steps],
        seconds=[fmean(run[step][1] for run in runs) for step in steps],
        loss=[fmean(values) for values in losses],
        low=[min(values) for values in losses],
        high=[max(values) for values in losses],
    )


def reach(x: Sequence[float], loss: Sequence[float], target: float) -> float | None:
    """Where a curve first reaches the target, between two points linearly; None if it never does.

    >>> reach([0, 100, 200], [5.0, 3.0, 2.0], 4.0)
    50.0
    """
    after = next((index for index, value in enumerate(loss) if value <= target), None)
    if not after:
        return None if after is None else float(x[0])
    share = (loss[after - 1] - target) / (loss[after - 1] - loss[after])
    return float(x[after - 1] + share * (x[after] - x[after - 1]))


def telemetry_band(runs: Sequence[Result], quantity: Quantity) -> Band:
    """The median over all matrices and runs at each recorded step, and the middle half of them.

    Of skipped steps it is the most of any matrix, because most matrices have none.
    """
    found: dict[float, list[float]] = {}
    for record in (record for run in runs for record in run.get("telemetry") or ()):
        for row in record["matrices"].values():
            values = [row[key] for key in quantity.of if finite(row.get(key))]
            found.setdefault(record["step"], []).extend(values)
    steps = sorted(step for step, values in found.items() if values)
    if quantity.key == "skipped":
        found = {step: [max(found[step])] for step in steps}
    quarters = [
        quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        for values in map(found.__getitem__, steps)
    ]
    low, middle, high = ([quarter[index] for quarter in quarters] for index in range(3))
    return Band(steps, middle, low, high)


def loss_range(curves: Sequence[Curve]) -> tuple[float, float, bool]:
    """Lowest and highest loss to show, and whether the axis is logarithmic.

    The fall of the first steps, the same for all, would flatten what tells them apart. So the axis
    begins where the typical curve is after a seventh of its way, or higher if an end needs it. A
    loss that falls by more than two decades is shown whole, on a logarithmic axis.
    """
    curves = [curve for curve in curves if curve.loss]
    length = max((curve.step[-1] for curve in curves), default=0)
    curves = [curve for curve in curves if curve.step[-1] >= 0.9 * length]  # not the diverged
    if not curves:
        return 0.0, 1.0, False
    low = min(min(curve.low) for curve in curves)
    start = max(curve.loss[0] for curve in curves)
    if low > 0 and start > 100 * low:
        return low / 1.5, start * 1.5, True
    early = median(curve.loss[math.ceil((len(curve.loss) - 1) / 7)] for curve in curves)
    return *_with_margin(low, max(early, *(curve.high[-1] for curve in curves)), 0.05), False


def rate_range(losses: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest final loss to show over learning rates; far worse ones are out of view."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if len(known) > 2:
        high = min(high, low + 4 * (median(known) - low))
    return _with_margin(low, high, 0.08)


def _with_margin(low: float, high: float, share: float) -> tuple[float, float]:
    margin = share * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin
