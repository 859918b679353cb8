"""A rank that dies or hangs, a checkpoint cut short: everyone hears of it, and in time."""

import copy
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

import deva_optim as do
from deva_optim import optimizer as engine
from ranks import run

from .test_checkpoint import STEPS, go_on, made, saved
from .test_step import agree, alone, gradients, past, shared, weights, whole

SOON = 60  # seconds: far below the time limit of the ranks, far above what an error takes

# A rank is lost ----------------------------------------------------------------------------------


def lost_in_a_step(layout: str) -> tuple[str, float]:
    """Rank 2 dies while it updates its matrices, when the others wait for them."""
    start = weights()
    params, optimizer, lay = shared("deva", start, layout, foreach=False)
    for p, g in zip(params, gradients(start, 0), strict=True):
        p.grad = lay(g)
    optimizer.step()
    if dist.get_rank() == 2:
        engine.advance_ = lambda stack: os._exit(0)
    began = time.monotonic()
    with pytest.raises(RuntimeError) as error:
        optimizer.step()
    return str(error.value), time.monotonic() - began


@pytest.mark.parametrize("layout", ["rows", "ddp"])
def test_a_rank_that_dies_in_a_step_stops_all_others(layout: str) -> None:
    found = run(4, lost_in_a_step, layout)
    assert found[2] is None
    for message, seconds in (found[rank] for rank in (0, 1, 3)):
        assert message
        assert seconds < SOON


def stuck() -> tuple[str, float]:
    """Rank 1 is alive, but does not come."""
    patience = dist.new_group(timeout=timedelta(seconds=2))
    params = [nn.Parameter(x) for x in weights()]
    optimizer = do.Muon(params, process_group=patience)
    for p, g in zip(params, gradients(params, 0), strict=True):
        p.grad = g
    optimizer.step()
    began = time.monotonic()
    if dist.get_rank() == 1:
        time.sleep(6)
        return "", 0.0
    with pytest.raises(RuntimeError) as error:
        optimizer.step()
    return str(error.value), time.monotonic() - began


def test_a_rank_that_hangs_is_given_up_at_the_timeout_of_the_group() -> None:
    (message, seconds), _ = run(2, stuck)
    assert message
    assert 1 < seconds < SOON


# A checkpoint is cut short -----------------------------------------------------------------------


def damage(folder: Path, how: str) -> None:
    data = max(folder.glob("*.distcp"), key=lambda file: file.stat().st_size)
    if how == "truncated":
        os.truncate(data, data.stat().st_size // 2)
    else:
        (data if how == "missing" else folder / ".metadata").unlink()


def load(model: Any, optimizer: Any, folder: str) -> None:
    state = saved(model, optimizer, flat=False)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def cut_short(folder: str, layout: str) -> tuple[list[str], list[Tensor]]:
    """What is said of damaged checkpoints, and where the last good one leads to."""
    model, optimizer = made("deva-rest-linf", layout)
    go_on(model, optimizer, 0)
    ways = ("truncated", "missing", "no metadata")
    for name in ("good", *ways):
        dcp.save(saved(model, optimizer, flat=False), checkpoint_id=f"{folder}/{name}")
    if dist.get_rank() == 0:
        for how in ways:
            damage(Path(folder) / how, how)
    dist.barrier()
    model, optimizer = made("deva-rest-linf", layout)
    go_on(model, optimizer, 1)  # other steps than those that were saved
    kept = copy.deepcopy([list(values.values()) for values in optimizer.state.values()])
    messages = []
    for how in ways:
        began = time.monotonic()
        with pytest.raises(CheckpointException) as error:
            load(model, optimizer, f"{folder}/{how}")
        assert time.monotonic() - began < SOON
        messages.append(str(error.value))
        for before, values in zip(kept, optimizer.state.values(), strict=True):
            for x, y in zip(before, values.values(), strict=True):
                assert x.is_meta or torch.equal(x, y), how
    load(model, optimizer, f"{folder}/good")
    go_on(model, optimizer, STEPS)
    return messages, whole(model.weights)


@pytest.mark.parametrize("layout", ["rows", "ddp"])
def test_a_checkpoint_cut_short_changes_nothing_and_the_last_good_one_loads(
    tmp_path: Path, layout: str
) -> None:
    start = weights()
    theirs = alone("deva-rest-linf", start, past(start, 2 * STEPS), foreach=False)
    found = run(2, cut_short, str(tmp_path), layout)
    for messages, ours in found:
        assert all(messages)
        agree(ours, theirs)
    assert "No such file" in found[0][0][1]


def by_one_rank(folder: str) -> str:
    """Rank 0 saves what it has as if it were all, and everyone loads that."""
    model, optimizer = made("deva", "ddp")
    go_on(model, optimizer, 0)
    state = optimizer.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, f"{folder}/state")
    dist.barrier()
    kept = optimizer.state
    with pytest.raises(ValueError, match="1 of 2 ranks .* another rank had") as error:
        optimizer.load_state_dict(torch.load(f"{folder}/state", weights_only=False))
    assert optimizer.state is kept
    go_on(model, optimizer, STEPS)  # it goes on as it was
    return str(error.value)


def test_the_share_of_one_rank_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    first, second = run(2, by_one_rank, str(tmp_path))
    assert first == second
