"""What a run has measured so far, in a form that checkpoints and results keep."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Status = Literal["running", "finished", "diverged", "stopped", "failed"]
Result: TypeAlias = dict[str, Any]  # one line of results.jsonl
TIMED: Final = 1000  # the last so many steps have their times kept
TRACEBACK: Final = "error.txt"  # in the folder of a run that has failed


class Event(NamedTuple):
    """What a run tells while it goes on."""

    id: str
    step: int
    status: Status
    loss: float | None  # the last validation loss, None where it was not finite
    seconds: float
    evaluated: bool  # whether the loss is new


Watch: TypeAlias = Callable[[Event], None]


class Point(NamedTuple):
    """What there is to log after a step, by name."""

    step: int
    values: dict[str, float]


def is_failed(result: Result) -> bool:
    """Whether an error has ended a run; it is tried again when its comparison is resumed."""
    return bool(result["status"] == "failed")


def failure_text(result: Result, folder: Path) -> str:
    """What a person hears of a run that has failed."""
    settings = result["settings"]
    first = result["error"].splitlines()[0]
    return (
        f"{result['label']} at lr {settings['lr']:g}, seed {settings['seed']}, failed after step "
        f"{result['step']}: {first}\n  traceback: {folder / 'runs' / result['id'] / TRACEBACK}"
    )


@dataclass
class Curve:
    """What the evaluations found, a column each."""

    step: list[int] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    train_loss: list[float | None] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)


@dataclass
class Times:
    """Seconds of the last steps, by what was done in them."""

    model: list[float] = field(default_factory=list)
    optimizer: list[float] = field(default_factory=list)
    data: list[float] = field(default_factory=list)

    def add(self, *, model: float, optimizer: float, data: float) -> None:
        """Take in one step."""
        for column, seconds in zip(
            (self.model, self.optimizer, self.data), (model, optimizer, data), strict=True
        ):
            column.append(seconds)
            del column[:-TIMED]

    def milliseconds(self) -> dict[str, float]:
        """The median of each: of a usual step."""
        return self._each(statistics.median)

    def mean_milliseconds(self) -> dict[str, float]:
        """The mean of each: with what is done in some steps only, such as refreshes."""
        return self._each(statistics.fmean)

    def _each(self, typical: Callable[[list[float]], float]) -> dict[str, float]:
        columns = asdict(self).items()
        return {name: round(1e3 * typical(column or [0.0]), 4) for name, column in columns}


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0
    status: Status = "running"
    seconds: float = 0.0  # of training, without validation
    curve: Curve = field(default_factory=Curve)
    times: Times = field(default_factory=Times)
    telemetry: list[dict[str, Any]] = field(default_factory=list)  # "step" and "matrices"

    def saved(self) -> dict[str, Any]:
        """The record as a checkpoint has it."""
        return asdict(self)

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> Progress:
        """The record that a checkpoint has; a run that was stopped is running again."""
        curve, times = Curve(**saved["curve"]), Times(**saved["times"])
        status: Status = "running" if saved["status"] == "stopped" else saved["status"]
        telemetry = saved.get("telemetry", [])
        return cls(saved["step"], status, saved["seconds"], curve, times, telemetry)
