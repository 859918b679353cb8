"""The scale-invariant direction: sign for vectors, the matrix sign for matrices.

X  …×n×m  what the direction is taken of
K  …×n×n  its Gram matrix X Xᵀ, n ≤ m
U Σ Vᵀ    its singular value decomposition; msign(X) = U Vᵀ
"""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import torch
from torch import Tensor

MsignKind = Literal["newton-schulz", "polar-express", "svd"]
MSIGN_KINDS: Final = get_args(MsignKind)

Quintic = tuple[float, float, float]

# Jordan (2024): steepest at zero, so that five steps lift every direction; the singular values
# end between about 0.7 and 1.2 and never converge to 1.
NEWTON_SCHULZ: Final[tuple[Quintic, ...]] = 5 * ((3.4445, -4.7750, 2.0315),)

# Amsel et al. (2025): each step is the best quintic for the interval the last one left, starting
# from [0.001, 1]. The safety factor keeps rounding from pushing a value outside of it.
_POLAR_EXPRESS: Final[tuple[Quintic, ...]] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
_SAFETY: Final = 1.01
POLAR_EXPRESS: Final[tuple[Quintic, ...]] = (
    *((a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in _POLAR_EXPRESS[:-1]),
    _POLAR_EXPRESS[-1],
)


def msign(X: Tensor, kind: MsignKind = "newton-schulz") -> Tensor:
    """The matrix sign of X: its polar factor U Vᵀ, of the shape and dtype of X.

    Half precision is computed in float32. A zero matrix, and with ``"svd"`` every direction whose
    singular value is rounding noise, has sign zero.

    Args:
        X: A matrix or a batch of them, …×n×m.
        kind: ``"newton-schulz"`` (Jordan's quintic, five steps: singular values between about 0.7
            and 1.2), ``"polar-express"`` (five better steps at the same price) or ``"svd"``
            (exact, slow).

    >>> import torch
    >>> msign(torch.tensor([[3.0, 0.0], [0.0, -0.5]]), "svd")
    tensor([[ 1.,  0.],
            [ 0., -1.]])

    References:
        Jordan et al., *Muon: An optimizer for hidden layers in neural networks*, 2024.
        Amsel et al., *The Polar Express*, 2025 (arXiv:2505.16932).
    """
    if X.ndim < 2:
        raise ValueError(
            f"X must have at least two dimensions, got shape {tuple(X.shape)}; "
            "use torch.sign for a vector"
        )
    A = X.float() if X.dtype in (torch.float16, torch.bfloat16) else X
    if kind == "newton-schulz":
        return _iterate(A, NEWTON_SCHULZ, safety=1.0).to(X.dtype)
    if kind == "polar-express":
        return _iterate(A, POLAR_EXPRESS, safety=_SAFETY).to(X.dtype)
    if kind == "svd":
        return _polar_factor(A).to(X.dtype)
    raise ValueError(f"kind must be one of {', '.join(MSIGN_KINDS)}, got {kind!r}")


def _iterate(A: Tensor, coefficients: tuple[Quintic, ...], *, safety: float) -> Tensor:
    """A after one quintic step a X + (b K + c K²) X for each triple, on its short side."""
    tall = A.shape[-2] > A.shape[-1]
    X = (A.mT if tall else A).reshape(-1, min(A.shape[-2:]), max(A.shape[-2:]))
    X = X / (safety * frobenius(X)).clamp_min(torch.finfo(X.dtype).tiny)
    # In units of n³, with m = ρ n: 5 (2ρ + 1) products one way, 2ρ + 17 the other.
    X = _by_gram(X, coefficients) if X.shape[-1] > 1.5 * X.shape[-2] else _by_steps(X, coefficients)
    X = X.reshape(*A.shape[:-2], *X.shape[-2:])
    return X.mT if tall else X


def _by_steps(X: Tensor, coefficients: tuple[Quintic, ...]) -> Tensor:
    for a, b, c in coefficients:
        K = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(K, K, K, beta=b, alpha=c), X, beta=a)
    return X


def _by_gram(X: Tensor, coefficients: tuple[Quintic, ...]) -> Tensor:
    """The same, on n×n matrices: a step is X ← P X with P = a I + b K + c K², so K ← P K P.

    All P are polynomials of the first K and commute; X is touched at the beginning and at the end.
    """
    K = X @ X.mT
    R = None  # the product of the P so far
    for i, (a, b, c) in enumerate(coefficients):
        P = torch.baddbmm(K, K, K, beta=b, alpha=c)
        P.diagonal(dim1=-2, dim2=-1).add_(a)
        R = P if R is None else P @ R
        if i < len(coefficients) - 1:
            K = P @ K @ P
    return X if R is None else R @ X


def _polar_factor(A: Tensor) -> Tensor:
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    noise = max(A.shape[-2:]) * torch.finfo(A.dtype).eps * S[..., :1]
    polar: Tensor = (U * S.gt(noise).unsqueeze(-2)) @ Vh
    return polar


def settled_sign(X: Tensor) -> Tensor:
    """sign(X), and zero for entries that rotating X into a basis can make by rounding alone.

    In the basis of its own gradient a momentum is diagonal; a bare sign would turn the rounding
    errors beside the diagonal into a matrix of random ±1.
    """
    noise = 8 * math.sqrt(max(X.shape[-2:])) * torch.finfo(X.dtype).eps
    return X.sign() * (X.abs() > noise * X.abs().amax((-2, -1), keepdim=True))


def spectral_scale(U: Tensor) -> float:
    """0.2 √max(n, m): gives an orthogonal n×m update the RMS of AdamW's, about 0.2."""
    return 0.2 * math.sqrt(max(U.shape[-2:]))


def rms_scale(U: Tensor) -> Tensor:
    """What brings U to an RMS of 0.2; …×1×1."""
    return 0.2 * math.sqrt(U.shape[-2] * U.shape[-1]) * inverse_norm(U)


def unit_scale(U: Tensor) -> float:
    """1: the direction already has the size of AdamW's update."""
    return 1.0


def inverse_norm(X: Tensor) -> Tensor:
    """1 / ‖X‖ for each matrix, and 0 for a zero matrix; …×1×1."""
    norm = frobenius(X)
    return torch.where(norm > 0, 1 / norm, 0)


def frobenius(X: Tensor) -> Tensor:
    """The Frobenius norm of each matrix; …×1×1."""
    norm: Tensor = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True)
    return norm
