"""Units: the power of two that a matrix is measured in, so that every square is a normal float.

float32 holds a gradient of 1e-30, but not its square, which V and the covariances are made of. So
a step works on G / 2^e, and the state is kept in these units: M over 2^e, V and the covariances
over 4^e. The first gradient of a matrix chooses its exponent e; a later one that is too large for
it raises it. Products with powers of two are exact, so that no update depends on e. It is 0 where
the norm of the first gradient lies between 4e-9 and 3e8 and none is above 1e15.

    size  the Frobenius norm of a gradient; below the smallest normal number it counts as zero
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from .linalg import over
from .matrices import PARAMETER_SHAPED, Part
from .variance import DIRECTION

if TYPE_CHECKING:
    from .batch import Entry

UNSET: Final = -(2**31)
"""The exponent of a matrix that has had no gradient yet."""

# Exponents are multiples of these: sizes in units lie within 2^±28 (2^±224), their squares, and
# the squares of the covariances that a QR takes, far inside the range.
_STEP: Final = {torch.float32: 56, torch.float64: 448}
_LARGEST: Final = {torch.float32: 112, torch.float64: 896}  # 2^±112 reaches every normal float32

# Within these bounds a norm that was computed without care is right.
_ORDINARY: Final = {
    torch.float32: (2.0**-40, 2.0**50),
    torch.float64: (2.0**-400, 2.0**400),
}


def compute_dtype(X: Tensor) -> torch.dtype:
    """The precision of the computation: float64 for float64, float32 for everything else."""
    return torch.float64 if X.dtype == torch.float64 else torch.float32


def host_sees(device: torch.device) -> bool:
    """Whether the host may look at a value without waiting for the device."""
    return device.type == "cpu"


def scalar_dtype(device: torch.device) -> torch.dtype:
    """The precision of bias corrections and norms: float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


# Norms that neither underflow nor overflow ------------------------------------------------------


