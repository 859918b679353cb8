"""Telemetry of matrices that ranks share: the owners answer, and everyone gets all of it."""

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from deva_optim.telemetry import Telemetry
from helpers import MATRIX, OPTIMIZERS
from ranks import run

from .sharding import OPTIONS, gradients, mesh, placed, weights

NAMES = tuple(f"layers.{i}" for i in range(8))


def made(name: str, layout: str | None) -> tuple[list[nn.Parameter], Optimizer, Any]:
    ranks = {"process_group": dist.group.WORLD} if layout == "ddp" else {}
    lay = Tensor.clone
    if layout not in (None, "ddp"):
        on = mesh(layout)
        lay = lambda x: placed(x, on, layout)  # noqa: E731
    params = [nn.Parameter(lay(x)) for x in weights()]
    group = {"params": list(zip(NAMES, params, strict=True)), "role": "auto", **OPTIONS}
    optimizer = OPTIMIZERS[name]([{**group, "foreach": False}], **ranks)
    optimizer.telemetry_every = 1
    return params, optimizer, lay


def told(names: tuple[str, ...], layout: str | None) -> list[Telemetry]:
    """After some steps; after a step that a bad gradient has spoiled; and without gradients."""
    found = []
    for name in names:
        params, optimizer, lay = made(name, layout)
        for step in range(6):
            for p, g in zip(params, gradients(params, step), strict=True):
                p.grad = lay(g)
            optimizer.step()
        found.append(optimizer.telemetry())
        if layout is None or dist.get_rank() == 1:
            grad = params[0].grad
            (grad.to_local() if hasattr(grad, "to_local") else grad)[-1] = float("nan")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            optimizer.step()
        found.append(optimizer.telemetry())
        optimizer.zero_grad()
        found.append(optimizer.telemetry())
    return found


@pytest.mark.parametrize("layout", ["rows", "ddp"])
def test_all_ranks_are_told_what_a_single_process_is(layout: str) -> None:
    """One matrix at a time the arithmetic is the same, and so is every bit."""
    theirs = told(MATRIX, None)
    assert len(theirs[0]) == 4 + 3  # three plain matrices, a convolution and a stack of three
    for ours in run(2, told, MATRIX, layout):
        for a, b in zip(ours, theirs, strict=True):
            assert list(a) == list(b)
            assert a == b


def watched(layout: str) -> tuple[list[Tensor], list[Tensor]]:
    """The weights after some steps, with and without a look at each."""
    ends = []
    for look in (False, True):
        params, optimizer, lay = made("deva", layout)
        for step in range(6):
            for p, g in zip(params, gradients(params, step), strict=True):
                p.grad = lay(g)
            optimizer.step()
            if look:
                optimizer.telemetry()
        ends.append([p.full_tensor().detach() for p in params])
    return ends[0], ends[1]


def test_looking_changes_nothing() -> None:
    for plain, seen in run(2, watched, "rows"):
        assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
