"""Checkpoints that survive a kill: written whole or not at all, the last good ones kept.

A process alone writes a file. Several ranks write a folder, through torch.distributed.checkpoint,
which gets its name when every rank has written, and holds a record with the digest of each file.
What has no record, or a file that does not fit it, is no checkpoint. A process alone and any number
of ranks read both.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch

from .. import files
from ..errors import UsageError
from .training import Run

KEPT: Final = 2  # the newest, and one in case that it cannot be read
RECORD: Final = "record"
_NAME: Final = re.compile(r"checkpoint-(\d+)(\.pt)?")


def save(folder: Path, run: Run) -> None:
    """Write the checkpoint of the step that a run is at, then remove those that are too old."""
    path = folder / f"checkpoint-{run.progress.step}"
    if run.ranks.mode is None:
        with files.sealing(path.with_suffix(".pt")) as partial:
            torch.save(run.state(), partial)
    else:
        write_folder(path, run)
    if run.ranks.leads:
        # One of a later step was damaged: the run has started before it and come here again.
        known = found(folder)
        kept = [path for path in known if _step(path) <= run.progress.step][:KEPT]
        for path in known:
            if path not in kept:
                files.remove(path)


def load(folder: Path, run: Run, say: Callable[[str], None] = lambda text: None) -> None:
    """Bring a run to the newest checkpoint that is whole, if there is any.

    A run whose only checkpoint is damaged starts anew: it has lost no more than it did until then.

    Raises:
        UsageError: If there are several checkpoints and none of them is whole.
    """

    def left() -> list[Path]:
        files.sweep(folder, older_than=0)  # what a killed run left behind; nobody else writes here
        return found(folder)

    paths = run.ranks.lead(left)
    for path in paths:
        if _read_folder(path, run) if path.is_dir() else _read_file(path, run):
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


# --- Of a process alone --------------------------------------------------------------------------


def read_file(path: Path, device: str) -> dict[str, Any] | None:
    """The checkpoint of a process alone, or None if it is damaged."""
    state: dict[str, Any] | None = None
    if files.is_whole(path):
        with suppress(RuntimeError, EOFError, OSError, pickle.UnpicklingError, KeyError):
            state = torch.load(path, map_location=device, weights_only=True)
    return state


def _read_file(path: Path, run: Run) -> bool:
    """Bring a run to the checkpoint of a process alone; False if it is damaged on any rank."""
    state = read_file(path, run.settings.device)
    if run.ranks.any(state is None) or state is None:
        return False
    if run.ranks.mode is None:
        run.restore(state)
        return True
    from torch.distributed.checkpoint import state_dict as shared

    run.check(state["settings"])
    whole = shared.StateDictOptions(full_state_dict=True)  # which each rank has read
    shared.set_model_state_dict(run.model, state["model"], options=whole)
    optimizer = _by_name(run, state["optimizer"])
    shared.set_optimizer_state_dict(run.model, run.optimizer, optimizer, options=whole)
    run.take_up(state["progress"], state["losses"], state["random"])
    return True


def _by_name(run: Run, saved: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer with the names of parameters in the place of their numbers."""
    known = {param: name for name, param in run.model.named_parameters()}
    names = [known[p] for group in run.optimizer.param_groups for p in group["params"]]
    groups = [{**g, "params": [names[i] for i in g["params"]]} for g in saved["param_groups"]]
    return {"state": {names[i]: x for i, x in saved["state"].items()}, "param_groups": groups}


# --- Of several ranks ----------------------------------------------------------------------------

# torch.distributed.checkpoint is imported where it is used: it takes as long as torch itself.


def write_folder(path: Path, run: Run) -> None:
    """Write the checkpoint of a run, all ranks together."""
    from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

    partial = path.with_name(files.PARTIAL + path.name)
    with _failing(f"{path} could not be written"):
        save_tensors(_tensors(run), checkpoint_id=partial)
    mine = (f for f in partial.iterdir() if f.name.startswith(f"__{run.ranks.rank}_"))
    digests = run.ranks.gathered({file.name: files.file_digest(file) for file in mine})
    run.ranks.lead(lambda: _finish(partial, path, run, digests))


def _finish(partial: Path, path: Path, run: Run, digests: Iterable[dict[str, str]]) -> None:
    """Seal the folder and give it its name."""
    sealed = {".metadata": files.file_digest(partial / ".metadata")}
    for some in digests:
        sealed |= some
    files.write_record(partial / RECORD, {**run.record(), "files": sealed})
    files.flush(partial)
    files.remove(path)  # one that was damaged: the run has come here a second time
    os.rename(partial, path)
    files.flush(path.parent)


def _read_folder(path: Path, run: Run) -> bool:
    """Bring a run to a checkpoint of ranks, all of them together; False if it is damaged."""
    from torch.distributed.checkpoint import state_dict as shared
    from torch.distributed.checkpoint.state_dict_loader import load as load_tensors

    record = run.ranks.lead(lambda: files.read_record(path / RECORD))
    if record is None:
        return False
    mine = sorted(record["files"].items())[run.ranks.rank :: run.ranks.size]
    if run.ranks.any(not all(_is(path / name, seal) for name, seal in mine)):
        return False
    run.check(record["settings"])
    tensors = _tensors(run)
    with _failing(f"{path} could not be read"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is .* uninitialized")  # it is alone
        load_tensors(tensors, checkpoint_id=path)
    shared.set_model_state_dict(run.model, tensors["model"])
    shared.set_optimizer_state_dict(run.model, run.optimizer, tensors["optimizer"])
    run.take_up(record["progress"], tensors["losses"], tensors["random"])
    return True


def _tensors(run: Run) -> dict[str, Any]:
    from torch.distributed.checkpoint import state_dict as shared

    return {
        "model": shared.get_model_state_dict(run.model),
        "optimizer": shared.get_optimizer_state_dict(run.model, run.optimizer),
        "losses": run.losses,
        "random": torch.get_rng_state(),
    }


def _is(path: Path, seal: str) -> bool:
    try:
        return files.file_digest(path) == seal
    except OSError:
        return False


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Says what has failed on any rank, on all of them alike."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise UsageError(f"{what}: {cause} (rank {rank})") from error
