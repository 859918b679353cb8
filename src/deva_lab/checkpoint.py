"""Checkpoints that survive a kill: written whole or not at all, the last good ones kept."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, Final

import torch

from .atomic import replacing, sweep
from .errors import UsageError

KEPT: Final = 2  # the newest, and one in case that it cannot be read
_NAME: Final = re.compile(r"checkpoint-(\d+)\.pt")


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the checkpoint of a step, then remove those that are too old."""
    with replacing(folder / f"checkpoint-{step}.pt") as partial:
        torch.save(state, partial)
    for path in found(folder)[KEPT:]:
        path.unlink(missing_ok=True)


def load(folder: Path, device: str) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, or None if there is none.

    Raises:
        UsageError: If there are checkpoints and none of them can be read.
    """
    sweep(folder, older_than=0)  # nobody else writes here, so what is left is of a killed run
    paths = found(folder)
    for path in paths:
        try:
            state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, KeyError):
            continue
        return state
    if paths:
        names = ", ".join(path.name for path in paths)
        raise UsageError(
            f"no checkpoint of {folder} can be read ({names}): remove it to start over"
        )
    return None


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    steps = {path: _NAME.fullmatch(path.name) for path in folder.iterdir()}
    known = {path: int(match[1]) for path, match in steps.items() if match}
    return sorted(known, key=lambda path: known[path], reverse=True)
