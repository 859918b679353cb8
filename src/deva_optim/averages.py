"""The average of the iterates, which SPlus keeps and is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from .stack import Stack


def average_iterates_(stack: Stack) -> None:
    """A ← ρ A + (1 − ρ) X."""
    A = stack.read("iterate_avg")
    X = torch.stack([stack.part.fold(e.param) for e in stack.entries]).to(A.dtype)
    A.lerp_(X, stack.weight(stack.group["ema_rate"], stack.gate))
    stack.commit("iterate_avg")


@contextmanager
def averaged(optimizer: Optimizer) -> Iterator[None]:
    """While it lasts, the parameters hold A / (1 − ρᵗ) in place of the last iterate."""
    kept = {}
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state.get(p)
                if state and state["step"] > 0:
                    kept[p] = p.detach().clone()
                    p.copy_(state["iterate_avg"] / (1 - group["ema_rate"] ** int(state["step"])))
    try:
        yield
    finally:
        with torch.no_grad():
            for p, last in kept.items():
                p.copy_(last)
