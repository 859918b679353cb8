"""Linear algebra that torch does not have: lazy products, halves of symmetric ones, QR, norms.

Most of what a step computes ends as X ← keep X + weight · A B, which BLAS does in one pass over X.
Forming A B first would cost an allocation and two passes more. So a `Product`, a `Square`, a
`Quotient` or a `StripProduct` stands for a tensor that is never written down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, overload

import torch
from torch import Tensor

Number = Tensor | float

# Measured: half of a symmetric product pays from here on, cut into rows of blocks of this size.
_SYMMETRIC_FROM: Final = 512
_BLOCK_ROWS: Final = 256

# Measured: LAPACK's QR is as fast as anything below this size; above, panels of this width are.
_PANELS_FROM: Final = 512
_PANEL_WIDTH: Final = 96

# Within these bounds the squares in a norm neither underflow nor overflow.
ORDINARY: Final = {
    torch.float32: (2.0**-40, 2.0**50),
    torch.float64: (2.0**-400, 2.0**400),
}


# Devices and precision --------------------------------------------------------------------------

HALF: Final = (torch.bfloat16, torch.float16)
"""The dtypes in half precision."""


def compute_dtype(X: Tensor) -> torch.dtype:
    """The precision of the computation: float64 for float64, float32 for everything else."""
    return torch.float64 if X.dtype == torch.float64 else torch.float32


def scalar_dtype(device: torch.device) -> torch.dtype:
    """The precision of bias corrections and norms: float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def host_sees(device: torch.device) -> bool:
    """Whether the host may look at a value: not while it compiles, nor if it would have to wait."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def is_captured(device: torch.device) -> bool:
    """Whether what a device is told goes into a CUDA graph, to be repeated later."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@lru_cache(maxsize=64)
