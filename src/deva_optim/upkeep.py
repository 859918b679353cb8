"""What keeps covariances and bases up to date, before and after the update of the weights.

A gradient that is exactly zero says nothing about the covariances: the basis of a matrix starts
with its first gradient that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import bases
from .adaptations import ema_mass
from .bases import SIDES
from .terms import Number, Term, add_gram_, value

if TYPE_CHECKING:
    from .stack import Stack

_T = TypeVar("_T", Tensor, Number)
Solve = Callable[[Tensor, Tensor], None]
Some = list[int]  # members of a stack

# Small matrices gain from a batch, even if it must be copied together; large ones do not.
_LARGE: Final = 128


class Basis(NamedTuple):
    """When a method averages its covariances and what it makes of them.

    Attributes:
        keeps: The name of what is made of each covariance: a basis or an inverse root.
        before, after: What happens before and after the update of the weights.
    """

    keeps: str
    before: Callable[[Stack], None]
    after: Callable[[Stack], None]


def begin_(stack: Stack) -> None:
    """Find the matrices whose basis starts with this gradient.

    Needed only while a parameter has matrices without a basis. It makes the host wait for the
    device, as the first decomposition does in any case.
    """
    speaks = stack.G.square().sum((-2, -1)) > 0
    key = next(key for key in ("covariance_left", "covariance_right") if stack.has(key))
    begun = stack.read(key).diagonal(dim1=-2, dim2=-1).sum(-1) > 0
    stack.fresh = speaks & ~begun
    counts = begun | speaks if stack.method.waits else torch.ones_like(begun)
    if stack.group["skip_first"]:
        counts &= ~stack.fresh
        stack.gate = _both(stack.finite, ~stack.fresh)
    if stack.has("idle"):
        for idle, counted, e in zip(stack.tensors("idle"), counts, stack.entries, strict=True):
            took_part = counted if e.finite is None else counted & e.finite
            idle.add_(e.counted).sub_(took_part.to(idle.dtype))
    for entry, fresh in zip(stack.entries, stack.fresh, strict=True):
        entry.state["waiting"].sub_(int(fresh.sum()))


def accumulate_(stack: Stack, where: Tensor | None = None) -> None:
    """L ← β₃ L + (1 − β₃) G Gᵀ, and R likewise, on the sides that have one."""
    gate, beta3 = _both(stack.finite, where), stack.betas[2]
    G = stack.G if where is None else torch.where(stack.broadcast(where), stack.G, 0)
    keep = 1 - stack.weight(beta3, gate)
    for side, A in zip(SIDES, (G, G.mT), strict=True):
        key = f"covariance_{side}"
        for some in _together(stack, key, _everyone(stack)):
            with stack.some(key, some) as L:
                add_gram_(L, _of(some, A), keep=_of(some, keep), weight=1 - beta3)


def renew_(
    stack: Stack,
    name: str,
    solve_: Solve,
    members: Some,
    where: Tensor | None = None,
    mass: Number | None = None,
) -> None:
    """Renew what is made of the covariances, over their mass, on the sides that have it."""
    mask = _both(stack.finite, where)
    for side in SIDES:
        key = f"{name}_{side}"
        for some in _together(stack, key, members):
            with stack.some(f"covariance_{side}", some) as C, stack.some(key, some) as Q:
                L = C if mass is None else C / _of(some, mass)
                if mask is None:
                    solve_(L, Q)
                else:
                    _solve_where_(_of(some, mask), solve_, L, Q)


def _solve_where_(mask: Tensor, solve_: Solve, L: Tensor, Q: Tensor) -> None:
    new = Q.clone()
    solve_(L, new)
    good = _and(mask, new.isfinite().all(-1).all(-1))
    Q.copy_(torch.where(good[..., None, None], new, Q))


def _together(stack: Stack, key: str, members: Some) -> list[Some]:
    """The members in batches: small matrices all at once, large ones one by one, where they are."""
    if not members or not stack.has(key):
        return []
    small = stack.tensors(key)[0].shape[-1] < _LARGE
    return [members] if small else [[i] for i in members]


def _of(some: Some, X: _T) -> _T:
    """What a stacked tensor has for some members; a number is the same for all."""
    if not isinstance(X, Tensor) or X.ndim == 0 or len(some) == len(X):
        return X
    if len(some) == 1:
        return X[some[0] : some[0] + 1]
    return torch.stack([X[i] for i in some])


def _due(stack: Stack) -> Some:
    """The members of the stack whose clock says that it is time for a refresh."""
    period = stack.group["refresh_every"]
    return [i for i, e in enumerate(stack.entries) if e.clock > 0 and e.clock % period == 0]


def _everyone(stack: Stack) -> Some:
    return list(range(len(stack.entries)))


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a and b, where None stands for true everywhere."""
    if a is None or b is None:
        return b if a is None else a
    return _and(a, b)


def _and(a: Tensor, b: Tensor) -> Tensor:
    """a and b, of shapes B and B×… in either order."""
    short, long = (a, b) if a.ndim < b.ndim else (b, a)
    return long & short.view(*short.shape, *(1,) * (long.ndim - short.ndim))


# SOAP and DeVA: the first gradient chooses the basis and is projected onto it; after that a
# gradient is judged in a basis that it had no part in.


def _choose_first_(stack: Stack) -> None:
    if stack.fresh is not None:
        accumulate_(stack, where=stack.fresh)
        renew_(stack, "basis", bases.eigenbasis_, _everyone(stack), where=stack.fresh)


def _track_(stack: Stack) -> None:
    known = None if stack.fresh is None else ~stack.fresh
    accumulate_(stack, where=known)
    due = _due(stack)
    if stack.method.rotated:  # M is taken along from the old basis to the new one
        _turn_momentum_(stack, bases.restore, due)
    renew_(stack, "basis", bases.refresh_, due, where=known)
    if stack.method.rotated:
        _turn_momentum_(stack, bases.project, due)


def _turn_momentum_(stack: Stack, turn: Callable[..., Term], members: Some) -> None:
    for some in _together(stack, "exp_avg", members):
        with stack.some("exp_avg", some) as M:
            M.copy_(value(turn(M, *stack.bases_of(some))))


# SPlus: the identity for the first step, then a full decomposition now and then.


def _decompose_(stack: Stack) -> None:
    accumulate_(stack)
    if stack.fresh is not None:
        renew_(stack, "basis", bases.eigenbasis_, _everyone(stack), where=stack.fresh)
    renew_(stack, "basis", bases.eigenbasis_, _due(stack))


# Shampoo: the gradient takes part in the root that is applied to it.


def _root_(stack: Stack) -> None:
    accumulate_(stack)
    root = 2 * sum(stack.has(f"root_{side}") for side in SIDES)
    mass = stack.counted(ema_mass, stack.betas[2])  # the covariances start from zero
    solve_ = partial(bases.inverse_root_, root=root, eps=stack.group["eps"])
    if stack.fresh is not None:
        renew_(stack, "root", solve_, _everyone(stack), where=stack.fresh, mass=mass)
    renew_(stack, "root", solve_, _due(stack), mass=mass)


def _nothing_(stack: Stack) -> None:
    return None


TRACKED: Final = Basis("basis", before=_choose_first_, after=_track_)
DECOMPOSED: Final = Basis("basis", before=_nothing_, after=_decompose_)
INVERSE_ROOT: Final = Basis("root", before=_root_, after=_nothing_)
