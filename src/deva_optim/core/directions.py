"""The scale-invariant direction: sign for vectors, the matrix sign for matrices.

X  …×n×m  what the direction is taken of
K  …×n×n  its Gram matrix X Xᵀ, n ≤ m
U Σ Vᵀ    its singular value decomposition; msign(X) = U Vᵀ
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Final, Literal, get_args

import torch
from torch import Tensor

from .linalg import (
    HALF,
    Columns,
    Product,
    StripProduct,
    Term,
    add_gram_,
    compact,
    frobenius,
    host_sees,
    inverse_norm,
    is_ordinary,
    mirror_,
    ordinary_norms,
    symmetric_products,
    value,
)
from .units import in_units

MsignKind = Literal["newton-schulz", "polar-express", "svd", "soft", "firm"]
MSIGN_KINDS: Final = get_args(MsignKind)

SOFT: Final[dict[str, int]] = {"soft": 1, "firm": 1024}
"""The kinds (X Xᵀ + c² I)^(−½) X with c² = ‖X‖² / max(n, k), for the short side n, and their k."""

Quintic = tuple[float, float, float]

# Jordan (2024): steepest at zero, so that five steps lift every direction; the singular values
# end between about 0.7 and 1.2 and never converge to 1.
JORDAN: Final[Quintic] = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ: Final[tuple[Quintic, ...]] = 5 * (JORDAN,)

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

_ITERATIONS: Final[dict[str, tuple[tuple[Quintic, ...], float]]] = {
    "newton-schulz": (NEWTON_SCHULZ, 1.0),
    "polar-express": (POLAR_EXPRESS, _SAFETY),
}


@torch.no_grad()
def msign(X: Tensor, kind: MsignKind = "newton-schulz") -> Tensor:
    """The matrix sign of X: its polar factor U Vᵀ, of the shape and dtype of X.

    Half precision is computed in float32, and `torch.autocast` changes nothing. No gradient flows
    through it. A zero matrix, and with ``"svd"`` every direction whose singular value is rounding
    noise, has sign zero.

    ``"soft"`` is (X Xᵀ + c² I)^(−½) X, c being the root mean square of the singular values, at the
    norm of U Vᵀ: what lies well below c is not lifted to one. It takes two to four steps for short
    sides of 13 to 20,000. ``"firm"`` is the same with c at most a 32nd of the Frobenius norm, which
    lifts more of the singular values the shorter the short side is; from 1,024 on the two agree.

    Args:
        X: A matrix or a batch of them, …×n×m.
        kind: ``"newton-schulz"`` (Jordan's quintic, five steps: singular values between about 0.7
            and 1.2), ``"polar-express"`` (five better steps at the same price), ``"svd"`` (exact,
            slow), ``"soft"`` or ``"firm"``.

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
    if not X.is_floating_point():
        raise TypeError(f"X must be a floating-point tensor, got {X.dtype}")
    if X.numel() == 0:
        return X.clone()
    A = X.float() if X.dtype in HALF else X
    # torch.compile does not know the context, and takes over the one of its caller.
    with nullcontext() if torch.compiler.is_compiling() else torch._C._DisableAutocast():
        return value(polar(in_units(A), kind)).to(X.dtype)


def polar(
    A: Tensor,
    kind: MsignKind,
    *,
    dtype: torch.dtype | None = None,
    scratch: bool = False,
    steps: tuple[Quintic, ...] | None = None,
) -> Tensor | Product:
    """The matrix sign of A, if possible as the last product that it takes.

    Args:
        A: A matrix or a batch of them, …×n×m.
        kind: As for `msign`.
        dtype: That of the products of an iteration; None is the dtype of A.
        scratch: Whether the memory of A may be used up.
        steps: Those of an iteration; None are the ones of its kind.
    """
    if kind == "svd":
        return _decompose(A)
    if kind in SOFT:
        return _soften(_normalized(A, 1.0, scratch=scratch), kind, dtype or A.dtype)
    if kind not in _ITERATIONS:
        raise ValueError(f"kind must be one of {', '.join(MSIGN_KINDS)}, got {kind!r}")
    usual, safety = _ITERATIONS[kind]
    coefficients = usual if steps is None else steps
    if dtype is None or dtype == A.dtype:
        return _iterate(A, coefficients, safety=safety, scratch=scratch)
    X = _normalized(A, safety, scratch=scratch)
    return value(_iterate(X.to(dtype), coefficients)).to(A.dtype)


