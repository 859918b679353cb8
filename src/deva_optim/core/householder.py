"""Q of a QR decomposition, in place and made of matrix products.

LAPACK's QR works column by column through its panels, torch adds copies of the whole matrix before
and after it. Here a panel of columns is decomposed by LAPACK and everything else is a product:

    H = I − V T Vᵀ    the reflections of a panel, V …×rows×k unit lower trapezoidal, T …×k×k
    Q = H₁ H₂ ⋯       formed from the last panel to the first, where the reflections were kept
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from .linalg import Product, add_, product

# Measured: below this size LAPACK is as fast as anything; above it panels of this width are best.
_PANELS_FROM: Final = 512
_WIDTH: Final = 96


def orthonormalise_(A: Tensor) -> None:
    """A ← Q of A = Q R, for a contiguous batch of square matrices …×n×n."""
    n = A.shape[-1]
    A = A.view(-1, n, n)
    if n < _PANELS_FROM:
        A.copy_(torch.linalg.householder_product(*torch.geqrf(A)))
        return
    panels = [slice(start, min(start + _WIDTH, n)) for start in range(0, n, _WIDTH)]
    T = [_reflect_(A, columns) for columns in panels]
    for columns in reversed(panels):
        _form_(A, columns, T.pop())


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
