"""Curves of runs over seeds: their mean, where it reaches a target, what part of it to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ..progress import Result


@dataclass(frozen=True)
class Curve:
    """The validation loss along the way: mean, lowest and highest over the runs of one entrant."""

    step: list[float]
    units: list[float]
    seconds: list[float]
    loss: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Band:
    """A line with what lies around it."""

    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def finite(value: float | None) -> bool:
    """Whether a value of a curve is a number; JSON has null where it was not."""
    return value is not None and math.isfinite(value)


def final_loss(result: Result) -> float:
    """The loss at the end of a run, infinite where it diverged."""
    losses = result["curve"]["loss"]
    if result["status"] != "finished" or not losses or not finite(losses[-1]):
        return math.inf
    return float(losses[-1])


def points(result: Result) -> dict[float, tuple[float, float, float]]:
    """Step → (units, seconds, loss), where the loss is finite."""
    curve = result["curve"]
    columns = zip(curve["step"], curve["units"], curve["seconds"], curve["loss"], strict=True)
    return {step: (units, seconds, loss) for step, units, seconds, loss in columns if finite(loss)}


def mean_curve(results: Sequence[Result]) -> Curve:
    """The mean over runs, at the steps where every run that has any loss has one.

    >>> run = {"curve": {"step": [0, 1], "units": [0, 8], "seconds": [0, 2], "loss": [3, None]}}
    >>> mean_curve([run]).loss
    [3.0]
    """
    runs = [run for run in map(points, results) if run]
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
    for index, value in enumerate(loss):
        if value > target:
            continue
        if index == 0:
            return float(x[0])
        before = loss[index - 1]
        share = (before - target) / (before - value)
        return float(x[index - 1] + share * (x[index] - x[index - 1]))
    return None


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
    high = max(median(map(_early, curves)), *(curve.high[-1] for curve in curves))
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin, False


def rate_range(losses: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest final loss to show over learning rates; far worse ones are out of view."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if not known:
        return 0.0, 1.0
    low = min(known)
    high = min(max(known), low + 4 * (median(known) - low)) if len(known) > 2 else max(known)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _early(curve: Curve) -> float:
    return curve.loss[math.ceil((len(curve.loss) - 1) / 7)]