def fast_dtype(X: Tensor) -> torch.dtype:
    """bfloat16 where the device has units for its products and X is float32; else that of X."""
    if X.dtype == torch.float32 and X.device.type == "cuda" and _has_bfloat16():
        return torch.bfloat16
    return X.dtype


def _has_bfloat16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _normalized(A: Tensor, safety: float, *, scratch: bool) -> Tensor:
    """A with a Frobenius norm of 1 / safety, so that no singular value is above that.

    A matrix whose norm is below the smallest normal number is rounding, and becomes zero.
    """
    norm = frobenius(A, zero=torch.inf)
    return torch.div(A, norm if safety == 1 else safety * norm, out=A if scratch else None)


def _soften(A: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """(A Aᵀ + c² I)^(−½) A at the norm √n, for A of norm one, whose c² is softness / n.

    That is the first part of msign([A, c I]), whose squared norm is 1 + softness.
    """
    tall = A.shape[-2] > A.shape[-1]
    X = A.mT if tall else A
    n, m = X.shape[-2:]
    softness = softness_of(kind, n)
    coefficients = soft_steps(n, softness) * (JORDAN,)
    ridge, keep = softness / n, 1 / (1 + softness)
    if dtype in HALF:  # by the steps of all of [A, c I], which need no Gram matrix in full
        c = torch.eye(n, dtype=A.dtype, device=A.device).mul_(math.sqrt(ridge))
        both = torch.cat([X, c.expand(*X.shape[:-1], n)], -1).mul_(math.sqrt(keep))
        last = _iterate(both.to(dtype), coefficients)
        U = value(Product(last.left, last.right[..., :m])).to(A.dtype)
    else:
        X = X.reshape(-1, n, m)
        K = symmetric_products(n, X.device)(X, X.mT).mul_(keep)
        K.diagonal(dim1=-2, dim2=-1).add_(keep * ridge)  # its trace is one
        U = torch.bmm(_by_gram(K, coefficients), X).reshape(*A.shape[:-2], n, m)
    U.mul_(math.sqrt(n) * inverse_norm(U))
    return U.mT if tall else U


def softness_of(kind: str, n: int) -> float:
    """c² as a share of the mean of the n squared singular values, for the kinds that have a c."""
    return n / max(n, SOFT[kind])


def soft_steps(n: int, softness: float) -> int:
    """How many steps lift what [A, c I] has at least to where Jordan's quintic levels off."""
    least = math.sqrt(softness / n / (1 + softness))
    return max(1, math.ceil(math.log(0.7 / least, JORDAN[0])))


def soft_in_basis(
    B: Columns, Q: Tensor | None, w: Tensor, kind: str
) -> tuple[Tensor | StripProduct, Tensor]:
    """Q · softsign(W B) with W = diag(w) Qᵀ, for B …×n×m with n ≤ m; w is …×n×1.

    Returns it up to a factor, and the factor that brings each matrix to the norm √n.

    In the coordinates of B that is (K + c² I)^(−½) S B with S = Q diag(w) Qᵀ and K = S B Bᵀ S. On a
    long rectangle two products are of full size and everything else is n×n, so that of a large one
    no more than strips need to be written down; on what is nearly a square three are, S B being the
    third, which takes fewer in all.
    """
    shape, (n, m) = B.M.shape, B.M.shape[-2:]
    seen, times, long = host_sees(B.M.device), symmetric_products(n, B.M.device), m >= 3 * n
    softness = softness_of(kind, n)
    if len(shape) != 3:
        w, Q = w.reshape(-1, n, 1), Q if Q is None else Q.reshape(-1, n, n)
    S = None if Q is None else times(Q * w.mT, Q.mT)
    if S is not None and long and seen and times is not torch.bmm and len(shape) == 3:
        found = _soft_by_strips(B, S, softness)
        if found is not None:
            return found
    X = B.written()
    X = X if len(shape) == 3 else X.reshape(-1, n, m)
    if S is None:
        X = X * w
    elif not long:
        X, S = torch.bmm(S, X), None
    K = _ridged(times(X, X.mT), S, softness) if seen else None
    norm = None if K is None else ordinary_norms(K, keepdim=True)
    ordinary = norm is not None
    if K is None or norm is None:  # on an accelerator the host would have to wait for the norm
        X = _normalized(X, 1.0, scratch=False)
        K = _ridged(times(X, X.mT), S, softness)
        norm = frobenius(K, zero=torch.inf)
    F = _by_gram(K.div_(compact(norm)), soft_quintics(n, softness))
    F = F if S is None else torch.bmm(F, S)
    del K, S  # Freed here: U is allocated next.
    U = torch.bmm(F, X)
    U = U if len(shape) == 3 else U.view(shape)
    if not ordinary:
        return U, math.sqrt(n) * inverse_norm(U)
    # ‖U‖² is between a third of the trace of K and 2 n times it: as ordinary as the norm of K.
    size = torch.linalg.vector_norm(U, dim=(-2, -1), keepdim=True)
    return U, math.sqrt(n) / compact(size)


def _soft_by_strips(B: Columns, S: Tensor, softness: float) -> tuple[StripProduct, Tensor] | None:
    """The same without B or the update in full; None if the norm of K is not an ordinary number."""
    n = S.shape[-1]
    times = symmetric_products(n, S.device)
    K = torch.zeros_like(S)
    for some in B.strips():
        add_gram_(K, B.written(some), keep=1.0, weight=1.0)
    mirror_(K)
    K = _ridged(K, S, softness)
    ridge = softness / (1 + softness) * _mean_eigenvalue(K)
    norm = ordinary_norms(K, keepdim=True)
    if norm is None:
        return None
    R = _by_gram(K.div_(norm), soft_quintics(n, softness))
    # ‖R S B‖² is the trace of R K R, K being as it was without its ridge.
    K.diagonal(dim1=-2, dim2=-1).sub_(ridge / norm.squeeze(-1))
    square = norm * times(R, K).mul_(R).sum((-2, -1), keepdim=True)
    return StripProduct(torch.bmm(R, S), B), compact((n / square).sqrt_())


def _ridged(K: Tensor, S: Tensor | None, softness: float) -> Tensor:
    """S K S + c² I, c² being a share of the mean eigenvalue of the first; B×n×n. K is used up.

    Over its Frobenius norm its eigenvalues lie between about softness / (n + softness) and 1.
    """
    if S is not None:
        K = symmetric_products(K.shape[-1], K.device)(torch.bmm(S, K), S)
    K.diagonal(dim1=-2, dim2=-1).add_(_mean_eigenvalue(K), alpha=softness)
    return K


def _mean_eigenvalue(K: Tensor) -> Tensor:
    return K.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)


