"""What is added to a tensor: another one, or a product or quotient that is never written down.

Most of what a step computes ends as X ← keep X + weight · A B, which BLAS does in one pass over X.
Forming A B first would cost an allocation and two passes more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, overload

import torch
from torch import Tensor

Number = Tensor | float

# Measured: half of a symmetric product pays from here on, cut into rows of blocks of this size.
_SYMMETRIC_FROM: Final = 512
_BLOCK_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class Product:
    """left @ right, …×n×k and …×k×m."""

    left: Tensor
    right: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the product."""
        return torch.Size((*self.left.shape[:-1], self.right.shape[-1]))


@dataclass(frozen=True, slots=True)
class Square:
    """X², entry by entry."""

    X: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the square."""
        return self.X.shape


@dataclass(frozen=True, slots=True)
class Quotient:
    """over / under, entry by entry; `under` is scratch memory, for the quotient if need be."""

    over: Tensor
    under: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the quotient."""
        return self.over.shape


Term = Tensor | Product | Square | Quotient


def value(term: Term) -> Tensor:
    """The term written down."""
    if isinstance(term, Product):
        return product(term.left, term.right)
    if isinstance(term, Square):
        return term.X.square()
    if isinstance(term, Quotient):
        return torch.div(term.over, term.under, out=term.under)
    return term


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B; a batch with a single dimension is spared the detour that @ makes."""
    return torch.bmm(A, B) if A.ndim == 3 else A @ B


def scaled(term: Term, by: Number, where: Tensor | None = None) -> Term:
    """The term times a number for each matrix, and zero where it is not wanted."""

    def scale(X: Tensor) -> Tensor:
        return X * by if where is None else torch.where(where, X * by, 0)

    if isinstance(term, Product):
        return Product(scale(term.left), term.right)
    return (
        Quotient(scale(term.over), term.under) if isinstance(term, Quotient) else scale(value(term))
    )


def compact(x: Tensor) -> Tensor:
    """Numbers that broadcast over matrices, as 0-D if there is but one: that broadcasts faster."""
    return x.reshape(()) if x.numel() == 1 else x


def over(x: Tensor, X: Tensor) -> Tensor:
    """Numbers for the first dimensions of X, shaped to multiply all of it."""
    return x.view((*x.shape, *(1,) * (X.ndim - x.ndim)))


@overload
def both(a: Tensor, b: Tensor | None) -> Tensor: ...


@overload
def both(a: Tensor | None, b: Tensor) -> Tensor: ...


@overload
def both(a: Tensor | None, b: Tensor | None) -> Tensor | None: ...


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a and b, of shapes B and B×… in either order, where None stands for true everywhere."""
    if a is None or b is None:
        return b if a is None else a
    short, long = (a, b) if a.ndim < b.ndim else (b, a)
    return long & over(short, long)


def add_(X: Tensor, term: Term, *, keep: Number = 1.0, weight: Number = 1.0) -> None:
    """X ← keep · X + weight · term, in place; tensors among the numbers broadcast over X."""
    if isinstance(keep, Tensor):
        X.mul_(keep)
        keep = 1.0
    if isinstance(weight, Tensor):
        term, weight = scaled(term, weight), 1.0
    if isinstance(term, Product):
        batch = _as_batch(X)
        if batch is not None:
            left, right = term.left.flatten(0, -3), term.right.flatten(0, -3)
            batch.baddbmm_(left, right, beta=keep, alpha=weight)
            return
        term = value(term)
    if keep != 1.0:
        X.mul_(keep)
    if isinstance(term, Quotient):
        X.addcdiv_(term.over, term.under, value=weight)
    elif isinstance(term, Square):
        X.addcmul_(term.X, term.X, value=weight)
    else:
        X.add_(term, alpha=weight)


def average_(X: Tensor, term: Term, weight: Number) -> None:
    """X ← (1 − weight) X + weight · term, in place."""
    if isinstance(term, Tensor):
        X.lerp_(term, weight)
    else:
        add_(X, term, keep=1 - weight, weight=weight)


def add_gram_(L: Tensor, A: Tensor, *, keep: Number, weight: float) -> None:
    """L ← keep · L + weight · A Aᵀ; of a large one only the lower half, see `mirror_`."""
    for start, stop in _rows(L):
        block = Product(A[..., start:stop, :], A[..., :stop, :].mT)
        add_(L[..., start:stop, :stop], block, keep=keep, weight=weight)


def mirror_(L: Tensor) -> None:
    """Make the upper half of L what `add_gram_` left in the lower one."""
    for start, stop in _rows(L):
        L[..., :start, start:stop] = L[..., start:stop, :start].mT


def _rows(L: Tensor) -> list[tuple[int, int]]:
    """The rows of blocks that a symmetric matrix is worked on in, a small one in a single row."""
    n = L.shape[-1]
    size = _BLOCK_ROWS if n >= _SYMMETRIC_FROM else n
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def _as_batch(X: Tensor) -> Tensor | None:
    """X as a batch of matrices that shares its memory, if there is one."""
    if X.ndim == 3:
        return X
    try:
        return X.view(-1, *X.shape[-2:])
    except RuntimeError:
        return None
