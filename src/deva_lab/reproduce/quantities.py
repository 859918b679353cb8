"""What the paper's theory measures: pure functions, and trajectories along which it is measured.

    G, S      …×n×m         gradient, or any matrix that a norm is taken of
    O         …×n×m         its direction, msign(S) = U Vᵀ for S = U Σ Vᵀ
    Γ, γ      …×n×m         variance adaptation, positive; `gamma`
    L_m       …×n×m         smoothness along each coordinate
    r         –             min(n, m)

Matrices come in batches …×n×m; every function returns a number for each, shape ….
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from deva_optim import msign
from deva_optim.core.variance import side_norms

from ..quadratic import SIZES, Sampled, hessian

# Norms, the terms of the theorems, and signal to noise --------------------------------------------


def nuclear_norm(S: Tensor) -> Tensor:
    """‖S‖₁, the sum of the singular values."""
    norm: Tensor = torch.linalg.matrix_norm(S, "nuc")
    return norm


def linf_dual_norm(S: Tensor, gamma: Tensor) -> Tensor:
    """‖S‖_{*,γ} = Σ γ |S|: the γ-weighted dual of the ℓ∞ norm."""
    return (gamma * S.abs()).sum((-2, -1))


def schatten_dual_norm(S: Tensor, gamma: Tensor) -> Tensor:
    """‖S‖_{*,Γ} = ‖Γ ⊙ S‖₁: the Γ-weighted dual of the Schatten-∞ norm."""
    return nuclear_norm(gamma * S)


def nuclear_rank(S: Tensor) -> Tensor:
    """‖S‖₁² / ‖S‖_F²: between 1 and r, as if so many singular values were equal; 0 for a zero S.

    >>> nuclear_rank(torch.stack([torch.eye(3), torch.ones(3, 3)])).round()
    tensor([3., 1.])
    """
    return _ratio(nuclear_norm(S), torch.linalg.matrix_norm(S)).square()


def psi(G: Tensor, gamma: Tensor) -> Tensor:
    """ψ = ⟨G, msign(G)⟩_Γ = Σ Γ ⊙ G ⊙ msign(G), with an exact msign.

    What a small step of −Γ ⊙ msign(G) gains. It may be negative: see `psi_floor`.

    >>> psi(torch.tensor([[4.0, 1.0], [7.0, 4.0]]), torch.tensor([[1.0, 18.0], [1.0, 1.0]]))
    tensor(-0.2000)
    """
    return (gamma * G * msign(G, "svd")).sum((-2, -1))


def psi_floor(G: Tensor, gamma: Tensor) -> Tensor:
    """‖G‖₁ [min Γ − ½ (max Γ − min Γ) (√(r/ρ) − 1)], a bound of ψ from below; ρ the nuclear rank.

    It takes the place of the paper's min(Γ) ‖G‖₁, which does not hold, and agrees with it where
    all singular values are equal or all entries of Γ are (see docs/decisions.md).
    """
    low, high = gamma.amin((-2, -1)), gamma.amax((-2, -1))
    # Σ |G ⊙ O| ≤ √r ‖G‖_F and Σ G ⊙ O = ‖G‖₁, so the negative entries add up to `wrong` at most.
    wrong = (min(G.shape[-2:]) ** 0.5 * torch.linalg.matrix_norm(G) - nuclear_norm(G)) / 2
    floor: Tensor = low * nuclear_norm(G) - (high - low) * wrong
    return floor


def smoothness(L_m: Tensor, gamma: Tensor) -> Tensor:
    """‖L_m‖_{1,Γ²} = Σ L_m Γ², the smoothness term of both theorems for one Γ."""
    return (L_m * gamma.square()).sum((-2, -1))


def spectral_smoothness(L_m: Tensor, gamma: Tensor) -> Tensor:
    """min(Σᵢ maxⱼ, Σⱼ maxᵢ) of L_m Γ²: a smaller term that the matrix theorem holds with.

    The squares of the entries of msign(G) add up to at most one in every row and column, so that
    Σ L_m Γ² msign(G)² is at most this, up to max(n, m) times less than `smoothness`.

    >>> spectral_smoothness(torch.full((2, 5), 3.0), torch.ones(2, 5))
    tensor(6.)
    """
    A = L_m * gamma.square()
    return torch.minimum(A.amax(-1).sum(-1), A.amax(-2).sum(-1))


def linf_snr(g: Tensor, second_moment: Tensor) -> Tensor:
    """(g² / E[g²])^½ entry by entry: γ of DeVA-ℓ∞, before ε and κ; 0/0 is 0."""
    return _ratio(g.abs(), second_moment.sqrt())


def spectral_snr(G_: Tensor, second_moment: Tensor) -> Tensor:
    """(σᵢσⱼ / E[σᵢσⱼ])^½: Γ of DeVA-S∞, before ε and κ; 0/0 is 0.

    The row and column norms of G_, the gradient in the eigenbases, stand for σᵢ and σⱼ, and the
    second moment is E[r cᵀ].
    """
    r, c = side_norms(G_)
    return _ratio(r * c, second_moment).sqrt()


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is."""
    return torch.where(b > 0, a / b, 0)


# Trajectories of the two theorems' simplified updates, and the theorems' bounds along them --------
#
#     x_{t+1} = x_t − η γ_t ⊙ sign(g_t)        X_{t+1} = X_t − η Γ_t ⊙ msign(G_t)
#
# on the trace quadratic f(X) = ½ tr(Xᵀ H X), with η = 1/√T and g_t the mean over n_t = T samples,
# as the theorems want it. Everything is float64 and exact: msign by SVD, the variance by formula.
#
#     X, G  B×9×9  iterate and sampled gradient, B paths of the noise at once
#     A     9×9    H = Aᵀ A; a sample is a row of it
#     L_m   9×9    smoothness along each coordinate: the largest eigenvalue of its block

