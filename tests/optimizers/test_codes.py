"""`state_dtype="int8"`: M and V in one byte a number, for every optimizer."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deva_optim.core.codes import decode
from helpers import (
    SHAPES,
    advance,
    build,
    clones,
    descend,
    every,
    gradients,
    losses,
    parameters,
    same,
    tensors,
)


def kept(optimizer: Optimizer, param: Tensor) -> dict[str, torch.dtype]:
    return {key: x.dtype for key, x in optimizer.state[param].items() if key != "step"}


@every
def test_it_trains(name: str) -> None:
    params = parameters(*SHAPES)
    targets = [torch.randn_like(p) for p in params]
    optimizer = build(name, params, lr=0.03, weight_decay=0.0, state_dtype="int8")
    before = losses(params, targets)
    descend(optimizer, params, targets, steps=10)
    assert (losses(params, targets) < before).all()


@every
def test_what_is_kept_in_which_dtype(name: str) -> None:
    params = parameters((6, 8), (2, 3, 4), (5,))
    optimizer: Any = build(name, params, state_dtype="int8")
    advance(optimizer, params, gradients(params, 3))
    for reading in optimizer.readings()[:2]:
        dtypes = kept(optimizer, reading.param)
        rotated = reading.method.rotated  # an M that is in the basis keeps its precision
        assert dtypes["exp_avg"] == (torch.float32 if rotated else torch.int8)
        assert ("exp_avg_scale" in dtypes) != rotated
        assert dtypes.get("exp_avg_sq", torch.uint8) == torch.uint8
        for key, dtype in dtypes.items():
            if key.startswith("basis"):
                assert dtype == torch.bfloat16
            if key.startswith(("covariance", "root", "exp_avg_rows", "exp_avg_cols", "iterate")):
                assert dtype == torch.float32
    assert kept(optimizer, params[2])["exp_avg"] == torch.float32  # a vector


@every
def test_momentum_is_rounded_and_no_more(name: str) -> None:
    params = parameters((4, 4), (3, 5), (3, 5), (2, 300))
    history = gradients(params, 4)
    ours, theirs = build(name, clones(params), state_dtype="int8"), build(name, clones(params))
    for optimizer in (ours, theirs):
        advance(optimizer, optimizer.param_groups[0]["params"], history)
    pairs = zip(ours.state.values(), theirs.state.values(), strict=True)
    for narrow, wide in pairs:
        if narrow["exp_avg"].dtype == torch.int8:
            M = decode(narrow, "exp_avg", torch.float32)
            # The largest distance of two codes is 0.9 / 64 of the largest number of a block; each
            # of four steps rounds by half of that. The errors of those before the last have
            # decayed, which is the margin.
            atol = 4 * 0.9 / 64 / 2 * wide["exp_avg"].abs().max()
            assert ((M - wide["exp_avg"]).abs() <= atol).all()


@pytest.mark.parametrize("options", [{}, {"split": 2}, {"split": (2, 6)}], ids=str)
@pytest.mark.parametrize("name", ["deva-sinf", "muon", "soap", "adamuon"])
def test_parts_and_batches_share_nothing(name: str, options: dict[str, Any]) -> None:
    """Rows are the blocks of parts: one parameter at a time or stacked, the codes are the same."""
    start = parameters((8, 6), (8, 6), dtype=torch.float64)
    history = gradients(start, 5)
    found = []
    for foreach in (None, False):
        params = clones(start)
        optimizer = build(name, params, state_dtype="int8", foreach=foreach, **options)
        advance(optimizer, params, history)
        found.append([p.detach() for p in params])
    # Stacked products may round otherwise, which can turn a code at a tie; nothing else may differ.
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() < 1e-2


@every
def test_a_gradient_that_is_not_finite_changes_nothing(name: str) -> None:
    params = parameters((4, 6), (2, 3, 4), (5,))
    optimizer = build(name, params, state_dtype="int8")
    advance(optimizer, params, gradients(params, 3))
    before, weights = tensors(optimizer), [p.detach().clone() for p in params]
    with pytest.warns(RuntimeWarning, match="not finite"):
        advance(optimizer, params, [[torch.full_like(p, torch.nan) for p in params]])
    same(tensors(optimizer), before)
    same([p.detach() for p in params], weights)


def test_units_change_the_scales_alone() -> None:
    """A gradient that is too large for its units raises them: the codes of M stay."""
    weight = nn.Parameter(torch.randn(4, 300))
    optimizer = build("muon", [weight], state_dtype="int8", betas=(0.9, 0.99))
    advance(optimizer, [weight], [[1e-12 * torch.randn(4, 300)]])
    state = optimizer.state[weight]
    assert int(state["exponent"]) != 0
    M = decode(state, "exp_avg", torch.float32)
    assert M.isfinite().all()
    advance(optimizer, [weight], [[1e20 * torch.randn(4, 300)]])
    assert decode(state, "exp_avg", torch.float32).isfinite().all()
    assert weight.isfinite().all()


def test_the_state_takes_a_quarter() -> None:
    def size(optimizer: Optimizer) -> int:
        return sum(x.nbytes for s in optimizer.state.values() for x in s.values())

    for name, states in (("adamw", 2), ("muon", 1), ("adamuon", 2)):
        params = parameters((256, 512))
        narrow = build(name, params, state_dtype="int8")
        advance(narrow, params, gradients(params, 1))
        small = 256 * 512 * (1 + 4 / 256) * states
        assert small <= size(narrow) <= small + 100  # counts of steps, units