def norms(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The norm of each tensor, all of one device, in the precision of `scalar_dtype`."""
    device = tensors[0].device
    if not host_sees(device):
        wide = scalar_dtype(device)
        if wide == torch.float64:
            return torch.stack(list(torch._foreach_norm(tensors, 2, dtype=wide)))
        return torch.stack([_careful_norm(X.flatten(), (0,), False) for X in tensors])
    found = torch.stack(list(torch._foreach_norm(tensors, 2, dtype=dtype))).double()
    low, high = _ORDINARY[dtype]
    for i, size in enumerate(found.tolist()):
        if not low < size < high:
            found[i] = _careful_norm(tensors[i].flatten(), (0,), False)
    return found


def matrix_norms(X: Tensor, *, keepdim: bool = False) -> Tensor:
    """The Frobenius norm of each matrix of a batch, in the precision of `scalar_dtype`."""
    if host_sees(X.device):
        dtype = compute_dtype(X)
        norm: Tensor = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=keepdim, dtype=dtype)
        low, high = _ORDINARY[norm.dtype]
        least, most = norm.aminmax()
        if low < least.item() and most.item() < high:
            return norm.double()
    return _careful_norm(X, (-2, -1), keepdim)


def _careful_norm(X: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    wide, norm = scalar_dtype(X.device), torch.linalg.vector_norm
    if X.dtype != torch.float64 and wide == torch.float64:  # squares of float32 fit into float64
        found: Tensor = norm(X, dim=dim, keepdim=keepdim, dtype=wide)
        return found
    X = X.to(wide)
    top = norm(X, math.inf, dim=dim, keepdim=True).clamp_min(torch.finfo(wide).tiny)
    found = norm(X / top, dim=dim, keepdim=True) * top
    return found if keepdim else found.squeeze(dim)


# Exponents --------------------------------------------------------------------------------------


def exponents_of(sizes: Tensor, dtype: torch.dtype, kept: torch.dtype) -> Tensor:
    """The exponents for sizes of what is computed in one dtype and kept in another.

    UNSET for those that count as zero or are not finite.
    """
    step, most = _STEP[kept], _LARGEST[dtype]
    usable = (sizes >= torch.finfo(dtype).tiny) & sizes.isfinite()
    found = torch.where(usable, sizes, 1).log2().div_(step).round_().mul_(step)
    return torch.where(usable, found.clamp_(-most, most).long(), UNSET)


def narrowed(grad: Tensor, param: Tensor) -> Tensor:
    """A gradient in float64 of a narrower parameter, in float32, which may be too small for it."""
    wider = grad.dtype == torch.float64 and param.dtype != torch.float64
    return grad.float() if wider else grad


def in_units(X: Tensor) -> Tensor:
    """Each matrix of X over its power of two; X is not changed."""
    sizes = matrix_norms(X, keepdim=True)
    exponents = exponents_of(sizes.clamp_min(torch.finfo(X.dtype).tiny), X.dtype, X.dtype)
    return X * torch.exp2(-exponents.to(X.dtype))


def suffixes(parts: tuple[Part, ...]) -> list[str]:
    """What the names of the state of each part end in."""
    return [f".{i}" for i in range(len(parts))] if len(parts) > 1 else [""]


def exponents(e: Entry) -> list[Tensor]:
    """The exponents of the matrices of each part, on the host."""
    return [e.state["exponent" + suffix] for suffix in suffixes(e.parts)]


def as_units(exponents: Tensor, like: Tensor) -> Tensor:
    """2^e, and 1 where there is no exponent yet."""
    return torch.exp2(torch.where(exponents == UNSET, 0, exponents).to(like))


def is_scaled(exponents: Tensor) -> bool:
    """Whether any of the units is another than 1."""
    return not {0, UNSET}.issuperset(exponents.flatten().tolist())


# What a gradient does to them -------------------------------------------------------------------


def fit_(e: Entry) -> None:
    """Choose the units of an entry's matrices by their gradient, and find those that have none.

    On an accelerator units are chosen while the host waits for it in any case, at a first step.
    After that a gradient that is too large for them counts as not finite; when the host has heard
    of it, it waits once more and raises them.
    """
    dtype, on_host = compute_dtype(e.param), isinstance(e.size, float)
    tiny = torch.finfo(dtype).tiny
    if isinstance(e.size, float) and _is_one(e):
        unit = e.state["exponent"].item()
        if tiny <= e.size < _most(e) * 2.0**unit:  # nearly always
            e.scaled = unit != 0
            return
    e.begun, e.nonzero, e.scaled = [], [], False
    for suffix, part, old in zip(suffixes(e.parts), e.parts, exponents(e), strict=True):
        sizes, new = _sizes(e, part), old
        asks = e.asks or e.waiting or {UNSET}.issuperset(old.flatten().tolist())
        if on_host or (asks and bool(e.finite)):
            seen = sizes.cpu()
            held = seen < _most(e) * torch.exp2(old.to(seen))
            new = torch.where(held, old, exponents_of(seen, dtype, _kept_dtype(e)))
            if not torch.equal(old, new):
                _rescale_(e, suffix, old, new)
        e.begun.append(old != UNSET)
        e.nonzero.append(None if on_host and bool((sizes >= tiny).all()) else sizes >= tiny)
        e.scaled |= is_scaled(new)
        if not on_host:
            assert e.finite is not None
            unit = as_units(new, sizes) if e.scaled else 1.0
            e.finite = e.finite & (sizes < _most(e) * unit).all()
        old.copy_(new)


def fits(e: Entry) -> bool:
    """Whether the gradient is finite and its units can hold it; waits for the device."""
    e.size = norms([e.grad], compute_dtype(e.grad))[0]
    return all(
        bool((sizes < _most(e) * as_units(x, sizes)).all())
        for x, sizes in zip(exponents(e), (_sizes(e, part) for part in e.parts), strict=True)
    )


def _most(e: Entry) -> float:
    """The size, in units, from which on squares come near the end of the range."""
    return _ORDINARY[_kept_dtype(e)][1]


def _kept_dtype(e: Entry) -> torch.dtype:
    """The dtype whose range the state has: that of the computation, or a narrower one."""
    narrow = e.group["state_dtype"] in (torch.float32, torch.bfloat16)
    return torch.float32 if narrow else compute_dtype(e.param)


def _sizes(e: Entry, part: Part) -> Tensor:
    """The sizes of the gradients of the matrices of a part, in the shape of its exponents."""
    if not _is_one(e):
        return matrix_norms(part.fold(e.grad))
    return e.size if isinstance(e.size, Tensor) else torch.tensor(e.size, dtype=torch.float64)


def _is_one(e: Entry) -> bool:
    """Whether the size of the gradient is that of a single matrix, or of no matrix at all."""
    return e.method.vector is None or (len(e.parts) == 1 and len(e.parts[0].shape) == 2)


def _rescale_(e: Entry, suffix: str, old: Tensor, new: Tensor) -> None:
    """Bring the state of a part from one unit to a larger one."""
    change = (old - new).to(e.param.device)
    powers = {"exp_avg": 1, "exp_avg_rows": 1, "exp_avg_cols": 1}
    powers |= {"covariance_left": 2, "covariance_right": 2}
    if e.method.adaptation is not DIRECTION:  # which has no unit
        powers["exp_avg_sq"] = 2
    part = e.parts[int(suffix[1:] or 0)]
    for key, power in powers.items():
        if key in PARAMETER_SHAPED and key in e.state:
            X = part.fold(e.state[key])
        elif key + suffix in e.state:
            X = e.state[key + suffix]
        else:
            continue
        factor = torch.exp2((power * change).float()).to(X.dtype)
        X.mul_(over(factor, X))
    e.renews |= f"root_left{suffix}" in e.state or f"root_right{suffix}" in e.state
