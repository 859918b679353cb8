"""Units: the power of two that a matrix is measured in, so that every square is a normal float.

float32 holds a gradient of 1e-30, but not its square, which V and the covariances are made of. So
a step works on G / 2^e, and the state is kept in these units: M over 2^e, V and the covariances
over 4^e. The first gradient of a matrix chooses its exponent e; a later one that is too large for
it raises it. Products with powers of two are exact, so that no update depends on e. It is 0 where
the norm of the first gradient lies between 4e-9 and 3e8 and none is above 1e15.

    size  the Frobenius norm of a gradient; below the smallest normal number it counts as zero
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from .codes import CODES, decode, encode_
from .linalg import ORDINARY, constants, matrix_norms, over
from .matrices import PARAMETER_SHAPED, Part
from .variance import MOMENTS

UNSET: Final = -(2**31)
"""The exponent of a matrix that has had no gradient yet."""

# Exponents are multiples of these: sizes in units lie within 2^±28 (2^±224), their squares, and
# the squares of the covariances that a QR takes, far inside the range.
_STEP: Final = {torch.float32: 56, torch.float64: 448}
_LARGEST: Final = {torch.float32: 112, torch.float64: 896}  # 2^±112 reaches every normal float32

# The power of the unit that each state is measured in; all others have none.
_POWERS: Final = {
    "exp_avg": 1,
    "exp_avg_rows": 1,
    "exp_avg_cols": 1,
    "exp_avg_sq": 2,
    "variance_short": 2,
    "variance_long": 2,
    "covariance_left": 2,
    "covariance_right": 2,
}

LARGEST_SIZE: Final = {dtype: high for dtype, (_, high) in ORDINARY.items()}
"""The size, in units, from which on squares come near the end of the range."""


def exponents_of(sizes: Tensor, dtype: torch.dtype, kept: torch.dtype) -> Tensor:
    """The exponents for sizes of what is computed in one dtype and kept in another.

    UNSET for those that count as zero or are not finite.
    """
    step, most = _STEP[kept], _LARGEST[dtype]
    usable = (sizes >= torch.finfo(dtype).tiny) & sizes.isfinite()
    found = torch.where(usable, sizes, 1).log2().div_(step).round_().mul_(step)
    return torch.where(usable, found.clamp_(-most, most).long(), UNSET)


def in_units(X: Tensor) -> Tensor:
    """Each matrix of X over its power of two; X is not changed."""
    sizes = matrix_norms(X, keepdim=True)
    exponents = exponents_of(sizes.clamp_min(torch.finfo(X.dtype).tiny), X.dtype, X.dtype)
    return X * torch.exp2(-exponents.to(X.dtype))


def as_units(exponents: Tensor, like: Tensor) -> Tensor:
    """2^e, and 1 where there is no exponent yet; the exponents are on the host."""
    units = tuple(1.0 if e == UNSET else 2.0**e for e in exponents.flatten().tolist())
    return constants(units, like.dtype, like.device).view(exponents.shape)


def is_scaled(exponents: Tensor) -> bool:
    """Whether any of the units is another than 1."""
    return not {0, UNSET}.issuperset(exponents.flatten().tolist())


def rescale_(
    state: dict[str, Any], part: Part, suffix: str, change: Tensor, *, variance: bool
) -> None:
    """Bring the state of a part to other units; `change` is the old exponent less the new one.

    `variance` says whether the second moments are those of gradients; a direction has no unit.
    """
    for key, power in _POWERS.items():
        if key in MOMENTS and not variance:
            continue
        coded = key in state and state[key].dtype in CODES
        whole = decode(state, key, torch.float32) if coded else state.get(key)
        if key in PARAMETER_SHAPED and whole is not None:
            X = part.fold(whole)
        elif key + suffix in state:
            X = state[key + suffix]
        else:
            continue
        factor = torch.exp2((power * change).float()).to(X.dtype)
        X.mul_(over(factor, X))
        if coded and whole is not None:
            encode_(state, key, whole)
