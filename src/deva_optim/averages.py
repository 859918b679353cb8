"""The average of the iterates, which SPlus keeps and is judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer


@contextmanager
def averaged(optimizer: Optimizer, averages: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """While it lasts, the parameters hold A / (1 − ρᵗ) in place of the last iterate.

    Args:
        optimizer: Whose parameters.
        averages: A of each parameter that has one; of a DTensor the block of this rank.
    """
    kept = {}
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in (p for p in group["params"] if p in averages):
                t = int(optimizer.state[p]["step"])
                X = p.to_local() if hasattr(p, "to_local") else p
                if t > 0:
                    kept[X] = X.detach().clone()
                    X.copy_(averages[p] / (1 - group["ema_rate"] ** t))
    try:
        yield
    finally:
        with torch.no_grad():
            for X, last in kept.items():
                X.copy_(last)
