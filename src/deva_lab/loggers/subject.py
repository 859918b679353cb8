"""What a logger is told of a run, and what it has to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ..files import read_record
from ..results import Outcome, Values

PROJECT: Final = "deva"  # of W&B, and experiment of MLflow, unless the environment names another


@dataclass(frozen=True)
class Subject:
    """A run, as a logger is told of it."""

    id: str
    folder: Path  # of the comparison, whose name all of its runs share
    settings: Mapping[str, Any]
    about: Mapping[str, Any]  # command, environment

    @property
    def group(self) -> str:
        """The name of the comparison."""
        return self.folder.resolve().name

    @property
    def kept(self) -> Path:
        """Where the run has its checkpoints."""
        return self.folder / "runs" / self.id


class Logger(Protocol):
    """A run in a tracker."""

    @property
    def last(self) -> int:
        """The last step that it had when it was opened; −1 if it had none."""

    def add(self, step: int, values: Values) -> None:
        """Log a point, so that a kill after this does not lose it."""

    def end(self, status: str, outcome: Outcome) -> None:
        """Log how the run ended, and close."""


def kept_record(path: Path) -> dict[str, Any]:
    """What a logger has written down of itself; nothing, if that is damaged."""
    return (read_record(path, begins=()) if path.exists() else None) or {}
