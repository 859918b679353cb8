"""DeVA-S∞ with the bias correction of its authors: how it differs, alone and on several ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing import assert_close

from deva_lab.run.entrants import AuthorsDeVASinf
from deva_optim import DeVASinf
from ranks import run


def steps(optimizer, grads: list[torch.Tensor], **settings) -> list[torch.Tensor]:
    p = torch.nn.Parameter(torch.zeros_like(grads[0]))
    stepper = optimizer([p], lr=0.1, weight_decay=0.0, msign="svd", eps=0.0, **settings)
    found = []
    for G in grads:
        before = p.detach().clone()
        p.grad = G.clone()
        stepper.step()
        found.append(p.detach() - before)
    return found


# The two take the same sign of the same matrices; a correction is a few operations of float64, up
# to ten times as large, and a step is a difference of weights below 4, rounded before. The margin
# is 16.
ROUNDING = 16 * 10 * 4 * 2**-53


def test_the_authors_correction_differs_by_a_known_factor():
    beta1, beta2 = 0.9, 0.8
    grads = [torch.randn(4, 4, dtype=torch.float64) for _ in range(6)]
    ours = steps(DeVASinf, grads, betas=(beta1, beta2, 0.95))
    theirs = steps(AuthorsDeVASinf, grads, betas=(beta1, beta2, 0.95))
    w = 0.0
    for t, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1):
        w = beta2 * w + (1 - beta2) * (1 - beta1**t) ** 2
        factor = ((1 - beta2**t) / w) ** 0.5
        torch.testing.assert_close(b, factor * a, rtol=0, atol=ROUNDING)
    assert ((1 - beta2) / ((1 - beta2) * (1 - beta1) ** 2)) ** 0.5 == pytest.approx(10)


def test_the_authors_count_steps_without_a_gradient():
    zero, G = torch.zeros(3, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    _, ours = steps(DeVASinf, [zero, G])
    _, theirs = steps(AuthorsDeVASinf, [zero, G])
    # κ of the second step, over the exact one of a first: √(1 − β₂²)/(1 − β₁²) against 1 / √w,
    # where M is (1 − β₁) G and V (1 − β₂) of its square.
    expected = (1 - 0.95**2) ** 0.5 / (1 - 0.95**2) / (1 - 0.95) ** 0.5
    torch.testing.assert_close(theirs, expected * ours, rtol=0, atol=ROUNDING)


# Several ranks -----------------------------------------------------------------------------------

# Two of one shape, so that each of two ranks owns one of them, a stack and a vector.
SHAPES = ((4, 6), (4, 6), (3, 4, 5), (7,))


def trajectory(
    optimizer: type[DeVASinf], process_group: dist.ProcessGroup | None = None
) -> list[list[Tensor]]:
    """The weights after each of six steps, one parameter at a time."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    settings = {"refresh_every": 2, "rest": "adamw", "foreach": False}
    stepper = optimizer(params, lr=0.01, process_group=process_group, **settings)
    found = []
    for _ in range(6):
        for p in params:
            p.grad = torch.randn_like(p)
        stepper.step()
        found.append([p.detach().clone() for p in params])
    return found


def on_a_rank() -> list[list[Tensor]]:
    return trajectory(AuthorsDeVASinf, dist.group.WORLD)


def test_ranks_together_take_the_step_of_the_authors() -> None:
    """A class brings its own table of methods, and whoever owns a matrix looks it up there."""
    theirs, exact = trajectory(AuthorsDeVASinf), trajectory(DeVASinf)
    for ours in run(2, on_a_rank):
        assert_close(ours, theirs, rtol=0, atol=0)  # the arithmetic is the same
        for at, other in zip(ours, exact, strict=True):
            assert not any(torch.equal(X, Y) for X, Y in zip(at[:3], other[:3], strict=True))
