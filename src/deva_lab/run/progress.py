"""What a run has measured so far, in a form that checkpoints and results keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Status = Literal["running", "finished", "diverged", "stopped", "failed"]
Result: TypeAlias = dict[str, Any]  # one line of results.jsonl
CURVE: Final = ("step", "units", "seconds", "train_loss", "loss", "accuracy")
PARTS: Final = ("model", "optimizer", "data")  # of a step
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
class Progress:
    """How far a run has come, as checkpoints keep it.

    Attributes:
        seconds: Of training, without validation.
        curve: What the evaluations found, a column each; one that was not finite is None.
        times: Seconds of the last steps, by what was done in them.
        telemetry: Records of a "step" and its "matrices".
    """

    step: int = 0
    status: Status = "running"
    seconds: float = 0.0
    curve: dict[str, list[Any]] = field(default_factory=lambda: {x: [] for x in CURVE})
    times: dict[str, list[float]] = field(default_factory=lambda: {x: [] for x in PARTS})
    telemetry: list[dict[str, Any]] = field(default_factory=list)

    def milliseconds(self, typical: Callable[[list[float]], float]) -> dict[str, float]:
        """The time of each part of a step, as a median or a mean."""
        columns = self.times.items()
        return {name: round(1e3 * typical(column or [0.0]), 4) for name, column in columns}
