"""Stochastic rounding: right on average, exact where it can be, and the same for the same place."""

import pytest
import torch
from torch import Tensor

from deva_optim.core.linalg import HALF
from deva_optim.core.rounding import round_stochastically

halves = pytest.mark.parametrize("dtype", HALF, ids=str)


def all_of(dtype: torch.dtype) -> Tensor:
    """Every number of a dtype that has two bytes, in float32."""
    X = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    return X[X.isfinite()]


def between(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of all sizes, and the two of the dtype beside each of them."""
    every = all_of(dtype).double().unique()
    at = torch.randint(len(every) - 1, (count,))
    low, high = every[at], every[at + 1]
    X = (low + torch.rand(count, dtype=torch.float64) * (high - low)).float()
    inside = (low < X) & (high > X)  # beside the smallest ones float32 may round to one of them
    return X[inside], low[inside], high[inside]


@halves
def test_what_the_dtype_holds_stays(dtype: torch.dtype) -> None:
    X = all_of(dtype)
    for count in range(5):
        found = round_stochastically(X, dtype, count)
        assert torch.equal(found.view(torch.int16), X.to(dtype).view(torch.int16))  # −0, too


@halves
def test_what_is_between_two_numbers_becomes_one_of_them_and_is_right_on_average(
    dtype: torch.dtype,
) -> None:
    X, low, high = between(dtype, 2000)
    draws = 2000
    share = torch.zeros_like(low)
    for place in range(draws):
        found = round_stochastically(X, dtype, 0, place).double()
        assert ((found == low) | (found == high)).all()
        share += (found == high).double() / draws
    # Of a share p of independent draws the standard deviation is √(p (1 − p) / draws), and of 2000
    # numbers the largest is 4 of them off. 16 bits of noise give shares that are whole 2⁻¹⁶.
    p = (X.double() - low) / (high - low)
    assert ((share - p).abs() <= 6 * (p * (1 - p) / draws).sqrt() + 2**-16 + 2 / draws).all()


@halves
def test_finite_stays_finite_and_nan_stays_nan(dtype: torch.dtype) -> None:
    most = torch.finfo(torch.float32).max
    limit = torch.finfo(dtype).max
    large = torch.tensor([most, -most, limit, -limit]).repeat(100)
    found = round_stochastically(large, dtype, 0).float()
    assert torch.equal(found, large.clamp(-limit, limit))
    bits = torch.tensor([0x7FFFFFFF, 0x7FC00000, -1, 0x7F800001], dtype=torch.int32).repeat(100)
    assert round_stochastically(bits.view(torch.float32), dtype, 0).isnan().all()


@halves
def test_noise_is_of_its_place_and_count_alone(dtype: torch.dtype) -> None:
    X = torch.randn(50, 40)
    before = torch.get_rng_state()
    found = round_stochastically(X, dtype, 7, 1, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(found, round_stochastically(X, dtype, 7, 1, 2))
    assert torch.equal(found, round_stochastically(X.T.contiguous().T, dtype, 7, 1, 2))
    for other in ((8, 1, 2), (7 + 64, 1, 2), (7, 2, 2), (7, 1, 3)):
        apart = (round_stochastically(X, dtype, *other) != found).float().mean()
        assert apart > 0.2  # of two independent draws 2 p (1 − p), in the mean 1/3


@halves
def test_the_noise_of_a_run_is_even(dtype: torch.dtype) -> None:
    unit = torch.finfo(dtype).eps
    for p in (1 / 64, 0.1, 0.5, 0.9):
        X = torch.full((1000,), 1 + p * unit)
        up = sum((round_stochastically(X, dtype, count) > 1).double() for count in range(64))
        # 64 is the sum of three Fibonacci numbers. So many turns by the golden ratio in a row visit
        # an arc as often as its length says, but for less than two. Chance would be 4 off at ½.
        assert ((up - 64 * p).abs() < 3 * 2).all()


def test_nothing_to_round() -> None:
    assert round_stochastically(torch.empty(0, 3), torch.bfloat16, 0).shape == (0, 3)
    assert round_stochastically(torch.tensor(1.5), torch.bfloat16, 0) == 1.5
