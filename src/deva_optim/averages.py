"""The average of the weights over the steps, which can be shown in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer


def check_averages(optimizer: Optimizer, averages: Mapping[Tensor, Tensor], share: float) -> None:
    """Raises ValueError if `averaged` has nothing to show, or not of all that should have it."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must be a number from 0 to 1, got {share!r}")
    rated = [group for group in optimizer.param_groups if group["ema_rate"] is not None]
    if not rated:
        raise ValueError(
            "ema_rate is None, so that no average of the weights is kept: construct "
            f"{type(optimizer).__name__} with ema_rate=0.99, for example"
        )
    for group in rated:
        for p in group["params"]:
            if int(optimizer.state[p].get("step", 0)) > 0 and p not in averages:
                raise ValueError(
                    f"ema_rate is {group['ema_rate']}, but a parameter of shape {tuple(p.shape)} "
                    "has taken steps without an average: set it before the first step, and load a "
                    "checkpoint that was saved with it"
                )


@contextmanager
def averaged(
    optimizer: Optimizer, averages: Mapping[Tensor, Tensor], share: float
) -> Iterator[None]:
    """While it lasts, parameters hold (1 − share) X + share A / (1 − ρᵗ) in place of X.

    Args:
        optimizer: Whose parameters.
        averages: A of each parameter that has one; of a DTensor the block of this rank.
        share: That of the average.
    """
    kept = {}
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in (p for p in group["params"] if p in averages):
                t = int(optimizer.state[p]["step"])
                X = p.to_local() if hasattr(p, "to_local") else p
                if t > 0:
                    kept[X] = X.detach().clone()
                    A = averages[p] / (1 - group["ema_rate"] ** t)
                    X.copy_(A if share == 1 else X.to(A.dtype).lerp(A, share))
    try:
        yield
    finally:
        with torch.no_grad():
            for X, last in kept.items():
                X.copy_(last)
