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
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch does not list it

from .linalg import Number, Product, mirror_, orthonormalise_, product, scalar_dtype

Side = Tensor | None
SIDES: Final = ("left", "right")
BASES: Final = ("basis_left", "basis_right")


def project(X: Tensor, Q_L: Side, Q_R: Side) -> Tensor:
    """Q_Lᵀ X Q_R: parameter coordinates to eigenbasis."""
    X = X if Q_L is None else product(Q_L.mT, X)
    return X if Q_R is None else product(X, Q_R)


def restore(X: Tensor, Q_L: Side, Q_R: Side) -> Tensor | Product:
    """Q_L X Q_Rᵀ: eigenbasis to parameter coordinates, the last product left to whoever adds it."""
    if Q_R is None:
        return X if Q_L is None else Product(Q_L, X)
    return Product(X if Q_L is None else product(Q_L, X), Q_R.mT)


def first_bases(G: Tensor, *, left: bool, right: bool) -> tuple[Side, Side]:
    """Orthonormal eigenvectors of G Gᵀ and of Gᵀ G for one matrix, on the sides that are wanted.

    Only the short side is decomposed. The long one gets the singular vectors that belong to it, and
    for the null space, of which a decomposition would return whatever rounding makes of it, axes
    made orthogonal to these: a continuous function of G, the same to rounding everywhere.
    """
    n, m = G.shape
    X = (G if n <= m else G.mT).to(scalar_dtype(G.device))
    K = X @ X.mT
    try:
        eigenvalues, Q = torch.linalg.eigh(K)
    except LinAlgError:
        return None, None
    # Below this an eigenvalue is rounding: of K, or of the gradient from which it was computed.
    wide, own = torch.finfo(X.dtype).eps, torch.finfo(G.dtype).eps
    noise = K.trace() * (16 * wide + 64 * max(n, m) * own**2)
    known = eigenvalues > noise
    Q, sizes = Q[:, known], eigenvalues[known].sqrt()
    want_short, want_long = (left, right) if n <= m else (right, left)
    short = (Q if len(sizes) == len(Q) else _completed(Q)) if want_short else None
    long = _completed(X.mT @ (Q / sizes)) if want_long else None
    short, long = (None if basis is None else basis.to(G.dtype) for basis in (short, long))
    return (short, long) if n <= m else (long, short)


def eigenbasis_(L: Tensor, Q: Tensor) -> None:
    """Q ← the eigenvectors of L, unless they cannot be computed; in its null space as above."""

    def decompose(A: Tensor) -> Tensor:
        found: tuple[Tensor, Tensor] = torch.linalg.eigh(A)
        eigenvalues, vectors = found
        if A.device.type != "cpu":  # whether there is a null space an accelerator would have to say
            return vectors
        known = ~(eigenvalues <= _noise(A))  # what could not be computed is no null space
        for place in (~known.all(-1)).nonzero().tolist():
            one = tuple(place)
            vectors[one] = _completed(vectors[one][:, known[one]])
        return vectors

    Q.copy_(_solve(decompose, L, keep=Q))


def refresh_(L: Tensor, Q: Tensor, *, rank: Number = torch.inf) -> None:
    """Q ← the Q of a QR of L Q, a power iteration, its columns in the order they had.

    QR favours the columns that come first, so they are sorted by Rayleigh quotient for it and put
    back afterwards: whatever was measured along column i of Q still belongs to column i. Where L
    leaves nothing but rounding of a column, the old column is taken: in the null space of L, beyond
    its rank, as far as that is known (few gradients have been taken in), and where the columns
    before have all that L makes of it, which only the QR can tell.
    """
    mirror_(L)
    noise = _noise(L)
    A = product(L, Q)
    quotients, order = _quotients(A, Q).sort(dim=-1, descending=True, stable=True)
    A, old = _reordered(A, order), _reordered(Q, order)
    kept = quotients <= noise
    if isinstance(rank, Tensor) or rank < Q.shape[-1]:
        rank = rank.squeeze(-1) if isinstance(rank, Tensor) else rank
        kept |= torch.arange(Q.shape[-1], device=Q.device) >= rank
    torch.where(kept.unsqueeze(-2), old, A, out=A)
    try:
        # On an accelerator the host would have to wait for the answer, here and below.
        rounding = orthonormalise_(A, noise if Q.device.type == "cpu" else None)
        if rounding is not None and (rounding := rounding & ~kept).any():
            A = torch.where((kept | rounding).unsqueeze(-2), old, product(L, old))
            last = rounding.long().argsort(dim=-1, stable=True)
            A = _reordered(A, last)
            orthonormalise_(A)
            A = _reordered(A, last.argsort(-1))
    except LinAlgError:
        A.fill_(torch.nan)
    Q.scatter_(-1, order.unsqueeze(-2).expand_as(Q), A)  # column i to where it came from
    if Q.device.type == "cpu" and not Q.sum().isfinite():
        Q.copy_(torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device))
        eigenbasis_(L, Q)


