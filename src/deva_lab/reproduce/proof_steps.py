"""Steps of the paper's proofs that do not hold as printed, each with the case that shows it.

docs/decisions.md says what holds in their place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

import deva_optim

from .claims import Finding
from .quantities import (
    nuclear_norm,
    nuclear_rank,
    psi,
    psi_floor,
    schatten_dual_norm,
    smoothness,
    spectral_smoothness,
)

DRAWS: Final = 2000
SLACK: Final = 1 + 1e-9  # float64 rounding, for inequalities that may be equalities


def findings() -> list[Finding]:
    """One for each step."""
    return [
        _remark(),
        _remark_of_the_norm(),
        _repaired_remark(),
        _smoothness_line(),
        _smaller_smoothness(),
        _no_adaptation(),
        _measurability(late=False),
        _measurability(late=True),
        _one_path(),
        _nuclear_rank(),
    ]


def _matrix(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _draws() -> tuple[Tensor, Tensor]:
    """Gaussian 4×4 matrices S and log-normal weights Γ."""
    generator = torch.Generator().manual_seed(0)
    S, log_gamma = torch.randn(2, DRAWS, 4, 4, generator=generator, dtype=torch.float64)
    return S, log_gamma.exp()


def _remark() -> Finding:
    S, gamma = _matrix((4, 1), (7, 4)), _matrix((1, 18), (1, 1))
    found = float(psi(S, gamma))
    many, weights = _draws()
    below = psi(many, weights) < weights.amin((-2, -1)) * nuclear_norm(many) / SLACK
    return Finding(
        "Remark: min(Γ) ‖S‖₁ ≤ ⟨S, msign(S)⟩_Γ",
        "S = [4 1; 7 4], Γ = [1 18; 1 1]; and random 4×4 S and Γ",
        "does not hold",
        f"min(Γ) ‖S‖₁ = 10, ⟨S, msign(S)⟩_Γ = {found:.1f}: the step climbs. It fails for "
        f"{int(below.sum())} of {DRAWS} random pairs, so it is rare",
        found,
    )


def _remark_of_the_norm() -> Finding:
    S, gamma = _matrix((10, 10), (1, 10)), _matrix((1, 1), (10, 1))
    found, floor = float(schatten_dual_norm(S, gamma)), float(nuclear_norm(S))
    return Finding(
        "… and so min(Γ) ‖S‖₁ ≤ ‖S‖_{1,Γ}",
        "S = [10 10; 1 10], Γ = [1 1; 10 1]",
        "does not hold",
        f"‖S‖_{{1,Γ}} = {found:.0f}, min(Γ) ‖S‖₁ = {floor:.2f}; with min(Γ) ‖S‖_F it holds",
        found / floor,
    )


def _repaired_remark() -> Finding:
    S, gamma = _draws()
    worst = float(((psi_floor(S, gamma) - psi(S, gamma)) / nuclear_norm(S)).max())
    return Finding(
        "repaired: ‖S‖₁ [min Γ − ½ (max Γ − min Γ)(√(r/ρ) − 1)] ≤ ⟨S, msign(S)⟩_Γ, ρ the nuclear "
        "rank",
        f"{DRAWS} random 4×4 S and Γ",
        "holds" if worst <= 1e-9 else "does not hold",
        f"the left side is below the right by {-worst:.2g} ‖S‖₁ or more",
        worst,
    )


def _smoothness_line() -> Finding:
    L_m, gamma = _matrix((1, 0.01), (0.01, 1)), torch.full((2, 2), 2.0, dtype=torch.float64)
    moved = float((L_m * gamma.square() * torch.eye(2)).sum())
    printed, meant = float((L_m * gamma).sum()), float(smoothness(L_m, gamma))
    return Finding(
        "Matrix theorem, second display: ‖√L ⊙ Γ ⊙ msign(G)‖_F² ≤ Σ L Γ",
        "G = I, Γ = 2, L = [1 0.01; 0.01 1]",
        "does not hold",
        f"{moved:g} > {printed:g}: the square of Γ is missing. Σ L Γ² = {meant:g}, which the next "
        "line has",
        moved / printed,
    )


def _smaller_smoothness() -> Finding:
    S, gamma = _draws()
    L_m = gamma.flip(0)
    moved = (L_m * gamma.square() * deva_optim.msign(S, "svd").square()).sum((-2, -1))
    smaller, printed = spectral_smoothness(L_m, gamma), smoothness(L_m, gamma)
    holds = bool((moved <= smaller * SLACK).all())
    share = float((smaller / printed).median())
    return Finding(
        "sharpened: Σ L Γ² msign(G)² ≤ min(Σᵢ maxⱼ L Γ², Σⱼ maxᵢ L Γ²)",
        f"{DRAWS} random 4×4 G, Γ and L",
        "holds" if holds else "does not hold",
        f"{share:.2f} of Σ L Γ² in the median, and 1/max(n, m) of it where L and Γ are constant",
        share,
    )


def _no_adaptation() -> Finding:
    p = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
    optimizer = deva_optim.DeVASinf([("p", p)], betas=(0.0, 0.0, 0.0), eps=0.0, msign="svd")
    optimizer.telemetry_every = 1
    worst = 0.0
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        p.grad = torch.randn(4, 4, generator=generator, dtype=torch.float64)
        optimizer.step()
        worst = max(worst, abs(optimizer.telemetry()["p"]["gamma_mean"] - 1))
    return Finding(
        "The simplified updates are DeVA with β₁ = β₂ (= β₃) = 0",
        "DeVA-S∞ itself with these β, five gradients",
        "does not hold",
        f"Γ = 1 at every step (to {worst:.0e}): V is r cᵀ itself, and nothing is adapted. The "
        "theorems are about weights that come from elsewhere",
        worst,
    )


@dataclass(frozen=True)
class Walk:
    """A sign walk on Huber's function, its weight chosen with or without a look at the gradient.

    Attributes:
        wrong: Chance that a sampled gradient has the wrong sign.
        small: Weight of a step in the right direction; one in the wrong direction has weight 1.
        opposite: How large a wrong gradient is, as a share of the right one.
    """

    steps: int = 4000
    paths: int = 2000
    start: float = 2.0
    wrong: float = 0.1
    small: float = 0.05
    opposite: float = 0.05


def walk(w: Walk, *, late: bool) -> tuple[float, float]:
    """Both sides of the vector theorem, means over paths; `late` weighs by the step before."""
    p, a = w.wrong, w.opposite
    generator = torch.Generator().manual_seed(0)
    x = torch.full((w.paths,), w.start, dtype=torch.float64)
    last = torch.full_like(x, w.small)
    measure, mean, squares = (torch.zeros_like(x) for _ in range(3))
    T, eta = w.steps, 1 / math.sqrt(w.steps)
    for _ in range(T):
        slope = x.clamp(-1, 1)  # Huber: ½ x² up to 1, |x| − ½ beyond
        wrong = torch.rand(w.paths, generator=generator) < p
        now = torch.where(wrong, 1.0, w.small).double()
        gamma = last if late else now
        last = now
        measure += gamma * slope.abs() / T
        mean, squares = mean + gamma / T, squares + gamma.square() / T
        x = x - eta * gamma * torch.where(wrong, -slope, slope).sign()
    # The mean of the batch is slope · (−a or (1 + p a)/(1 − p)), unbiased; a sample has √T times
    # its deviation, and |slope| ≤ 1.
    deviation = math.sqrt(p * a**2 + (1 + p * a) ** 2 / (1 - p) - 1)
    sigma, delta = math.sqrt(T) * deviation, abs(w.start) - 0.5
    bound = (delta + 2 * sigma * mean + 0.5 * squares) * eta
    return float(measure.mean()), float(bound.mean())


def _measurability(*, late: bool) -> Finding:
    measure, bound = walk(Walk(), late=late)
    fits = measure <= bound
    about = (
        "with the same weights a step late" if late else "if Γ_t may depend on ξ_t, as DeVA's does"
    )
    return Finding(
        f"Vector theorem {about}",
        "sign descent on Huber's function, γ = 1 where the sampled sign is wrong and 0.05 where it "
        f"is right{', taken from the step before' if late else ''}",
        "holds" if fits else "does not hold",
        f"(1/T) Σ ‖∇f‖_{{1,γ}} = {measure:.4f}, bound {bound:.4f}",
        measure / bound,
    )


def _one_path() -> Finding:
    """F(x) = ½ x², x₁ = 0.1, T = 2: the path on which the first sign is wrong, chance p."""
    p, x, T = 0.01, 0.1, 2
    deviation = x * math.sqrt(p / (1 - p))  # of the mean of a batch of T
    measure = (x + (x + 1 / math.sqrt(T))) / 2
    bound = (x * x / 2 + 2 * math.sqrt(T) * deviation + 0.5) / math.sqrt(T)
    return Finding(
        "Vector theorem as printed: no expectation on either side",
        "½ x² from 0.1, T = 2, γ = 1; the path whose first sign is wrong, one in a hundred",
        "does not hold",
        f"{measure:.3f} > {bound:.3f} on that path: the bounds are about expectations, and those "
        "of γ̂ and γ̂² too",
        measure / bound,
    )


def _nuclear_rank() -> Finding:
    S = _matrix((0, 1), (1, 0))
    diagonal = torch.eye(2, dtype=torch.float64) / torch.linalg.matrix_norm(S)
    found = float(schatten_dual_norm(S, diagonal).square())
    return Finding(
        "Example: the nuclear rank is ‖S‖²_{*,D} with a diagonal D, Dᵢᵢ = 1/‖S‖_F",
        "S = [0 1; 1 0]",
        "does not hold",
        f"{found:g} and not {float(nuclear_rank(S)):g}: D ⊙ S keeps the diagonal of S alone. The "
        "weight 1/‖S‖_F in every entry is what it takes",
        found,
    )
