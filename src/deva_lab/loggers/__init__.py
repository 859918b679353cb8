"""Runs in TensorBoard, Weights & Biases and MLflow, each of which is imported when it is asked for.

A run logs from its own process. One that is resumed goes on in the same run of the tracker, whose
id is kept beside the checkpoints, and logs no step that is there already. A tracker that fails is
given up with a warning, and the training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..errors import unknown, warn
from ..names import LOGGERS
from ..results import Outcome, Point
from .trackers import TRACKERS, Logger, MLflow, Subject

__all__ = ["LOGGERS", "Log", "check_loggers", "names_of", "prepare_loggers"]

NONE: Final = "none"  # what `--log` says for no logger


class Log:
    """All loggers of a run; a context that ends them if the run fails.

    Args:
        names: Those of `LOGGERS` that are wanted.
        folder: That of the comparison.
        speaks: Whether this process logs; of several ranks one does.
    """

    def __init__(
        self, names: Sequence[str] = (), folder: Path = Path(), *, speaks: bool = True
    ) -> None:
        self.wanted = bool(names)
        self._names, self._folder = (names if speaks else ()), folder
        self._loggers: dict[str, Logger] = {}

    def begin(
        self,
        id: str,
        settings: Mapping[str, Any],
        about: Mapping[str, Any],
        known: Iterable[Point],
    ) -> None:
        """Open all loggers, and give each the points of a resumed run that it does not have."""
        subject = Subject(id, self._folder, settings, about)
        for name in self._names:
            self._try(name, partial(self._open, name, subject))
        for point in known:
            self.add(point)

    def _open(self, name: str, subject: Subject) -> None:
        self._loggers[name] = TRACKERS[name](subject)

    def add(self, point: Point) -> None:
        """Log a point wherever it is not known yet."""
        for name, logger in list(self._loggers.items()):
            if point.step > logger.last:
                self._try(name, partial(logger.add, *point))

    def end(self, status: str, outcome: Outcome) -> None:
        """Log how the run ended, and close all."""
        for name, logger in list(self._loggers.items()):
            self._try(name, partial(logger.end, status, outcome))
        self._loggers.clear()

    def _try(self, name: str, do: Callable[[], None]) -> None:
        """Do it; whatever is raised costs the logger and not the run."""
        try:
            do()
        except Exception as error:
            self._loggers.pop(name, None)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            warn(f"{name} has failed, and the run goes on without it: {reason}")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, Exception):  # a second Ctrl-C waits for nothing
            self.end("failed", {})  # of none, if the run has come to its end


def names_of(text: str | None) -> tuple[str, ...]:
    """The loggers that a list names, each once.

    >>> names_of("wandb,tensorboard"), names_of("none")
    (('wandb', 'tensorboard'), ())
    """
    names = [name for name in (text or "").lower().replace(" ", "").split(",") if name]
    names = [] if names == [NONE] else names
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, (*LOGGERS, NONE))
    return tuple(dict.fromkeys(names))


def check_loggers(names: Sequence[str]) -> None:
    """Raises UsageError for one that is not installed, or that nobody has logged in to."""
    for name in names:
        TRACKERS[name].check()


def prepare_loggers(names: Sequence[str], folder: Path) -> None:
    """Make what all runs share, before any of them begins; UsageError if that fails."""
    if "mlflow" in names:
        MLflow.prepare(folder)
