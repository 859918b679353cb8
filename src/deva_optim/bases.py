"""The basis a method works in: the identity, or the eigenvectors of its two covariances.

    G         …×n×m         gradient
    L, R      …×n×n, …×m×m  EMAs of G Gᵀ and Gᵀ G
    Q_L, Q_R  as L, R       orthonormal eigenvectors of L and R, one a column
    None      in place of a basis or a covariance: that side keeps the identity

Leading dimensions are a batch of independent matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch does not list it

from .householder import orthonormalise_
from .terms import Product, mirror_, product

Side = Tensor | None
SIDES: Final = ("left", "right")

_STRIP: Final = 512  # rows or columns of a basis that are moved at a time, to save memory


def sides_with_basis(n: int, m: int, *, sides: str, max_dim: int) -> tuple[bool, bool]:
    """Whether the left and the right side of an n×m matrix get a basis of their own."""
    left = n <= max_dim and (sides == "both" or n <= m)
    right = m <= max_dim and (sides == "both" or m <= n)
    return left, right


def project(X: Tensor, Q_L: Side, Q_R: Side) -> Tensor:
    """Q_Lᵀ X Q_R: parameter coordinates to eigenbasis."""
    X = X if Q_L is None else product(Q_L.mT, X)
    return X if Q_R is None else product(X, Q_R)


def restore(X: Tensor, Q_L: Side, Q_R: Side) -> Tensor | Product:
    """Q_L X Q_Rᵀ: eigenbasis to parameter coordinates, the last product left to whoever adds it."""
    if Q_R is None:
        return X if Q_L is None else Product(Q_L, X)
    return Product(X if Q_L is None else product(Q_L, X), Q_R.mT)


def eigenbasis_(L: Tensor, Q: Tensor) -> None:
    """Q ← the eigenvectors of L, unless they cannot be computed."""
    Q.copy_(_solve(lambda A: torch.linalg.eigh(A).eigenvectors, L, keep=Q))


def refresh_(L: Tensor, Q: Tensor) -> None:
    """Q ← the Q of a QR of L Q, a power iteration, its columns in the order they had.

    QR favours the columns that come first, so they are sorted by Rayleigh quotient for it and put
    back afterwards: whatever was measured along column i of Q still belongs to column i.
    """
    mirror_(L)
    rayleigh = torch.cat([_multiply_(L, columns) for columns in torch.split(Q, _STRIP, -1)], -1)
    order = rayleigh.argsort(-1, descending=True)
    _reorder_(Q, order)
    try:
        orthonormalise_(Q)
    except LinAlgError:
        Q.fill_(torch.nan)
    _reorder_(Q, order.argsort(-1))
    if Q.device.type == "cpu" and not Q.sum().isfinite():  # an accelerator would have to wait
        Q.copy_(torch.eye(Q.shape[-1], dtype=Q.dtype))
        eigenbasis_(L, Q)


def inverse_root_(L: Tensor, P: Tensor, *, root: int, eps: float) -> None:
    """P ← (L + εI)^(−1/root), unless it cannot be computed."""

    def inverse_power(A: Tensor) -> Tensor:
        eigenvalues, Q = torch.linalg.eigh(A)
        # Rounding leaves eigenvalues just below zero; a singular L and ε = 0 would divide by zero.
        floor = torch.finfo(A.dtype).eps * eigenvalues[..., -1:] + torch.finfo(A.dtype).tiny
        half = (eigenvalues.clamp_min(0) + eps).maximum(floor).pow(-0.5 / root)
        Q.mul_(half.unsqueeze(-2))
        power: Tensor = Q @ Q.mT
        return power

    P.copy_(_solve(inverse_power, L, keep=P))


def _multiply_(L: Tensor, X: Tensor) -> Tensor:
    """X ← L X for some columns; returns xᵀ L x for each."""
    Y = product(L, X)
    rayleigh = X.mul_(Y).sum(-2)
    X.copy_(Y)
    return rayleigh


def _reorder_(Q: Tensor, order: Tensor) -> None:
    """Put the columns of Q into this order."""
    for rows in torch.split(Q, _STRIP, -2):
        rows.copy_(rows.gather(-1, order.unsqueeze(-2).expand_as(rows)))


def _solve(decompose: Callable[[Tensor], Tensor], A: Tensor, *, keep: Tensor) -> Tensor:
    """decompose(A); in float64 where that fails, and `keep` where float64 fails too.

    On an accelerator only the last fallback is available, because asking whether a result is
    finite would stall the host.
    """
    for dtype in (A.dtype, torch.float64):
        try:
            result = decompose(A.to(dtype)).to(A.dtype)
        except LinAlgError:
            continue
        if A.device.type != "cpu":
            finite = result.isfinite().all(-1).all(-1)[..., None, None]
            return torch.where(finite, result, keep)
        if result.sum().isfinite():
            return result
    if A.ndim > 2:  # one matrix that fails must not cost the others of the batch their basis
        return torch.stack([_solve(decompose, a, keep=k) for a, k in zip(A, keep, strict=True)])
    return keep