Direction = Literal["sign", "msign"]
Weights = Literal["one", "inverse root", "previous", "current"]

BETA: Final = 0.99  # of V, as in the paper's figure
FLOOR: Final = 1e-3  # the theorems want weights above zero
WEIGHTS: Final[dict[Weights, str]] = {
    "one": "Γ = 1",
    "inverse root": "Γ = EMA[G²]^(−1/2) of the gradients before",
    "previous": "DeVA's Γ of the step before",
    "current": "DeVA's own Γ, which knows the gradient it multiplies",
}


@dataclass(frozen=True)
class Bound:
    """Both sides of a theorem, means over the paths.

    Attributes:
        measure: The left side: the mean over the steps of ‖∇f‖_{1,γ} (sign) or of ψ (msign).
        bound: The right side as printed.
        smaller: The right side with the smaller smoothness term that the matrix theorem admits.
        shrunk: ‖L‖_{1,Γ̂²} / ‖L‖₁: what is left of the smoothness term of Γ = 1.
        aligned: The same for weights of mean square 1: below 1 if Γ is small where L is large.
        least_psi: The least ψ / (min(Γ) ‖G‖₁) of all steps and paths; at least 1 by the remark.
    """

    measure: float
    bound: float
    smaller: float
    shrunk: float
    aligned: float
    least_psi: float


class Problem(Sampled):
    """The trace quadratic of one seed, and what the theorems want to know of it."""

    def __init__(self, size: str, *, n: int, seed: int = 0) -> None:
        H = hessian(size, seed)
        super().__init__(H, torch.linalg.cholesky(H).mT, n=n, seed=seed)
        largest = torch.tensor([max(block) for block in SIZES[size]], dtype=torch.float64)
        self.L_m = largest.repeat_interleave(3)[:, None].expand(9, 9)

    def variance(self, X: Tensor) -> Tensor:
        """σ² of a single sample, entry by entry: 9 Σ_i (a_i a_iᵀ X)² − (H X)²."""
        AX = self.A @ X
        second = 9 * torch.einsum("ik,bil->bkl", self.A.square(), AX.square())
        variance: Tensor = (second - (self.H @ X).square()).clamp_min(0)
        return variance


def weigher(weights: Weights, direction: Direction) -> Callable[[Tensor], Tensor]:
    """From each gradient to the weights of its step, by it and those before it.

    DeVA's Γ is √(v / EMA[v]), bias-corrected, of v = G² for sign and r cᵀ for msign: 1 at the first
    step and for a constant G. The inverse root is in units in which the first one is 1.
    """
    V: Tensor | None = None
    scale = late = torch.tensor(1.0)

    def weigh(G: Tensor) -> Tensor:
        nonlocal V, scale, late
        r, c = side_norms(G)
        v = G.square() if direction == "sign" else r * c
        before, V = V, v if V is None else torch.lerp(v, V, BETA)
        previous, late = late, (v / V).sqrt().clamp_min(FLOOR)
        if weights == "current":
            return late
        if before is None:
            scale = v.mean((-2, -1), keepdim=True)
        if weights == "one" or before is None:
            return torch.ones_like(G)
        return (
            previous if weights == "previous" else (before / scale).rsqrt().clamp(FLOOR, 1 / FLOOR)
        )

    return weigh


def bound_along(
    size: str, direction: Direction, weights: Weights, *, steps: int, paths: int
) -> Bound:
    """Both sides of a theorem along its update, on one of the problems, with one of the weights."""
    f, T, B = Problem(size, n=steps), steps, paths
    X, is_sign = f.start(9, 9).expand(B, 9, 9), direction == "sign"
    delta, eta = f.value(X), 1 / math.sqrt(T)
    weigh, least = weigher(weights, direction), math.inf
    measure, smaller = (torch.zeros(B, dtype=torch.float64) for _ in range(2))
    mean, squares, variance = (torch.zeros(B, 9, 9, dtype=torch.float64) for _ in range(3))
    for _ in range(T):
        G = f.sample(X)
        gamma = weigh(G)
        variance = torch.maximum(variance, f.variance(X))
        if is_sign:
            O, measured = G.sign(), linf_dual_norm(f.H @ X, gamma)
        else:
            O = msign(G, "svd")
            measured = (gamma * G * O).sum((-2, -1))
            floor = gamma.amin((-2, -1)) * (G * O).sum((-2, -1))
            least = min(least, float((measured / floor).min()))
        measure, mean, squares = measure + measured / T, mean + gamma / T, squares + gamma**2 / T
        # The smaller term is convex in Γ², so its mean over the steps is taken.
        smaller = smaller + (smoothness if is_sign else spectral_smoothness)(f.L_m, gamma) / T
        X = X - eta * gamma * O
    sigma = variance.amax(0).sqrt()
    # 2 ‖σ‖_{1,γ̂} of the vector theorem, √r ‖σ‖_{F,Γ̂} of the matrix theorem
    weighted: Tensor = torch.linalg.matrix_norm(squares.sqrt() * sigma)
    terms = delta + (2 * linf_dual_norm(sigma, mean) if is_sign else 3 * weighted)
    smooth = smoothness(f.L_m, squares.sqrt())
    shrunk = smooth / f.L_m.sum()
    return Bound(
        measure=float(measure.mean()),
        bound=float((terms + 0.5 * smooth).mean()) * eta,
        smaller=float((terms + 0.5 * smaller).mean()) * eta,
        shrunk=float(shrunk.mean()),
        aligned=float((shrunk / squares.mean((-2, -1))).mean()),
        least_psi=least,
    )
