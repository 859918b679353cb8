"""States in one byte a number: codes, and a scale for each block of them.

    code    the number of an entry of a table; M has int8, whose sign is that of the number, and V,
            which is never negative, uint8
    table   0 and, for each power of ten below 1, numbers at equal distances, of each power half as
            many as of the one above: seven powers with 64 to 1 numbers for M, eight with 128 to 1
            for V. So numbers of very different sizes have codes, large ones the finer ones.
    scale   the largest absolute value of a block, in float32

A block is 256 numbers of one row, where a row is all that has the same index in the first
dimension: shards of rows have blocks of their own. What is decoded is encoded as it was, bit for
bit. The tables follow the idea of Dettmers et al. 2022, 8-bit Optimizers via Block-wise
Quantization.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK: Final = 256
"""How many numbers share a scale."""

CODED: Final = {"exp_avg": torch.int8, "exp_avg_sq": torch.uint8}
"""The states that can be kept as codes."""

CODES: Final = frozenset(CODED.values())
"""The dtypes of codes."""

PRECISION: Final = 2.0**-6
"""How far a code is from the number that it stands for, relative to the large ones of a block."""

SCALE: Final = "_scale"
"""What the name of the scales of a state ends in."""

# The products of a scale and the numbers of the tables are normal floats. A block that has no
# number as large as this is zero.
_SMALLEST: Final = 2.0**-100


def zero_codes(like: Tensor, key: str) -> dict[str, Tensor]:
    """Codes and scales of a state that is zero, of the shape of `like`."""
    rows, *row = like.shape
    codes = like.new_zeros(like.shape, dtype=CODED[key])
    scale = like.new_zeros((rows, -(-math.prod(row) // BLOCK)), dtype=torch.float32)
    return {key: codes, key + SCALE: scale}


def encode_(state: dict[str, Any], key: str, X: Tensor) -> None:
    """Keep X as the nearest codes; of V what is not zero stays so, since it is divided by."""
    codes, scale, rows = state[key], state[key + SCALE], X.flatten(1)
    padded = pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.reshape(*scale.shape, BLOCK)
    largest = blocks.abs().amax(-1).clamp_max(torch.finfo(torch.float32).max)
    scale.copy_(torch.where(largest < _SMALLEST, 0, largest))
    shares = (rows / _spread(torch.where(scale == 0, torch.inf, scale), rows)).float().flatten()
    sizes, tables = shares.abs(), _tables(codes.dtype, X.device)
    bins = sizes.view(torch.int32).bitwise_right_shift(_BITS).sub_(_FIRST).clamp_(0, _BINS - 1)
    above = sizes > tables.bound.index_select(0, bins)
    found = tables.code.index_select(0, bins).add_(above).copysign_(shares)
    codes.copy_(found.view_as(codes))


def decode(state: dict[str, Any], key: str, dtype: torch.dtype) -> Tensor:
    """The numbers that are kept as codes."""
    codes, scale = state[key], state[key + SCALE]
    numbers = _tables(codes.dtype, codes.device).number
    index = codes.flatten().int()
    if codes.dtype == torch.int8:
        index += len(numbers) // 2
    rows = numbers.index_select(0, index).view_as(codes).flatten(1).to(dtype)
    return rows.mul_(_spread(scale, rows)).view(codes.shape)


def _spread(scale: Tensor, rows: Tensor) -> Tensor:
    """The scale of each number, broadcast over the rows if they have one block."""
    if scale.shape[1] == 1:
        return scale
    return scale.repeat_interleave(BLOCK, 1)[:, : rows.shape[1]]


# On a CPU a search among the codes takes ten times as long as all the rest. The upper bits of a
# float32 say in which bin it lies; a bin is 2⁻⁸ of its numbers wide, less than the distance of two
# codes, so that there is one bound in it at the most. The first bin has all below 2⁻²⁵.
_BITS: Final = 15
_FIRST: Final = (127 - 25) << 8
_BINS: Final = (25 << 8) + 1


class _Tables(NamedTuple):
    """The numbers of all codes, in their order, and for each bin where to look.

    Attributes:
        number: Of each code.
        code: The code of the smallest number of each bin.
        bound: What is above it has the next code.
    """

    number: Tensor
    code: Tensor
    bound: Tensor


@cache
def _tables(dtype: torch.dtype, device: torch.device) -> _Tables:
    powers = 7 if dtype == torch.int8 else 8
    positive = [
        10.0**-power * (0.1 + 0.9 * i / count)
        for power in reversed(range(powers))
        for count in [2 ** (powers - 1 - power)]
        for i in range(1, count + 1)
    ]
    numbers = torch.tensor([0.0, *positive], dtype=torch.float64, device="cpu")
    bounds = ((numbers[1:] + numbers[:-1]) / 2).float()
    if dtype == torch.uint8:
        bounds[0] = 0.0  # the first code is for zero alone
    bins = torch.arange(_FIRST, _FIRST + _BINS, dtype=torch.int32, device="cpu")
    smallest = bins.bitwise_left_shift(_BITS).view(torch.float32).clone()
    smallest[0] = 0.0
    code = torch.bucketize(smallest, bounds)
    bound = torch.cat((bounds, bounds.new_tensor([torch.inf])))[code]
    if dtype == torch.int8:
        numbers = torch.cat((-numbers[1:].flip(0), numbers))
    return _Tables(numbers.float().to(device), code.float().to(device), bound.to(device))
