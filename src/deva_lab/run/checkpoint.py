"""Checkpoints that survive a kill: written whole or not at all, the last good ones kept.

A process alone writes a file, several ranks write a folder (`rank_checkpoint`); each reads both.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ..errors import UsageError
from ..files import is_whole, remove, sealing, sweep

if TYPE_CHECKING:
    from .training import Run

KEPT: Final = 2  # the newest, and one in case that it cannot be read
_NAME: Final = re.compile(r"checkpoint-(\d+)(\.pt)?")


def save(folder: Path, run: Run) -> None:
    """Write the checkpoint of the step that a run is at, then remove those that are too old."""
    path = folder / f"checkpoint-{run.progress.step}"
    if run.ranks.mode is None:
        with sealing(path.with_suffix(".pt")) as partial:
            torch.save(run.state(), partial)
    else:
        from . import rank_checkpoint

        rank_checkpoint.write(path, run)
    if run.ranks.leads:
        _thin_out(folder, run.progress.step)


def load(folder: Path, run: Run, say: Callable[[str], None] = lambda text: None) -> None:
    """Bring a run to the newest checkpoint that is whole, if there is any.

    A run whose only checkpoint is damaged starts anew: it has lost no more than it did until then.

    Raises:
        UsageError: If there are several checkpoints and none of them is whole.
    """
    paths = run.ranks.lead(lambda: _left(folder))
    for path in paths:
        if _read(path, run):
            return
        if len(paths) == 1:
            say(f"{path} is damaged and there is none before it: the run starts anew")
            return
        say(f"{path} is damaged: the checkpoint before it is taken, if there is one")
    if paths:
        names = ", ".join(path.name for path in paths)
        raise UsageError(
            f"no checkpoint of {folder} can be read ({names}): remove it to start over"
        )


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    named = (path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return sorted(named, key=_step, reverse=True)


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def read_file(path: Path, device: str) -> dict[str, Any] | None:
    """The checkpoint of a process alone, or None if it is damaged."""
    if not is_whole(path):
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, KeyError):
        return None
    return state


def _thin_out(folder: Path, step: int) -> None:
    """Keep the newest checkpoints up to this step.

    A later one was damaged: the run has started before it and come here again.
    """
    known = found(folder)
    kept = [path for path in known if _step(path) <= step][:KEPT]
    for path in known:
        if path not in kept:
            remove(path)


def _left(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first, what a killed run left behind swept away."""
    sweep(folder, older_than=0)  # nobody else writes here
    return found(folder)


def _read(path: Path, run: Run) -> bool:
    """Bring a run to a checkpoint; False if it is damaged."""
    if path.is_dir():
        from . import rank_checkpoint

        return rank_checkpoint.read(path, run)
    state = read_file(path, run.settings.device)
    if run.ranks.any(state is None) or state is None:
        return False
    if run.ranks.mode is None:
        run.restore(state)
    else:
        from . import rank_checkpoint

        rank_checkpoint.take_whole(run, state)
    return True
