"""Runs that raise: what is kept of them, for the table, and for the user to mend them."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import LostRank, LostWorker, UsageError
from ..files import write_text
from .environment import environment
from .progress import Event, Result
from .settings import RunSettings

if TYPE_CHECKING:
    from .training import Run

TRACEBACK: Final = "error.txt"  # in the folder of a run
OURS: Final = (UsageError, LostRank, LostWorker)  # which end the whole command


def failed_result(
    settings: RunSettings, run: Run | None, error: BaseException, command: str
) -> Result:
    """The line of results.jsonl of a run that an error has ended; it may have come before `run`."""
    result: dict[str, Any] = {
        "id": settings.id,
        "label": settings.optimizer,
        "status": "failed",
        "step": 0,
        "settings": settings.saved(),
        "unit": "samples",
        "units": settings.batch * settings.accumulate,
        "parameters": 0,
        "state_bytes": 0,
        "curve": {name: [] for name in ("step", "units", "seconds", "train_loss", "loss")},
        "milliseconds": {},
        "mean_milliseconds": {},
        "peak_memory_bytes": None,
        "environment": environment(settings.device),
        "command": command,
    }
    found = {} if run is None else run.result(command)
    return {**result, **found, "status": "failed", "error": error_text(error)}


def error_text(error: BaseException) -> str:
    """The type of an error and what it says.

    >>> error_text(ValueError("no such column"))
    'ValueError: no such column'
    """
    return "".join(traceback.format_exception_only(error)).strip()


def write_traceback(folder: Path, error: BaseException) -> None:
    """Keep the traceback of an error in the folder of its run."""
    write_text(folder / TRACEBACK, "".join(traceback.format_exception(error)))


def failed_event(settings: RunSettings, run: Run | None) -> Event:
    """What a run that has failed tells at last."""
    if run is None:
        return Event(settings.id, 0, "failed", None, 0.0, evaluated=True)
    return run.event(evaluated=True)._replace(status="failed")


def failure_text(result: Result, folder: Path) -> str:
    """What a person hears of a run that has failed."""
    settings = result["settings"]
    first = result["error"].splitlines()[0]
    return (
        f"{result['label']} at lr {settings['lr']:g}, seed {settings['seed']}, failed after step "
        f"{result['step']}: {first}\n  traceback: {folder / 'runs' / result['id'] / TRACEBACK}"
    )
