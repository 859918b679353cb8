"""States in one byte a number: what a code is off by, and what it never does."""

import math

import pytest
import torch
from torch import Tensor

from deva_optim.core.codes import BLOCK, CODED, SCALE, decode, encode_, zero_codes

SHAPES = ((3, 4), (5, 700), (1, 256), (2, 257), (2, 3, 200), (4, 2, 3, 3), (4, 1), (1, 1), (0, 5))
keys = pytest.mark.parametrize("key", CODED)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def state_of(X: Tensor, key: str) -> dict[str, Tensor]:
    state = zero_codes(X, key)
    encode_(state, key, X)
    return state


def numbers(shape: tuple[int, ...], key: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers over ten powers of ten."""
    X = torch.randn(shape, dtype=dtype) * 10 ** torch.empty(shape, dtype=dtype).uniform_(-10, 0)
    return X.square() if key == "exp_avg_sq" else X


def largest(X: Tensor) -> Tensor:
    """The largest absolute value of the block of each number, found one by one."""
    found = torch.zeros(X.flatten(1).shape, dtype=X.dtype)
    for row, out in zip(X.flatten(1), found, strict=True):
        for block, place in zip(row.split(BLOCK), out.split(BLOCK), strict=True):
            place.fill_(block.abs().max())
    return found.view(X.shape)


@shapes
@keys
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_code_is_near_its_number(shape: tuple[int, ...], key: str, dtype: torch.dtype) -> None:
    X = numbers(shape, key, dtype)
    found = decode(state_of(X, key), key, dtype)
    assert found.dtype == dtype
    assert found.shape == X.shape
    if not X.numel():
        return
    # Between 10^(−p−1) and 10^−p of the largest, numbers are 0.9 · 10^−p / 2^(powers − 1 − p)
    # apart, and the nearest is at most half as far. Below the last code, which is that of the last
    # power, numbers become zero or that code. Rounding is 2⁻²² of a number, of scale and product.
    powers = 7 if key == "exp_avg" else 8
    most = largest(X)
    p = (-(X.abs() / most).log10()).floor().clamp(0, powers)
    apart = 0.9 * 10**-p / 2 ** (powers - 1 - p)
    last = p >= powers - 1
    bound = most * torch.where(last, 10.0 ** (1 - powers), apart / 2) + 2**-22 * torch.maximum(
        X.abs(), found.abs()
    )
    assert ((found - X).abs() <= bound).all()


@keys
def test_a_code_is_the_nearest_one(key: str) -> None:
    """A search among all codes finds no nearer one, not even beside the bounds between them."""
    dtype = CODED[key]
    codes = torch.arange(-127, 128) if dtype == torch.int8 else torch.arange(256)
    scale = torch.ones(1, 1)
    table = decode({key: codes.to(dtype)[None], key + SCALE: scale}, key, torch.float32)[0]
    bounds = (table[1:] + table[:-1]) / 2
    near = [x for bound in (-bounds, bounds) for x in (bound, bound * (1 - 2**-20))]
    X = torch.cat([*near, table, numbers((1, 10_000), key)[0]]).clamp(table[0], 1).unique()
    X = torch.cat([row for x in X.split(BLOCK - 1) for row in (torch.ones(1), x)])
    found = decode(state_of(X[None], key), key, torch.float32)[0]
    off = (X[:, None] - table[None]).abs().amin(1)
    kept = torch.ones_like(X, dtype=torch.bool) if dtype == torch.int8 else table[1] < X
    assert ((found - X).abs() <= off + 2**-22 * X.abs())[kept].all()


@shapes
@keys
def test_what_is_decoded_is_encoded_as_it_was(shape: tuple[int, ...], key: str) -> None:
    for size in (1e-29, 1.0, 1e30):
        state = state_of(size * numbers(shape, key).clamp(-1e6, 1e6), key)
        again = state_of(decode(state, key, torch.float32), key)
        for name, x in state.items():
            assert torch.equal(again[name], x)


@keys
def test_a_state_starts_from_zero_and_may_be_zero_again(key: str) -> None:
    state = zero_codes(torch.empty(3, 300), key)
    assert not decode(state, key, torch.float32).any()
    assert not any(x.any() for x in state.values())
    encode_(state, key, torch.ones(3, 300))
    encode_(state, key, torch.zeros(3, 300))
    assert not any(x.any() for x in state.values())


@keys
def test_extreme_numbers_stay_finite(key: str) -> None:
    info = torch.finfo(torch.float32)
    for size in (info.max, info.tiny, info.smallest_normal * 2**-20, 1e-45):
        X = size * torch.linspace(0, 1, 600).view(2, 300)
        found = decode(state_of(X, key), key, torch.float32)
        assert found.isfinite().all()
        assert (found.abs() <= X.abs().max()).all()


def test_of_a_variance_nothing_becomes_zero() -> None:
    V = torch.tensor([[1.0, 1e-6, 1e-9, 1e-20, 0.0]])
    found = decode(state_of(V, "exp_avg_sq"), "exp_avg_sq", torch.float32)
    assert torch.equal(found > 0, V > 0)


@keys
def test_a_power_of_two_changes_the_scales_alone(key: str) -> None:
    X = numbers((4, 600), key)
    one, other = state_of(X, key), state_of(X * 2**20, key)
    assert torch.equal(one[key], other[key])
    assert torch.equal(one[key + SCALE] * 2**20, other[key + SCALE])


@keys
def test_a_byte_a_number_and_four_a_block(key: str) -> None:
    for shape in ((8, 512), (8, 16, 32), (3, 5)):
        state = zero_codes(torch.empty(shape), key)
        row = math.prod(shape[1:])
        assert sum(x.nbytes for x in state.values()) == shape[0] * (row + 4 * -(-row // BLOCK))
