"""Stochastic rounding: weights in half precision to which small updates are not lost.

bfloat16 has eight significant bits. Rounded to the nearest number, a weight stays where it is under
every update below 2⁻⁹ of it. Rounded up or down at random, up as often as it is near to the number
above, it is right on average: after many small updates it is where their sum would bring it.

The noise comes from a generator that is seeded anew for every rounding, by numbers that the host
has. So there is no state of a generator to save, the host does not wait for the device, torch's own
random numbers are left alone, and ranks that have copies of a weight round them alike.
"""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor

# Over so many roundings the noise of a number is moved on by the golden ratio in place of being
# drawn: then it goes evenly through its range, and the errors of similar updates cancel better than
# by chance. It is drawn anew after that, because a gradient of a period might go along with it.
_RUN: Final = 64
_GOLDEN: Final = 40503  # of 2¹⁶; odd, so that no value comes twice


def round_stochastically(X: Tensor, dtype: torch.dtype, count: int, *place: int) -> Tensor:
    """X, in float32, as one of the two numbers of a half-precision dtype beside it, X on average.

    What the dtype holds stays as it is, and what is beyond its largest number becomes that.

    Args:
        X: What is rounded.
        dtype: bfloat16 or float16.
        count: How often it has been rounded before.
        place: What tells it from other tensors, which have other noise.
    """
    most = torch.finfo(dtype).max
    X, noise = X.clamp(-most, most), _noise(X, count, place)
    if dtype == torch.bfloat16:
        # It is the upper half of float32: what is added to the lower half is carried, or cut off.
        # An addition to the bits of NaN could make a number of them; X − X is NaN again.
        bits = noise.to(torch.int32).add_(X.view(torch.int32)).add_(2**15).bitwise_and_(-(2**16))
        return bits.view(torch.float32).sub_(X - X).to(dtype)
    step = _spacing(X, dtype)
    steps = X.abs().div_(step)
    below = steps.floor()
    above = noise.to(torch.float32).add_(2**15).mul_(2**-16) < steps.sub_(below)
    return below.add_(above).mul_(step).copysign_(X).to(dtype)


def _noise(X: Tensor, count: int, place: tuple[int, ...]) -> Tensor:
    """A whole number of [−2¹⁵, 2¹⁵) for each number of X, in the order of its dimensions."""
    # Four of them are drawn at once, which takes a fifth of the time on a CPU.
    words = torch.empty(-(-X.numel() // 4), dtype=torch.int64, device=X.device)
    generator = None  # the meta device has none
    if not X.is_meta:
        generator = torch.Generator(X.device).manual_seed(_seed(*place, count // _RUN))
    words.random_(-(2**63), None, generator=generator)
    shift = (count % _RUN * _GOLDEN + 2**15) % 2**16 - 2**15  # a sum beyond the range comes round
    return words.view(torch.int16)[: X.numel()].view(X.shape).add_(shift)


def _seed(*numbers: int) -> int:
    """A seed that the numbers determine; those of other numbers have nothing in common with it."""
    # torch's generator of the CPU takes the lower 32 bits of a seed alone, so that these must do.
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _spacing(X: Tensor, dtype: torch.dtype) -> Tensor:
    """How far the numbers of a dtype are apart where X is: a power of two."""
    info = torch.finfo(dtype)
    power = X.view(torch.int32).bitwise_and(0x7F800000).view(torch.float32)  # 2^⌊log₂ |X|⌋
    return power.clamp_min_(info.tiny).mul_(info.eps)
