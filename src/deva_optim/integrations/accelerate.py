"""For loops of Accelerate, which wraps the optimizer: unwrap it, clip by group, log telemetry."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ..clipping import clip_grad_norm_ as clip_groups_
from ..optimizer import BaseOptimizer
from ..telemetry import check_every, finite_scalars


def unwrap(optimizer: Optimizer) -> BaseOptimizer:
    """The optimizer of this library inside a wrapper, such as what `accelerator.prepare` returns.

    >>> import torch
    >>> from deva_optim import Muon
    >>> optimizer = Muon([torch.nn.Parameter(torch.eye(2))])
    >>> unwrap(optimizer) is optimizer
    True
    """
    inner: Any = optimizer
    while hasattr(inner, "optimizer"):  # Lightning's wrappers are of the class of what they wrap
        inner = inner.optimizer
    if not isinstance(inner, BaseOptimizer):
        raise TypeError(
            "optimizer must be one of deva_optim, or a wrapper around one, "
            f"got a {type(optimizer).__name__}"
        )
    return inner


def clip_grad_norm_(accelerator: Any, optimizer: Optimizer, max_norm: float) -> list[float]:
    """Clip each parameter group by its own norm, before `optimizer.step()`; returns the norms.

    This stands in the place of `accelerator.clip_grad_norm_(model.parameters(), max_norm)`, which
    clips by the norm of all gradients; `deva_optim.clip_grad_norm_` says how the two differ. The
    gradients of float16 training are unscaled first. While gradients are being accumulated nothing
    is clipped, and the list is empty.

    Args:
        accelerator: The `Accelerator`.
        optimizer: What its `prepare` returned, with an optimizer of this library inside.
        max_norm: The largest norm that a group may have, above 0.
    """
    if not accelerator.sync_gradients:
        return []
    accelerator.unscale_gradients(optimizer)
    return clip_groups_(unwrap(optimizer), max_norm)


def log_telemetry(
    accelerator: Any, optimizer: Optimizer, step: int, *, every: int = 100
) -> dict[str, float]:
    """Send the telemetry of every so many steps to `accelerator.log`; returns what was sent.

    Call it after each step of the optimizer, with the number of steps taken so far:

        optimizer.step()
        step += 1
        log_telemetry(accelerator, optimizer, step)

    The step that is sent is recorded, and no other one is: this sets `telemetry_every`. A matrix
    that took no step in it, for want of a finite gradient, keeps the numbers of its last one. All
    processes must call this, because matrices that they share are recorded by their owners.

    Args:
        accelerator: The `Accelerator`, made with `log_with=`.
        optimizer: What its `prepare` returned, with an optimizer of this library inside.
        step: How many steps have been taken. During accumulation it stays the same.
        every: Send the steps that this number divides, above 0.
    """
    check_every(every)
    ours = unwrap(optimizer)
    due = accelerator.sync_gradients and step % every == 0
    rows = finite_scalars(ours.telemetry()) if due else {}
    ours.telemetry_every = int((step + 1) % every == 0)
    if rows:
        accelerator.log(rows, step=step)
    return rows