def soft_quintics(n: int, softness: float) -> tuple[Quintic, ...]:
    """The fewest of the best quintics that lift √(softness / (n + softness)) … 1 to 0.6 … 1.4."""
    return _fewest_quintics(math.sqrt(softness / (n + softness)))


@cache
def _fewest_quintics(least: float) -> tuple[Quintic, ...]:
    found: list[Quintic] = []
    most = 1.0
    while not found or most > 1.4:
        quintic, error = best_quintic(least, most)
        least, most = 1 - error, 1 + error
        found.append(quintic)
    return tuple(found)


def best_quintic(least: float, most: float) -> tuple[Quintic, float]:
    """a x + b x³ + c x⁵ with the least distance from 1 between two numbers, and that distance.

    The distance is reached four times, above and below in turn (Remez): at both ends, and where the
    derivative is zero.
    """
    x = [least, (3 * least + most) / 4, (least + 3 * most) / 4, most]
    for _ in range(100):
        rows = [[y, y**3, y**5, (-1.0) ** i] for i, y in enumerate(x)]
        powers = torch.tensor(rows, dtype=torch.float64, device="cpu")
        a, b, c, error = torch.linalg.solve(powers, torch.ones_like(powers[0])).tolist()
        root = math.sqrt(9 * b * b - 20 * a * c)
        inner = [math.sqrt((-3 * b + sign * root) / (10 * c)) for sign in (-1, 1)]
        done = abs(inner[0] - x[1]) + abs(inner[1] - x[2]) < 1e-12
        x[1:3] = inner
        if done:
            break
    return (a, b, c), abs(error)


def _iterate(
    A: Tensor,
    coefficients: tuple[Quintic, ...],
    *,
    safety: float | None = None,
    scratch: bool = False,
) -> Product:
    """A after one quintic step a X + (b K + c K²) X for each triple, on its short side.

    Args:
        A: A matrix or a batch of them, …×n×m.
        coefficients: One triple for each step.
        safety: The steps start from A / (safety ‖A‖); None if A has such a norm already.
        scratch: Whether the memory of A may be used up.
    """
    tall = A.shape[-2] > A.shape[-1]
    X = (A.mT if tall else A).reshape(-1, min(A.shape[-2:]), max(A.shape[-2:]))
    # In units of n³, with m = ρ n: 5 (2ρ + 1) products one way, 2ρ + 17 the other, which needs
    # the precision: in bfloat16 the small eigenvalues of K are lost to rounding.
    long = X.shape[-1] > 1.5 * X.shape[-2] and X.dtype not in HALF
    P = _by_trace(X, coefficients, safety) if long and safety is not None else None
    if P is None:
        if safety is not None:
            return _iterate(_normalized(A, safety, scratch=scratch), coefficients)
        P, X = (_by_gram(_gram(X), coefficients), X) if long else _by_steps(X, coefficients)
    batch = A.shape[:-2]
    P, X = P.reshape(*batch, *P.shape[-2:]), X.reshape(*batch, *X.shape[-2:])
    return Product(X.mT, P.mT) if tall else Product(P, X)


