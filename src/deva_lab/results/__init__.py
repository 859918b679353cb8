"""Results of runs: how they are read again, and what a run has to log.

`curves` has what the runs of one optimizer come to, `summary` what several optimizers do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from deva_optim.telemetry import scalars

from ..errors import UsageError
from ..files import read_lines
from ..run.progress import Result

if TYPE_CHECKING:
    from ..run.training import Run

Values: TypeAlias = dict[str, float]
Outcome: TypeAlias = dict[str, float | str]


class Point(NamedTuple):
    """What is known after a step, by name."""

    step: int
    values: Values


def read_results(path: Path) -> list[Result]:
    """The finished runs of a results.jsonl; of two with the same id the later one.

    A line that is damaged, or that a kill cut short, is left out: that run has no result.

    Raises:
        UsageError: If there are several lines and none is a result.
    """
    lines = read_lines(path, begins=("id",))
    results: dict[str, Result] = {str(line["id"]): line for line in lines if "id" in line}
    if not results and path.read_bytes().count(b"\n") > 1:
        raise UsageError(
            f"{path} has no results: it must have one JSON object a line; remove it to start over"
        )
    return list(results.values())


def points(run: Run) -> list[Point]:
    """The curves of a run so far; times and telemetry are not kept, and belong to `newest`."""
    return [_point(run, index) for index in range(len(run.progress.curve.step))]


def newest(run: Run) -> Point:
    """The last point of the curves, with rates, times and telemetry of the step before it."""
    step, values = _point(run, -1)
    if step == 0:
        return Point(step, values)
    for index, group in enumerate(run.optimizer.param_groups):
        if run.rates[index] != run.settings.lr:  # this group has a rate of its own
            values[f"rate/{group.get('role', 'group')}.{index}"] = float(group["lr"])
    values |= {f"milliseconds/{k}": x for k, x in run.progress.times.milliseconds().items()}
    values |= {f"telemetry/{k}": x for k, x in scalars(run.telemetry).items()}
    return Point(step, _known(values))


def outcome(result: Result) -> Outcome:
    """How a run ended, from its line of results.jsonl."""
    columns = result["curve"].items()
    found = {
        **{name: column[-1] for name, column in columns if column and name != "units"},
        **{key: result[key] for key in ("status", "step", "parameters")},
        **{key: result[key] for key in ("state_bytes", "peak_memory_bytes")},
        result["unit"]: result["step"] * result["units"],
    }
    for kind in ("milliseconds", "mean_milliseconds"):
        found |= {f"{kind}/{part}": time for part, time in result[kind].items()}
    return {f"result/{name}": value for name, value in found.items() if value is not None}


def _point(run: Run, index: int) -> Point:
    """A row of the curves, and the learning rate of the step that led there."""
    curve, settings = run.progress.curve, run.settings
    step = curve.step[index]
    values = {
        "loss/training": curve.train_loss[index],
        "loss/validation": curve.loss[index],
        "accuracy/validation": curve.accuracy[index] if curve.accuracy else None,
        "seconds": curve.seconds[index],
        run.task.unit: curve.units[index],
        "rate/base": settings.lr * settings.rate(step - 1) if step else None,
    }
    return Point(step, _known(values))


def _known(values: Mapping[str, float | None]) -> Values:
    return {name: x for name, x in values.items() if x is not None and math.isfinite(x)}
