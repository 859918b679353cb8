"""Clipping by group; over several ranks in `distributed/test_models.py`."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import deva_optim as do
from helpers import OPTIONS, close


def model() -> tuple[do.DeVA, list[nn.Parameter]]:
    params = [
        nn.Parameter(torch.randn(4, 4)),
        nn.Parameter(torch.randn(3, 5)),
        nn.Parameter(torch.randn(7)),
    ]
    for p in params:
        p.grad = torch.randn_like(p)
    groups = [{"params": params[:2], "role": "matrix"}, {"params": params[2:], "role": "vector"}]
    return do.DeVA(groups), params


def unit(X: torch.Tensor) -> torch.Tensor:
    return X / X.norm()


def test_each_group_is_clipped_by_its_own_norm() -> None:
    optimizer, params = model()
    params[0].grad *= 1e6  # a spike in a matrix
    before = [p.grad.clone() for p in params]
    expected = [
        float(torch.stack([g.norm() for g in gs]).norm()) for gs in (before[:2], before[2:])
    ]
    found = do.clip_grad_norm_(optimizer, 2.0)
    # A sum of n squares is off by n · 2⁻²⁴ in whatever order, and the norm by half of that.
    assert found == pytest.approx(expected, rel=31 * 2**-24)
    for p, g, norm in zip(params, before, (found[0], found[0], found[1]), strict=True):
        assert_close(p.grad, g * min(1.0, 2.0 / norm))


def test_small_gradients_are_left_alone() -> None:
    optimizer, params = model()
    before = [p.grad.clone() for p in params]
    do.clip_grad_norm_(optimizer, 1e3)
    assert_close([p.grad for p in params], before, rtol=0, atol=0)


def test_a_bad_gradient_costs_the_others_nothing() -> None:
    optimizer, params = model()
    params[0].grad[0, 0] = float("inf")
    params[2].grad = None
    before = params[1].grad.clone()
    found = do.clip_grad_norm_(optimizer, 0.5)
    assert found == pytest.approx([float(before.norm()), 0.0], rel=15 * 2**-24)  # as above
    assert_close(params[1].grad, before * 0.5 / before.norm())
    assert params[0].grad.isinf().sum() == 1


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="needs torch 2.9")
def test_a_gradient_in_double_precision_is_clipped_as_any_other() -> None:
    weight, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(1))
    weight.grad_dtype = None  # any
    weight.grad, other.grad = torch.full((3,), 2.0).double(), torch.full((1,), 2.0)
    assert do.clip_grad_norm_(do.AdamW([weight, other]), 1.0) == pytest.approx([4.0])
    assert_close(weight.grad, torch.full((3,), 0.5).double())
    assert_close(other.grad, torch.full((1,), 0.5))


def test_a_sparse_gradient_is_refused() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="gradient of weight is sparse .* sparse=False"):
        do.clip_grad_norm_(do.DeVA(table), 1.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_the_norm_must_be_positive(bad: float) -> None:
    with pytest.raises(ValueError, match="max_norm must be above 0, got"):
        do.clip_grad_norm_(model()[0], bad)


@pytest.mark.parametrize("other", [torch.optim.AdamW([torch.ones(2)]), [torch.ones(2)]])
def test_what_is_no_optimizer_of_ours_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match="must be one of deva_optim, got a (AdamW|list)"):
        do.clip_grad_norm_(other, 1.0)


@pytest.mark.parametrize(
    "optimizer",
    [partial(do.DeVASinf, sides="short"), do.Muon, do.DeVALinf],
    ids=["deva", "muon", "linf"],
)
def test_a_constant_factor_changes_no_scale_invariant_update(optimizer: Any) -> None:
    start, ends = torch.randn(4, 6, dtype=torch.float64), []
    directions = [unit(torch.randn_like(start)) for _ in range(6)]
    for clip in (False, True):
        p = nn.Parameter(start.clone())
        ours = optimizer([p], lr=OPTIONS["lr"])
        for g in directions:
            p.grad = 8 * g
            if clip:
                do.clip_grad_norm_(ours, 0.5)  # always by 1/16
            ours.step()
        ends.append(p.detach())
    close(*ends)  # the norm rounds, and so does the factor: six steps
