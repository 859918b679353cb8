"""What keeps covariances and bases up to date, before and after the update of the weights.

A gradient that is exactly zero says nothing about the covariances: the basis of a matrix starts
with its first gradient that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

from . import bases
from .adaptations import ema_mass
from .bases import SIDES

if TYPE_CHECKING:
    from .stack import Stack

Solve = Callable[[Tensor, Tensor], Tensor]


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
    G, weight = stack.G, stack.weight(stack.betas[2], _both(stack.finite, where))
    for side, A in zip(SIDES, (G, G.mT), strict=True):
        key = f"covariance_{side}"
        if stack.has(key):
            stack.read(key).lerp_(A @ A.mT, weight)
            stack.commit(key)


def renew_(
    stack: Stack, name: str, solve: Solve, members: list[int], where: Tensor | None = None
) -> None:
    """Q ← solve(L, Q) for some members of the stack, on the sides that have a basis."""
    mask = _both(stack.finite, where)
    for side in SIDES if members else ():
        key = f"{name}_{side}"
        if stack.has(key):
            L, Q = stack.read(f"covariance_{side}"), stack.read(key)
            new = solve(torch.stack([L[i] for i in members]), torch.stack([Q[i] for i in members]))
            for i, basis in zip(members, new, strict=True):
                Q[i] = basis if mask is None else torch.where(mask[i][..., None, None], basis, Q[i])
            stack.commit(key)


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a and b, of shapes B and B×… in either order; None stands for true everywhere."""
    if a is None or b is None:
        return b if a is None else a
    short, long = (a, b) if a.ndim < b.ndim else (b, a)
    return long & short.view(*short.shape, *(1,) * (long.ndim - short.ndim))


def _due(stack: Stack) -> list[int]:
    """The members of the stack whose clock says that it is time for a refresh."""
    period = stack.group["refresh_every"]
    return [i for i, e in enumerate(stack.entries) if e.clock > 0 and e.clock % period == 0]


def _everyone(stack: Stack) -> list[int]:
    return list(range(len(stack.entries)))


# SOAP and DeVA: the first gradient chooses the basis and is projected onto it; after that a
# gradient is judged in a basis that it had no part in.


def _choose_first_(stack: Stack) -> None:
    if stack.fresh is not None:
        accumulate_(stack, where=stack.fresh)
        renew_(stack, "basis", bases.eigenbasis, _everyone(stack), where=stack.fresh)


def _track_(stack: Stack) -> None:
    known = None if stack.fresh is None else ~stack.fresh
    accumulate_(stack, where=known)
    renew_(stack, "basis", bases.refresh, _due(stack), where=known)


# SPlus: the identity for the first step, then a full decomposition now and then.


def _decompose_(stack: Stack) -> None:
    accumulate_(stack)
    if stack.fresh is not None:
        renew_(stack, "basis", bases.eigenbasis, _everyone(stack), where=stack.fresh)
    renew_(stack, "basis", bases.eigenbasis, _due(stack))


# Shampoo: the gradient takes part in the root that is applied to it.


def _root_(stack: Stack) -> None:
    accumulate_(stack)
    root = 2 * sum(stack.has(f"root_{side}") for side in SIDES)
    mass = ema_mass(stack.t, stack.betas[2])  # the covariances start from zero

    def solve(members: list[int]) -> Solve:
        shaped = stack.shaped(mass)
        if isinstance(shaped, Tensor):
            shaped = torch.stack([shaped[i] for i in members])
        return lambda L, P: bases.inverse_root(L / shaped, P, root=root, eps=stack.group["eps"])

    if stack.fresh is not None:
        renew_(stack, "root", solve(_everyone(stack)), _everyone(stack), where=stack.fresh)
    if due := _due(stack):
        renew_(stack, "root", solve(due), due)


def _nothing_(stack: Stack) -> None:
    return None


TRACKED: Final = Basis("basis", before=_choose_first_, after=_track_)
DECOMPOSED: Final = Basis("basis", before=_nothing_, after=_decompose_)
INVERSE_ROOT: Final = Basis("root", before=_root_, after=_nothing_)