def constants(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers as a tensor, which is not to be changed.

    It is kept, because the host would wait for the device to send it the same ones at every step.
    """
    return torch.tensor(numbers, dtype=dtype, device=device)


# Lazy products ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Product:
    """left @ right, …×n×k and …×k×m."""

    left: Tensor
    right: Tensor


@dataclass(frozen=True, slots=True)
class Square:
    """X², entry by entry."""

    X: Tensor


@dataclass(frozen=True, slots=True)
class Quotient:
    """over / under, entry by entry; `under` is scratch memory, for the quotient if need be."""

    over: Tensor
    under: Tensor


@dataclass(frozen=True, slots=True)
class Columns:
    """β M + (1 − β) G, …×n×m with n ≤ m, its columns multiplied by c, …×1×m."""

    M: Tensor
    G: Tensor
    beta: float
    c: Tensor

    def strips(self) -> Iterator[slice]:
        """Columns that together are as many as the rows, until there are none left."""
        n, m = self.M.shape[-2:]
        return (slice(start, start + n) for start in range(0, m, n))

    def written(self, some: slice = slice(None)) -> Tensor:
        """Some of the columns, or all of them."""
        M, c = self.M[..., some], self.c[..., some]
        return M * c if self.beta == 1 else self.G[..., some].lerp(M, self.beta).mul_(c)


@dataclass(frozen=True, slots=True)
class StripProduct:
    """left @ right, or its transpose: of `right` one strip at a time is written down."""

    left: Tensor
    right: Columns
    transposed: bool = False

    @property
    def mT(self) -> StripProduct:  # noqa: N802  # as tensors have it
        """The transpose."""
        return StripProduct(self.left, self.right, not self.transposed)


Term = Tensor | Product | Square | Quotient | StripProduct


def value(term: Term) -> Tensor:
    """The term as a tensor."""
    if isinstance(term, Product):
        return product(term.left, term.right)
    if isinstance(term, Square):
        return term.X.square()
    if isinstance(term, Quotient):
        return torch.div(term.over, term.under, out=term.under)
    if isinstance(term, StripProduct):
        X = torch.zeros_like(term.right.M)
        add_(X, StripProduct(term.left, term.right))
        return X.mT if term.transposed else X
    return term


def strips(term: Term) -> Iterator[Tensor]:
    """The term in strips of its longer side, each …×n×k, if it is too large to be written down."""
    if isinstance(term, StripProduct):
        for some in term.right.strips():
            yield product(term.left, term.right.written(some))
    else:
        X = value(term)
        yield X.mT if X.shape[-2] > X.shape[-1] else X


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B; for a batch with a single dimension bmm avoids the detour that @ makes."""
    return torch.bmm(A, B) if A.ndim == 3 else A @ B


def scaled(term: Term, by: Number, where: Tensor | None = None) -> Term:
    """The term times a number for each matrix, and zero where `where` is false."""

    def scale(X: Tensor) -> Tensor:
        return X * by if where is None else torch.where(where, X * by, 0)

    if isinstance(term, Product):
        return Product(scale(term.left), term.right)
    if isinstance(term, Quotient):
        return Quotient(scale(term.over), term.under)
    if isinstance(term, StripProduct):
        return StripProduct(scale(term.left), term.right, term.transposed)
    return scale(value(term))


def add_(X: Tensor, term: Term, *, keep: Number = 1.0, weight: Number = 1.0) -> None:
    """X ← keep · X + weight · term, in place; tensors among the numbers broadcast over X."""
    if isinstance(keep, Tensor):
        X.mul_(keep)
        keep = 1.0
    if isinstance(weight, Tensor):
        term, weight = scaled(term, weight), 1.0
    if isinstance(term, Product):
        batch = X if X.ndim == 3 else _as_batch(X)
        if batch is not None:
            left, right = term.left.flatten(0, -3), term.right.flatten(0, -3)
            batch.baddbmm_(left, right, beta=keep, alpha=weight)
            return
        term = value(term)
    if isinstance(term, StripProduct):
        wide = X.mT if term.transposed else X
        for some in term.right.strips():
            strip = Product(term.left, term.right.written(some))
            add_(wide[..., some], strip, keep=keep, weight=weight)
        return
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


def _as_batch(X: Tensor) -> Tensor | None:
    """X as one batch of matrices that shares its memory, if its strides allow that."""
    try:
        return X.view(-1, *X.shape[-2:])
    except RuntimeError:
        return None


# Numbers for the matrices of a batch ------------------------------------------------------------


def over(x: Tensor, X: Tensor) -> Tensor:
    """Numbers for the first dimensions of X, shaped to multiply all of it."""
    return x.view((*x.shape, *(1,) * (X.ndim - x.ndim)))


def compact(x: Tensor) -> Tensor:
    """Numbers that broadcast over matrices; a single one as 0-D, which broadcasts faster."""
    return x.reshape(()) if x.numel() == 1 else x


@overload
def both(a: Tensor, b: Tensor | None) -> Tensor: ...


@overload
def both(a: Tensor | None, b: Tensor) -> Tensor: ...


@overload
def both(a: Tensor | None, b: Tensor | None) -> Tensor | None: ...


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a and b, of shapes B and B×… in either order; None stands for true everywhere."""
    if a is None or b is None:
        return b if a is None else a
    short, long = (a, b) if a.ndim < b.ndim else (b, a)
    return long & over(short, long)


# Symmetric products -----------------------------------------------------------------------------


def add_gram_(L: Tensor, A: Tensor, *, keep: Number, weight: float) -> None:
    """L ← keep · L + weight · A Aᵀ; of a large one only the lower half, see `mirror_`."""
    if L.shape[-1] < _SYMMETRIC_FROM:
        add_(L, Product(A, A.mT), keep=keep, weight=weight)
        return
    for start, stop in _block_rows(L.shape[-1]):
        block = Product(A[..., start:stop, :], A[..., :stop, :].mT)
        add_(L[..., start:stop, :stop], block, keep=keep, weight=weight)


def symmetric_products(n: int, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """What multiplies batches of A and B whose products A B, n×n, are known to be symmetric."""
    return half_product if n >= _SYMMETRIC_FROM and device.type == "cpu" else torch.bmm


def half_product(A: Tensor, B: Tensor) -> Tensor:
    """A B, symmetric, of which the lower half is computed, by rows of blocks."""
    n = A.shape[-2]
    found = A.new_empty(len(A), n, n)
    for start, stop in _block_rows(n):
        torch.bmm(A[:, start:stop], B[..., :stop], out=found[:, start:stop, :stop])
    mirror_(found)
    return found


def mirror_(L: Tensor) -> None:
    """Make the upper half of L what `add_gram_` left in the lower one."""
    if L.shape[-1] >= _SYMMETRIC_FROM:
        for start, stop in _block_rows(L.shape[-1]):
            L[..., :start, start:stop] = L[..., start:stop, :start].mT


def _block_rows(n: int) -> list[tuple[int, int]]:
    return [(start, min(start + _BLOCK_ROWS, n)) for start in range(0, n, _BLOCK_ROWS)]


# Norms that neither underflow nor overflow ------------------------------------------------------


def norms(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The norm of each tensor, all of one device, in the precision of `scalar_dtype`."""
    device = tensors[0].device
    if not host_sees(device):
        if dtype == torch.float32 and scalar_dtype(device) == torch.float64:
            return torch.stack(list(torch._foreach_norm(tensors, 2, dtype=torch.float64)))
        return torch.stack([_careful_norm(X.flatten(), (0,), False) for X in tensors])
    found = torch.stack(list(torch._foreach_norm(tensors, 2, dtype=dtype))).double()
    low, high = ORDINARY[dtype]
    for i, size in enumerate(found.tolist()):
        if not low < size < high:
            found[i] = _careful_norm(tensors[i].flatten(), (0,), False)
    return found


def matrix_norms(X: Tensor, *, keepdim: bool = False) -> Tensor:
    """The Frobenius norm of each matrix of a batch, in the precision of `scalar_dtype`."""
    norm = ordinary_norms(X, keepdim=keepdim)
    return _careful_norm(X, (-2, -1), keepdim) if norm is None else norm.double()


def ordinary_norms(X: Tensor, *, keepdim: bool = False) -> Tensor | None:
    """The norms, if the host sees that no square in them has underflown or overflown."""
    if not host_sees(X.device):
        return None
    dtype = torch.float64 if X.dtype == torch.float64 else torch.float32
    norm: Tensor = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=keepdim, dtype=dtype)
    return norm if is_ordinary(norm) else None


