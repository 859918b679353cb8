"""Checkpoints of several ranks, through torch.distributed.checkpoint: a folder that all write to.

It gets its name when every rank has written, and holds a record with the digest of each file. What
has no record, or a file that does not fit it, is no checkpoint. Any number of ranks can read it, a
process alone too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..errors import UsageError
from ..files import PARTIAL, file_digest, flush, read_record, remove, write_record

if TYPE_CHECKING:
    from .training import Run

RECORD: Final = "record"


def write(path: Path, run: Run) -> None:
    """Write the checkpoint of a run, all ranks together."""
    partial = path.with_name(PARTIAL + path.name)
    with _failing(f"{path} could not be written"):
        save(_tensors(run), checkpoint_id=partial)
    mine = (f for f in partial.iterdir() if f.name.startswith(f"__{run.ranks.rank}_"))
    digests = run.ranks.gathered({file.name: file_digest(file) for file in mine})
    run.ranks.lead(lambda: _finish(partial, path, run, digests))


def _finish(partial: Path, path: Path, run: Run, digests: Iterable[dict[str, str]]) -> None:
    """Seal the folder and give it its name."""
    files = {".metadata": file_digest(partial / ".metadata")}
    for some in digests:
        files |= some
    write_record(partial / RECORD, {**run.record(), "files": files})
    flush(partial)
    remove(path)  # one that was damaged: the run has come here a second time
    os.rename(partial, path)
    flush(path.parent)


def read(path: Path, run: Run) -> bool:
    """Bring a run to a checkpoint, all ranks together; False if it is damaged."""
    record = run.ranks.lead(lambda: read_record(path / RECORD))
    if record is None:
        return False
    files = sorted(record["files"].items())[run.ranks.rank :: run.ranks.size]
    if run.ranks.any(not all(_is(path / name, seal) for name, seal in files)):
        return False
    run.check(record["settings"])
    tensors = _tensors(run)
    with _failing(f"{path} could not be read"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is .* uninitialized")  # it is alone
        load(tensors, checkpoint_id=path)
    set_model_state_dict(run.model, tensors["model"])
    set_optimizer_state_dict(run.model, run.optimizer, tensors["optimizer"])
    run.take_up(record["progress"], tensors["losses"], tensors["random"])
    return True


def take_whole(run: Run, state: dict[str, Any]) -> None:
    """Bring a run on several ranks to what a process alone has saved, which each of them has."""
    run.check(state["settings"])
    whole = StateDictOptions(full_state_dict=True)
    set_model_state_dict(run.model, state["model"], options=whole)
    optimizer = _by_name(run, state["optimizer"])
    set_optimizer_state_dict(run.model, run.optimizer, optimizer, options=whole)
    run.take_up(state["progress"], state["losses"], state["random"])


def _tensors(run: Run) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(run.model),
        "optimizer": get_optimizer_state_dict(run.model, run.optimizer),
        "losses": run.losses,
        "random": torch.get_rng_state(),
    }


def _by_name(run: Run, saved: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer with the names of parameters in the place of their numbers."""
    known = {param: name for name, param in run.model.named_parameters()}
    names = [known[p] for group in run.optimizer.param_groups for p in group["params"]]
    groups = [{**g, "params": [names[i] for i in g["params"]]} for g in saved["param_groups"]]
    return {"state": {names[i]: x for i, x in saved["state"].items()}, "param_groups": groups}


def _is(path: Path, seal: str) -> bool:
    try:
        return file_digest(path) == seal
    except OSError:
        return False


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Says what has failed on any rank, on all of them alike."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise UsageError(f"{what}: {cause} (rank {rank})") from error
