"""bfloat16 on the wire: less is sent, copies stay the same, and little is lost."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import deva_optim as do
from ranks import run

from .sharding import OPTIONS, advance, alone, packed, past, shared, weights, whole

NAMES = ("deva", "muon", "splus", "soap")
MATRICES = ((7, 5), (5, 7), (3, 4), (3, 5, 4), (4, 2, 3, 3))
SHORT: dict[str, Any] = {"foreach": False, "sides": "short"}


def trained(
    name: str, layout: str, start: list[Tensor], **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """The weights in the end: whole, and what this rank has of them."""
    params, optimizer, lay = shared(name, start, layout, wire_dtype=torch.bfloat16, **options)
    advance(params, optimizer, lay, past(start))
    assert all(p.dtype == start[0].dtype for p in params)
    assert all(x.dtype != torch.bfloat16 for s in optimizer.state.values() for x in s.values())
    return whole(params), [p.detach() for p in params]


def rounded(dtype: torch.dtype, layouts: tuple[str, ...]) -> dict[tuple[str, str], list[Tensor]]:
    return {
        (name, layout): trained(name, layout, weights(MATRICES, dtype), **SHORT)[0]
        for name in NAMES
        for layout in layouts
    }


@cache
def exact(name: str, dtype: torch.dtype) -> list[Tensor]:
    start = weights(MATRICES, dtype)
    return alone(name, start, past(start), **SHORT)


@pytest.mark.parametrize(
    ("size", "layouts"),
    [
        (2, ("rows", "ddp")),
        (4, ("hybrid", "columns")),
        pytest.param(2, ("packed",), marks=packed),
    ],
)
def test_the_trajectory_stays_close(size: int, layouts: tuple[str, ...]) -> None:
    start = weights(MATRICES)
    found = run(size, rounded, torch.float32, layouts)
    for (name, layout), ours in found[0].items():
        for X, Y, X0 in zip(ours, exact(name, torch.float32), start, strict=True):
            # A bfloat16 is off by 2⁻⁸ of itself at most, by 2⁻⁸ / √12 in the mean square. The way
            # from X0 to Y is made of updates, each rounded once and made of gradients rounded once,
            # with errors of either sign: 2⁻⁸ / √6, and √6 is the margin. SPlus takes signs: of the
            # share of 2⁻⁸ that is so near zero half may turn, each by 2 of 1, which is √(4 · 2⁻⁹) =
            # 2⁻³·⁵ of one step, and less of 25 that have other signs each.
            off = (X - Y).norm() / (Y - X0).norm()
            assert 0 < off < (2**-4 if name == "splus" else 2**-8), f"{name}, {layout}: {off}"
    for other in found[1:]:  # all ranks hold the same weights, bit for bit
        for case, ours in other.items():
            assert_close(ours, found[0][case], rtol=0, atol=0, msg=str(case))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_is_not_float32_travels_as_it_is(dtype: torch.dtype) -> None:
    for found in run(2, rounded, dtype, ("rows",)):
        for (name, _), ours in found.items():
            assert_close(ours, exact(name, dtype), rtol=0, atol=0, msg=name)


def small_updates() -> list[Tensor]:
    """Updates far below what bfloat16 could tell apart in the weights."""
    start = [1 + X.abs() for X in weights(MATRICES)]
    options = {**SHORT, "lr": OPTIONS["lr"] * 2**-12, "weight_decay": 0.0}
    ours, _ = trained("muon", "rows", start, **options)
    theirs = alone("muon", start, past(start), **options)
    return [(X - Y).norm() / (Y - X0).norm() for X, Y, X0 in zip(ours, theirs, start, strict=True)]


def test_small_updates_are_not_lost() -> None:
    """The weights themselves would be rounded by 2^-9, and an update of 2^-20 would vanish."""
    for found in run(2, small_updates):
        # As above, and float32 weights of order one round each of 25 steps by 2^-24 of themselves,
        # which is a sixteenth of an update.
        assert all(off < 0.1 for off in found)


@pytest.mark.parametrize("bad", [torch.float16, torch.float32, "bfloat16"])
def test_other_dtypes_are_refused(bad: Any) -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"wire_dtype must be torch.bfloat16, or None .* got"):
        do.Muon([weight], wire_dtype=bad)


def test_a_single_process_sends_nothing() -> None:
    start = weights(MATRICES)
    plain = alone("deva", start, past(start, 3))
    wired = alone("deva", start, past(start, 3), wire_dtype=torch.bfloat16)
    assert_close(wired, plain, rtol=0, atol=0)