def is_ordinary(norm: Tensor) -> bool:
    """Whether the host sees norms whose squares have neither underflown nor overflown."""
    low, high = ORDINARY[norm.dtype]
    least, most = norm.aminmax()
    return low < least.item() and most.item() < high


def _careful_norm(X: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    wide, norm = scalar_dtype(X.device), torch.linalg.vector_norm
    if X.dtype != torch.float64 and wide == torch.float64:  # squares of float32 fit into float64
        found: Tensor = norm(X, dim=dim, keepdim=keepdim, dtype=wide)
        return found
    X = X.to(wide)
    top = norm(X, math.inf, dim=dim, keepdim=True).clamp_min(torch.finfo(wide).tiny)
    found = norm(X / top, dim=dim, keepdim=True) * top
    return found if keepdim else found.squeeze(dim)


def frobenius(X: Tensor, *, zero: float = 0.0) -> Tensor:
    """The Frobenius norm of each matrix, in the dtype of X; …×1×1, or 0-D if there is one.

    For what is below the smallest normal number, and is rounding, `zero` stands.
    """
    norm = ordinary_norms(X, keepdim=True)
    if norm is None:
        norm = _careful_norm(X, (-2, -1), True).to(X.dtype)
        norm = norm.masked_fill(norm < torch.finfo(norm.dtype).tiny, zero)
    return compact(norm)


def inverse_norm(X: Tensor) -> Tensor:
    """1 / ‖X‖ for each matrix, and 0 for a zero matrix; …×1×1, or 0-D if there is one."""
    return frobenius(X, zero=torch.inf).reciprocal_()


# Q of a QR decomposition, in place and made of matrix products ----------------------------------
#
# LAPACK's QR works column by column through its panels, torch adds copies of the whole matrix
# before and after it. Here LAPACK decomposes a panel of columns, and everything else is a product:
#
#     H = I − V T Vᵀ    the reflections of a panel, V …×rows×k unit lower trapezoidal, T …×k×k
#     Q = H₁ H₂ ⋯       formed from the last panel to the first, where the reflections were kept


def orthonormalise_(A: Tensor, noise: Tensor | None = None) -> Tensor | None:
    """A ← Q of A = Q R, for a contiguous batch of square matrices …×n×n.

    If the columns of A are known up to `noise`, …×1, returns which of them are rounding, …×n: those
    of which the columns before them leave nothing.
    """
    n, shape = A.shape[-1], A.shape[:-1]
    A = A.view(-1, n, n)
    if n < _PANELS_FROM or A.device.type != "cpu":  # elsewhere calls cost more than copies
        R, tau = torch.geqrf(A)
        A.copy_(torch.linalg.householder_product(R, tau))
        return None if noise is None else _rounding(R, noise.view(-1, 1)).view(shape)
    panels = [slice(start, min(start + _PANEL_WIDTH, n)) for start in range(0, n, _PANEL_WIDTH)]
    T = [_reflect_(A, columns) for columns in panels]
    rounding = None if noise is None else _rounding(A, noise.view(-1, 1)).view(shape)
    for columns in reversed(panels):
        _form_(A, columns, T.pop())
    return rounding


def _rounding(R: Tensor, noise: Tensor) -> Tensor:
    """The columns with |r_jj| ≤ margin · noise · (1 + Σ_{i<j} |r_ij / r_ii|).

    A column of which little is left has a direction that is known to noise / r_ii only, and so is
    what is left of every column with a part r_ij in it: that is the sum. Where next to nothing is
    left there is no such part to speak of, because the direction is itself rounding. The margin is
    for the errors of errors; float32 has no room for it, because covariances that training makes
    have eigenvalues as small as that.
    """
    margin = 16 if R.dtype == torch.float64 else 1
    own = R.diagonal(dim1=-2, dim2=-1).abs()
    inverse = torch.where(own > 64 * noise, 1 / own, 0).unsqueeze(-1)
    growth = R.triu().abs_().mul_(inverse).sum(-2)
    return own <= margin * noise * (1 + growth)


def _reflect_(A: Tensor, columns: slice) -> Tensor:
    """Decompose a panel, keep its reflections in its place and apply them to what is right of it.

    Returns T, so that H = I − V T Vᵀ.
    """
    panel, rest = A[..., columns.start :, columns], A[..., columns.start :, columns.stop :]
    packed, tau = torch.geqrf(panel)
    panel.copy_(packed)
    V = _reflections(packed)
    T = _triangle(V, tau)
    add_(rest, Product(V, product(T.mT, product(V.mT, rest))), weight=-1.0)
    return T


def _form_(A: Tensor, columns: slice, T: Tensor) -> None:
    """Apply the reflections of a panel to the columns of Q right of it, and form its own."""
    panel, rest = A[..., columns.start :, columns], A[..., columns.start :, columns.stop :]
    V = _reflections(panel)
    rest[..., : T.shape[-1], :] = 0  # where R was
    add_(rest, Product(V, product(T, product(V.mT, rest))), weight=-1.0)
    panel.copy_(product(V, product(T, V[..., : T.shape[-1], :].mT)).neg_())
    panel.diagonal(dim1=-2, dim2=-1).add_(1)


def _reflections(packed: Tensor) -> Tensor:
    """V, of which LAPACK stores what is below its diagonal of ones."""
    V = packed.tril(-1)
    V.diagonal(dim1=-2, dim2=-1).fill_(1)
    return V


def _triangle(V: Tensor, tau: Tensor) -> Tensor:
    """T, from T⁻¹ = striu(Vᵀ V) + diag(1/τ); where τ is zero, so are its row and column."""
    inverse = product(V.mT, V).triu_(1)
    inverse.diagonal(dim1=-2, dim2=-1).copy_(tau.reciprocal())
    identity = torch.eye(tau.shape[-1], dtype=tau.dtype, device=tau.device)
    T: Tensor = torch.linalg.solve_triangular(inverse, identity.expand_as(inverse), upper=True)
    return T