def _by_trace(X: Tensor, coefficients: tuple[Quintic, ...], safety: float) -> Tensor | None:
    """What the steps from X / (safety ‖X‖) multiply X by; X itself is not divided.

    ‖X‖² is the trace of K = X Xᵀ, so that a long X is read for its two products alone. None if the
    host does not see that no square in it has underflown or overflown.
    """
    if not host_sees(X.device):
        return None
    K = _gram(X)
    norm = safety * K.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].sqrt_()
    if not is_ordinary(norm):
        return None
    return _by_gram(K.div_(compact(norm.square())), coefficients).div_(compact(norm))


def _gram(X: Tensor) -> Tensor:
    return symmetric_products(X.shape[-2], X.device)(X, X.mT)


def _by_steps(X: Tensor, coefficients: tuple[Quintic, ...]) -> tuple[Tensor, Tensor]:
    times = symmetric_products(X.shape[-2], X.device)
    for quintic in coefficients[:-1]:
        X = torch.bmm(_polynomial(times(X, X.mT), quintic, times), X)
    return _polynomial(times(X, X.mT), coefficients[-1], times), X


def _by_gram(K: Tensor, coefficients: tuple[Quintic, ...]) -> Tensor:
    """What the same steps multiply X by, from K = X Xᵀ: a step is X ← P X, so K ← P K P.

    All P are polynomials of the first K and commute; X itself is not touched.
    """
    times = symmetric_products(K.shape[-1], K.device)
    P, R = _polynomial(K, coefficients[0], times), None  # R is the product of the P before
    for quintic in coefficients[1:]:
        K = times(times(P, K), P)
        R = P if R is None else times(P, R)
        P = _polynomial(K, quintic, times)
    del K  # Freed here: one more product is allocated next.
    return P if R is None else times(P, R)


def _polynomial(K: Tensor, quintic: Quintic, times: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """P = a I + b K + c K²."""
    a, b, c = quintic
    if times is torch.bmm:
        P = torch.baddbmm(K, K, K, beta=b, alpha=c)
    else:
        P = times(K, K).mul_(c).add_(K, alpha=b)
    P.diagonal(dim1=-2, dim2=-1).add_(a)
    return P


def _decompose(A: Tensor) -> Product:
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    noise = max(A.shape[-2:]) * torch.finfo(A.dtype).eps * S[..., :1]
    return Product(U * S.gt(noise).unsqueeze(-2), Vh)


def settled_sign(X: Tensor) -> Tensor:
    """sign(X), and zero for entries that rotating X into a basis can make by rounding alone.

    In the basis of its own gradient a momentum is diagonal; a bare sign would turn the rounding
    errors beside the diagonal into a matrix of random ±1.
    """
    noise = 8 * math.sqrt(max(X.shape[-2:])) * torch.finfo(X.dtype).eps
    return X.sign() * (X.abs() > noise * X.abs().amax((-2, -1), keepdim=True))


# What `torch.compile` may call while it compiles, in place of following it.
CONSTANTS: Final = (soft_quintics, _has_bfloat16)


# The scale s, from the update and the shape of its matrices --------------------------------------


def spectral_scale(U: Term, shape: tuple[int, ...]) -> float:
    """0.2 √max(n, m): gives an orthogonal n×m update the RMS of AdamW's, about 0.2."""
    return 0.2 * math.sqrt(max(shape[-2:]))


def shape_scale(U: Term, shape: tuple[int, ...]) -> float:
    """√max(1, n/m), the scale of the first Muon, and of torch's by default."""
    return math.sqrt(max(1.0, shape[-2] / shape[-1]))


def rms_scale(U: Term, shape: tuple[int, ...]) -> Tensor:
    """What brings U to an RMS of 0.2; …×1×1."""
    return 0.2 * math.sqrt(shape[-2] * shape[-1]) * inverse_norm(value(U))


def unit_scale(U: Term, shape: tuple[int, ...]) -> float:
    """1: the direction already has the size of AdamW's update."""
    return 1.0