def rayleigh(L: Tensor, Q: Tensor) -> Tensor:
    """diag(Qᵀ L Q), what L has along each column of Q; …×n×1. Rounding makes none negative."""
    mirror_(L)
    return _quotients(product(L, Q), Q).clamp_min_(0).unsqueeze(-1)


def _quotients(A: Tensor, Q: Tensor) -> Tensor:
    """diag(Qᵀ A), the Rayleigh quotients of the columns of Q if A is L Q; …×n."""
    return (Q * A).sum(-2)


def inverse_root_(L: Tensor, P: Tensor, *, root: int, eps: Number) -> None:
    """P ← (L + εI)^(−1/root), unless it cannot be computed; ε a number for each matrix."""
    eps = eps.squeeze(-1) if isinstance(eps, Tensor) else eps

    def inverse_power(A: Tensor) -> Tensor:
        eigenvalues, Q = torch.linalg.eigh(A)
        # Rounding leaves eigenvalues just below zero; a singular L and ε = 0 would divide by zero.
        floor = torch.finfo(A.dtype).eps * eigenvalues[..., -1:] + torch.finfo(A.dtype).tiny
        half = (eigenvalues.clamp_min(0) + eps).maximum(floor).pow(-0.5 / root)
        Q.mul_(half.unsqueeze(-2))
        power: Tensor = Q @ Q.mT
        return power

    P.copy_(_solve(inverse_power, L, keep=P))


def _noise(L: Tensor) -> Tensor:
    """What rounding can make of an eigenvalue or a Rayleigh quotient of L that is zero; …×1."""
    trace = L.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
    return 4 * torch.finfo(L.dtype).eps * trace


def _completed(Q: Tensor) -> Tensor:
    """Nearly orthonormal columns n×k, and n − k more that make an orthonormal basis of them; n×n.

    The columns come last, in their order, as eigenvectors do that belong to large eigenvalues. They
    take the places of the axes that they stand for best, the pivots of an LU decomposition, in
    which the weights decide where columns treat axes alike. The reflections that turn these axes
    into the columns turn the other axes into the rest: one that the columns have no part in stays.
    """
    n, k = Q.shape
    wide = Q.flip(-1).to(scalar_dtype(Q.device))  # QR favours what comes first
    weights = torch.linspace(1, 0.5, n, dtype=wide.dtype, device=wide.device)
    pivots = torch.linalg.lu_factor(wide * weights.unsqueeze(-1)).pivots.tolist()
    axes = list(range(n))
    for i, j in enumerate(pivots):  # LAPACK's exchanges of rows, counted from one
        axes[i], axes[j - 1] = axes[j - 1], axes[i]
    axes[k:] = sorted(axes[k:])
    reflections, tau = torch.geqrf(wide[axes])
    full = nn.functional.pad(reflections, (0, n - k))
    full[axes] = torch.linalg.householder_product(full, tau)
    return full.flip(-1).to(Q.dtype)


def _reordered(Q: Tensor, order: Tensor) -> Tensor:
    """The columns of Q in this order."""
    return Q.gather(-1, order.unsqueeze(-2).expand_as(Q))


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
