"""The learning rate over a run: a schedule that any optimizer of torch can have."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class Trapezoid:
    """What multiplies the learning rate in a step: a line to one, a constant, a line to zero.

    Attributes:
        steps: Those of the run; from there on the factor is zero.
        warmup: The share of the steps in which it rises.
        decay: The share of the steps, the last ones, in which it falls.

    >>> [Trapezoid(steps=10, warmup=0.2, decay=0.4)(step) for step in (0, 1, 5, 7, 9, 10)]
    [0.5, 1.0, 1.0, 0.75, 0.25, 0.0]
    """

    steps: int
    warmup: float = 0.0
    decay: float = 0.4

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps!r}")
        for name, share in (("warmup", self.warmup), ("decay", self.decay)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must be a share of the steps, 0 to 1, got {share!r}")

    def __call__(self, step: int) -> float:
        """The factor of a step; the first is step 0."""
        rise = (step + 1) / max(1.0, self.warmup * self.steps)
        fall = (self.steps - step) / max(1.0, self.decay * self.steps)
        return max(0.0, min(1.0, rise, fall))


def trapezoid(
    optimizer: Optimizer,
    steps: int,
    *,
    warmup: float = 0.0,
    decay: float = 0.4,
    last_epoch: int = -1,
) -> LambdaLR:
    """A scheduler of torch that gives every group its learning rate times a `Trapezoid`.

    Args:
        optimizer: Any optimizer of torch.
        steps: Those of the run. Call the scheduler's `step()` after each `optimizer.step()`.
        warmup: The share of the steps in which the rate rises to its value, along a line.
        decay: The share of the steps, the last ones, in which it falls to zero.
        last_epoch: Where to go on, as for any scheduler of torch; −1 is the start.

    >>> import torch
    >>> from deva_optim import DeVA, trapezoid
    >>> optimizer = DeVA(torch.nn.Linear(2, 2), lr=0.01)
    >>> schedule = trapezoid(optimizer, steps=1000, decay=0.4)
    >>> schedule.get_last_lr()
    [0.01, 0.01]
    """
    return LambdaLR(optimizer, Trapezoid(steps, warmup, decay), last_epoch)
