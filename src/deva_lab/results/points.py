"""What a run has to log: a point of its curves after each evaluation, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from deva_optim.telemetry import scalars

from ..progress import Result

if TYPE_CHECKING:
    from ..training import Run

Values: TypeAlias = dict[str, float]
Outcome: TypeAlias = dict[str, float | str]


class Point(NamedTuple):
    """What is known after a step, by name."""

    step: int
    values: Values


def points(run: Run) -> list[Point]:
    """The curves of a run so far; times and telemetry are not kept, and belong to `newest`."""
    return [_point(run, index) for index in range(len(run.progress.curve.step))]


def newest(run: Run) -> Point:
    """The last point of the curves, with rates, times and telemetry of the step before it."""
    step, values = _point(run, -1)
    if step == 0:
        return Point(step, values)
    times = {f"milliseconds/{k}": x for k, x in run.progress.times.milliseconds().items()}
    telemetry = {f"telemetry/{k}": x for k, x in scalars(run.telemetry).items()}
    return Point(step, _known(values | _rates(run) | times | telemetry))


def outcome(result: Result) -> Outcome:
    """How a run ended, from its line of results.jsonl."""
    curve = result["curve"]
    last = {name: column[-1] for name, column in curve.items() if column and name != "units"}
    found = {
        "status": result["status"],
        **last,
        "step": result["step"],
        result["unit"]: result["step"] * result["units"],
        "parameters": result["parameters"],
        "state_bytes": result["state_bytes"],
        "peak_memory_bytes": result["peak_memory_bytes"],
        **{f"milliseconds/{k}": x for k, x in result["milliseconds"].items()},
        **{f"mean_milliseconds/{k}": x for k, x in result["mean_milliseconds"].items()},
    }
    return {f"result/{name}": value for name, value in found.items() if value is not None}


def _point(run: Run, index: int) -> Point:
    """A row of the curves, and the learning rate of the step that led there."""
    curve, settings = run.progress.curve, run.settings
    step = curve.step[index]
    return Point(
        step,
        _known(
            {
                "loss/training": curve.train_loss[index],
                "loss/validation": curve.loss[index],
                "accuracy/validation": curve.accuracy[index] if curve.accuracy else None,
                "seconds": curve.seconds[index],
                run.task.unit: curve.units[index],
                "rate/base": settings.lr * settings.rate(step - 1) if step else None,
            }
        ),
    )


def _rates(run: Run) -> Values:
    """The rates of groups that have another one than the run, by role and place."""
    groups = zip(run.optimizer.param_groups, run.rates, strict=True)
    return {
        f"rate/{group.get('role', 'group')}.{index}": float(group["lr"])
        for index, (group, rate) in enumerate(groups)
        if rate != run.settings.lr
    }


def _known(values: Mapping[str, float | None]) -> Values:
    return {name: x for name, x in values.items() if x is not None and math.isfinite(x)}
