"""Clipping of gradients, a parameter group at a time, however the parameters are spread."""

from __future__ import annotations

import math

import torch

from .local import local_tensor
from .optimizer import BaseOptimizer


@torch.no_grad()
def clip_grad_norm_(optimizer: BaseOptimizer, max_norm: float) -> list[float]:
    """Scale down the gradients of every group whose norm is above `max_norm`; returns the norms.

    A norm over all gradients is mostly that of the matrices, and a spike in one of them would
    silence the gains and biases of the whole model; so each group is measured by itself. A gradient
    that is not finite is neither counted nor scaled: the optimizer leaves its step out.

    A constant factor changes no update of a scale-invariant method (DeVA, Muon, Lion, …). What
    clipping does to them is to give a spike no more weight in their averages than `max_norm`.

    Args:
        optimizer: Any of this library; its parameters may be DTensors on any meshes. If ranks share
            parameters, as DTensors or by `process_group`, all of them must call this.
        max_norm: The largest norm that a group may have, above 0.

    >>> from deva_optim import Muon
    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> weight.grad = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    >>> clip_grad_norm_(Muon([weight]), max_norm=1.0)
    [5.0]
    >>> weight.grad
    tensor([[0.6000, 0.0000],
            [0.0000, 0.8000]])
    """
    if not isinstance(optimizer, BaseOptimizer):
        raise TypeError(
            f"optimizer must be one of deva_optim, got a {type(optimizer).__name__}; take the one "
            "inside a wrapper, and for parameters use torch.nn.utils.clip_grad_norm_"
        )
    if not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm!r}")
    squares = optimizer.squared_norms()
    norms = []
    for group in optimizer.param_groups:
        finite = [p for p in group["params"] if math.isfinite(squares.get(p, math.inf))]
        norms.append(math.sqrt(sum(squares[p] for p in finite)))
        if norms[-1] > max_norm:
            grads = [local_tensor(p.grad) for p in finite if p.grad is not None]
            if grads:  # the others may be those of other ranks
                torch._foreach_mul_(grads, max_norm / norms[-1])
    return norms
