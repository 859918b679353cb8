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
from .bases import BASES, SIDES
from .linalg import Number, add_gram_, both, over, value
from .units import UNSET, exponents
from .variance import ema_mass

if TYPE_CHECKING:
    from .batch import Entry, Stack

_T = TypeVar("_T", Tensor, Number)
Solve = Callable[..., None]  # covariances, what is made of them, settings
Some = list[int]  # members of a stack

# Small matrices gain from a batch, even if it must be copied together; large ones do not.
_LARGE: Final = 128


class Basis(NamedTuple):
    """When a method averages its covariances and what it makes of them.

    Attributes:
        keeps: The name of what is made of each covariance: a basis or an inverse root.
        before, after: What happens before and after the update of the weights.
        label: What it is called in the table of methods.
        tracked: Whether a refresh starts from the basis before it: one power iteration and a QR in
            place of a decomposition. Such a basis needs a first one, from the first gradient.
    """

    keeps: str
    before: Callable[[Stack], None]
    after: Callable[[Stack], None]
    label: str
    tracked: bool = False


def begin_(stack: Stack) -> None:
    """Find the matrices whose basis starts with this gradient, and those whose step counts.

    Needed while a parameter has matrices without a basis, which makes the host wait for the device
    as the first decomposition does in any case, and where a matrix of several has no gradient.
    """
    one = torch.ones(stack.G.shape[:-2], dtype=torch.bool, device=stack.G.device)
    nonzero = one if stack.nonzero is None else stack.nonzero
    counts = nonzero if stack.method.rests else one
    if stack.awaits_basis:
        begun = [_begun(e, stack.index) for e in stack.entries]
        stack.fresh = nonzero & ~torch.stack(begun).to(nonzero.device)
        if stack.finite is not None:
            stack.fresh = both(stack.fresh, stack.finite)
        for entry, fresh in zip(stack.entries, stack.fresh, strict=True):
            entry.state["waiting"].sub_(int(fresh.sum()))
        if stack.group["skip_first"]:
            counts = counts & ~stack.fresh
            stack.gate = both(stack.taken, ~stack.fresh)
            stack.decays = both(stack.finite, ~stack.fresh)
    if stack.has("idle"):
        for idle, counted, e in zip(stack.tensors("idle"), counts, stack.entries, strict=True):
            took_part = counted if e.finite is None else counted & e.finite
            idle.add_(e.counted).sub_(took_part.to(idle.dtype))


def _begun(e: Entry, index: int) -> Tensor:
    """Which matrices of a part had a gradient before this one."""
    return exponents(e)[index] != UNSET if e.begun is None else e.begun[index]


def accumulate_(stack: Stack, where: Tensor | None = None) -> None:
    """L ← β₃ L + (1 − β₃) G Gᵀ, and R likewise, on the sides that have one."""
    gate, beta3 = both(stack.taken, where), stack.betas[2]
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
    **settings: Number,
) -> None:
    """Renew what is made of the covariances, over their mass, on the sides that have it.

    The settings are numbers for each matrix, which are told to `solve_`.
    """
    mask = both(stack.taken, where)
    for side in SIDES:
        key = f"{name}_{side}"
        for some in _together(stack, key, members):
            with stack.some(f"covariance_{side}", some) as C, stack.some(key, some) as Q:
                L = C if mass is None else C / _of(some, mass)
                solve = partial(solve_, **{key: _of(some, x) for key, x in settings.items()})
                if mask is None:
                    solve(L, Q)
                else:
                    _solve_where_(_of(some, mask), solve, L, Q)


def _solve_where_(mask: Tensor, solve_: Solve, L: Tensor, Q: Tensor) -> None:
    new = Q.clone()
    solve_(L, new)
    good = both(mask, new.isfinite().all(-1).all(-1))
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
    """The members whose clock says that it is time for a refresh, or whose units have changed."""
    period = stack.group["refresh_every"]
    return [
        i
        for i, e in enumerate(stack.entries)
        if e.renews or (e.clock > 0 and e.clock % period == 0)
    ]


def _everyone(stack: Stack) -> Some:
    return list(range(len(stack.entries)))


# SOAP and DeVA: the first gradient chooses the basis and is projected onto it; after that a
# gradient is judged in a basis that it had no part in.


def _choose_first_(stack: Stack) -> None:
    if stack.fresh is not None:
        accumulate_(stack, where=stack.fresh)
        _first_bases_(stack, stack.fresh)


def _first_bases_(stack: Stack, fresh: Tensor) -> None:
    """The bases of the matrices that start with this gradient, from the gradient itself."""
    left, right = (stack.has(key) for key in BASES)
    for place in fresh.nonzero().tolist():
        found = bases.first_bases(stack.G[tuple(place)], left=left, right=right)
        for key, Q in zip(BASES, found, strict=True):
            if Q is not None:
                member, *matrix = place
                stack.tensors(key)[member][tuple(matrix)].copy_(Q)
    stack.forget(*BASES)


def _track_(stack: Stack) -> None:
    known = None if stack.fresh is None else ~stack.fresh
    accumulate_(stack, where=known)
    due = _due(stack)
    turned = _restored_momentum(stack, due) if stack.method.rotated else []
    renew_(stack, "basis", bases.refresh_, due, where=known)
    for some, M_ in turned:  # M is taken along from the old basis to the new one
        with stack.some("exp_avg", some) as M:
            new = bases.project(M_, *stack.bases_of(some))
            mask = both(stack.taken, known)
            M.copy_(new if mask is None else torch.where(over(_of(some, mask), new), new, M))


def _restored_momentum(stack: Stack, members: Some) -> list[tuple[Some, Tensor]]:
    """M in the coordinates of the parameter, for members whose bases are about to change."""
    found = []
    for some in _together(stack, "exp_avg", members):
        with stack.some("exp_avg", some) as M:
            found.append((some, value(bases.restore(M, *stack.bases_of(some)))))
    return found


# SPlus: the identity for the first step, then a full decomposition now and then.


def _decompose_(stack: Stack) -> None:
    accumulate_(stack)
    if stack.fresh is not None:
        _first_bases_(stack, stack.fresh)
    renew_(stack, "basis", bases.eigenbasis_, _due(stack))


# Shampoo: the gradient takes part in the root that is applied to it.


def _root_(stack: Stack) -> None:
    accumulate_(stack)
    root = 2 * sum(stack.has(f"root_{side}") for side in SIDES)
    mass = stack.counted(ema_mass, stack.betas[2])  # the covariances start from zero
    # ε in the units of the covariances, which are the squares of those of the gradient
    eps = stack.group["eps"] / stack.unit / stack.unit
    solve_ = partial(bases.inverse_root_, root=root)
    if stack.fresh is not None:
        everyone = _everyone(stack)
        renew_(stack, "root", solve_, everyone, where=stack.fresh, mass=mass, eps=eps)
    renew_(stack, "root", solve_, _due(stack), mass=mass, eps=eps)


def _nothing_(stack: Stack) -> None:
    return None


TRACKED: Final = Basis("basis", _choose_first_, _track_, "eigenvectors, tracked", tracked=True)
DECOMPOSED: Final = Basis("basis", _nothing_, _decompose_, "eigenvectors")
INVERSE_ROOT: Final = Basis("root", _root_, _nothing_, "inverse roots")
