"""A rank that dies or hangs: everyone hears of it, and in time."""

import os
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch import nn

import deva_optim as do
from ranks import SOON, run

from .sharding import gradients, shared, weights


def lost_in_a_step(layout: str) -> tuple[str, float]:
    """Rank 2 dies while it updates its matrices, when the others wait for them."""
    start = weights()
    params, optimizer, lay = shared("deva", start, layout, foreach=False)
    for p, g in zip(params, gradients(start, 0), strict=True):
        p.grad = lay(g)
    optimizer.step()
    if dist.get_rank() == 2:
        pytest.MonkeyPatch().setattr("deva_optim.optimizer.advance_", lambda batch: os._exit(0))
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
