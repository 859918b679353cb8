"""`theory`: the paper's propositions and theorems, each a function that checks it in float64.

`STATEMENTS` has them all, templates/theory.md says what they are; a test holds each to its verdict,
`deva reproduce theory` writes the page of them, and docs/decisions.md says what holds in the place
of those that do not.

    G         n×m    gradient; `samples` are the gradients that an expectation is taken over
    L, R      –      G Gᵀ and Gᵀ G, eigenbases Q_L and Q_R
    K         nm×nm  L^½ ⊗ R^½

(A ⊗ B) vec(X) = vec(A X Bᵀ) holds for the vec that reads a matrix row by row, as flatten does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

import deva_optim
from deva_optim import msign
from deva_optim.core.bases import project, restore
from deva_optim.core.linalg import value
from deva_optim.core.variance import side_norms

from .. import quadratic
from .experiment import Shown, one_thread, shown, written
from .measures import Finding, Verdict, decided
from .quantities import (
    WEIGHTS,
    Bound,
    Direction,
    Weights,
    bound_along,
    nuclear_norm,
    nuclear_rank,
    psi,
    psi_floor,
    schatten_dual_norm,
    smoothness,
    spectral_smoothness,
    spectral_snr,
)

SHAPES: Final = ((2, 2), (3, 3), (4, 4), (3, 5), (5, 3), (6, 4))
DRAWS: Final = 20
MANY: Final = 2000
ROUNDING: Final = 1e-10  # float64, amplified by the fourth root of singular values near zero
SLACK: Final = 1 + 1e-9  # float64 rounding, for inequalities that may be equalities


def stated(name: str, value: float, verdict: Verdict, **numbers: Any) -> Finding:
    """A finding about a statement, in the words of templates/theory.md."""
    sizes: dict[str, Any] = {"shapes": len(SHAPES), "draws": DRAWS, "many": MANY}
    text = written("theory.md", name, value=value, **sizes, **numbers)
    claim, computed, how = text.split("\n\n")
    return Finding(verdict, how, value, claim, computed)


# Coordinates and eigenvalues, against the full matrices -------------------------------------------


def _randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def proposition() -> Finding:
    """Squared row and column norms in the eigenbases are eigenvalues."""
    draws = [_randn(*shape, seed=seed) for shape in SHAPES for seed in range(DRAWS)]
    worst = max(map(_eigenvalue_error, draws))
    return stated("proposition", worst, decided(worst <= ROUNDING))


def _eigenvalue_error(G: Tensor) -> float:
    (λ, Q_L), (μ, Q_R) = torch.linalg.eigh(G @ G.mT), torch.linalg.eigh(G.mT @ G)
    r, c = side_norms(project(G, Q_L, Q_R))
    left, right = r[:, 0].square() - λ, c[0].square() - μ
    return float(torch.cat([left, right]).abs().max() / λ.max())


def theorem() -> Finding:
    """The update in coordinates is that of the Kronecker expression."""
    draws = (_samples(shape, seed, turn=0.0) for shape in SHAPES for seed in range(DRAWS))
    worst = max(map(_difference, draws))
    return stated("theorem", worst, decided(worst <= ROUNDING))


def without_stability(turn: float) -> Finding:
    """What it costs that bases do move."""
    found = [_difference(_samples((4, 4), seed, turn=turn)) for seed in range(DRAWS)]
    middle = float(torch.tensor(found).median())
    verdict: Verdict = "holds" if middle < ROUNDING else "holds in part"
    return stated("without_stability", middle, verdict, turn=turn)


def _difference(samples: list[Tensor]) -> float:
    """‖coordinate-wise − Kronecker‖ / ‖Kronecker‖ for the first of the samples."""
    expected = kronecker_update(samples)
    gap = torch.linalg.matrix_norm(coordinatewise_update(samples) - expected)
    return float(gap / torch.linalg.matrix_norm(expected))


def coordinatewise_update(samples: list[Tensor]) -> Tensor:
    """Q_L (Γ ⊙ msign(Q_Lᵀ G Q_R)) Q_Rᵀ with Γ = √(r cᵀ / E[r cᵀ]), for the first sample."""
    stack = torch.stack(samples)
    Q_L = torch.linalg.eigh((stack @ stack.mT).mean(0)).eigenvectors
    Q_R = torch.linalg.eigh((stack.mT @ stack).mean(0)).eigenvectors
    products = [r * c for r, c in (side_norms(project(A, Q_L, Q_R)) for A in samples)]
    G_, expected = project(samples[0], Q_L, Q_R), torch.stack(products).mean(0)
    settled = expected * (expected / expected.max() > 1e-7)  # zero where it is rounding
    return value(restore(spectral_snr(G_, settled) * msign(G_, "svd"), Q_L, Q_R))


def kronecker_update(samples: list[Tensor]) -> Tensor:
    """E[L^½ ⊗ R^½]^(−½) (L ⊗ R)^¼ vec(msign(G)), for the first sample, in full."""
    G = samples[0]
    K = torch.stack([torch.kron(power(A @ A.mT, 0.5), power(A.mT @ A, 0.5)) for A in samples])
    adapted = power(K.mean(0), -0.5) @ power(K[0], 0.5) @ msign(G, "svd").flatten()
    return adapted.view_as(G)


def power(A: Tensor, exponent: float) -> Tensor:
    """A to a power, for positive semidefinite A; zero on its null space."""
    λ, Q = torch.linalg.eigh(A)
    largest = λ.amax(-1, keepdim=True)
    powers = torch.where(λ > 1e-12 * largest, λ.clamp_min(1e-300) ** exponent, 0)
    found: Tensor = (Q * powers.unsqueeze(-2)) @ Q.mT
    return found


def _samples(shape: tuple[int, int], seed: int, *, turn: float) -> list[Tensor]:
    """Gradients with bases of their own, turned away from common ones, and random singular values.

    They have one order of their singular values: what the bases share is then well defined.
    """
    U, V = (
        torch.linalg.qr(_randn(k, k, seed=start)).Q
        for k, start in zip(shape, (seed, seed + 1000), strict=True)
    )
    found = []
    for i in range(5):
        sizes = torch.arange(1, min(shape) + 1) + _randn(min(shape), seed=seed + 10 * i).sigmoid()
        S = torch.zeros(shape, dtype=torch.float64)
        S.diagonal().copy_(sizes)
        skew = [(W - W.mT) / 2**0.5 for W in (_randn(k, k, seed=seed + 7 * i + k) for k in shape)]
        left, right = (torch.linalg.matrix_exp(turn * W) for W in skew)
        found.append(U @ left @ S @ right.mT @ V.mT)
    return found


# Steps of the proofs that do not hold as printed, each with the case that shows it ---------------


def _matrix(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _many() -> tuple[Tensor, Tensor]:
    """Gaussian 4×4 matrices S and log-normal weights Γ."""
    S, log_gamma = _randn(2, MANY, 4, 4, seed=0)
    return S, log_gamma.exp()


def remark() -> Finding:
    """ψ may be negative."""
    found = float(psi(_matrix((4, 1), (7, 4)), _matrix((1, 18), (1, 1))))
    many, weights = _many()
    failing = psi(many, weights) < weights.amin((-2, -1)) * nuclear_norm(many) / SLACK
    return stated("remark", found, decided(found >= 10), failing=int(failing.sum()))


def remark_of_the_norm() -> Finding:
    """Nor is the weighted norm bounded so."""
    S, gamma = _matrix((10, 10), (1, 10)), _matrix((1, 1), (10, 1))
    norm, floor = float(schatten_dual_norm(S, gamma)), float(nuclear_norm(S))
    verdict = decided(norm >= floor)
    return stated("remark_of_the_norm", norm / floor, verdict, norm=norm, floor=floor)


def repaired_remark() -> Finding:
    """What bounds ψ from below."""
    S, gamma = _many()
    worst = float(((psi_floor(S, gamma) - psi(S, gamma)) / nuclear_norm(S)).max())
    return stated("repaired_remark", worst, decided(worst <= 1e-9))


def smoothness_line() -> Finding:
    """A square of Γ is missing."""
    L_m, gamma = _matrix((1, 0.01), (0.01, 1)), torch.full((2, 2), 2.0, dtype=torch.float64)
    moved = float((L_m * gamma.square() * torch.eye(2)).sum())
    printed, meant = float((L_m * gamma).sum()), float(smoothness(L_m, gamma))
    numbers = {"moved": moved, "printed": printed, "meant": meant}
    return stated("smoothness_line", moved / printed, decided(moved <= printed), **numbers)


def smaller_smoothness() -> Finding:
    """A smaller term is enough."""
    S, gamma = _many()
    L_m = gamma.flip(0)
    moved = (L_m * gamma.square() * msign(S, "svd").square()).sum((-2, -1))
    smaller, printed = spectral_smoothness(L_m, gamma), smoothness(L_m, gamma)
    holds = bool((moved <= smaller * SLACK).all())
    return stated("smaller_smoothness", float((smaller / printed).median()), decided(holds))


def no_adaptation() -> Finding:
    """Without averages nothing is adapted."""
    p = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
    optimizer = deva_optim.DeVASinf([("p", p)], betas=(0.0, 0.0, 0.0), eps=0.0, msign="svd")
    optimizer.telemetry_every = 1
    worst = 0.0
    for seed in range(5):
        p.grad = _randn(4, 4, seed=seed)
        optimizer.step()
        worst = max(worst, abs(optimizer.telemetry()["p"]["gamma_mean"] - 1))
    return stated("no_adaptation", worst, decided(worst > ROUNDING))


def walk(*, late: bool, steps: int = 4000, paths: int = 2000) -> tuple[float, float]:
    """Both sides of the vector theorem for a sign walk on Huber's function, means over paths.

    A sampled gradient has the wrong sign with chance p, and is then a of the right one in size. The
    weight is 1 where the sign is wrong and `small` where it is right, `late` of the step before.
    """
    p, a, small, start = 0.1, 0.05, 0.05, 2.0
    generator = torch.Generator().manual_seed(0)
    x = torch.full((paths,), start, dtype=torch.float64)
    last = torch.full_like(x, small)
    measure, mean, squares = (torch.zeros_like(x) for _ in range(3))
    T, eta = steps, 1 / math.sqrt(steps)
    for _ in range(T):
        slope = x.clamp(-1, 1)  # Huber: ½ x² up to 1, |x| − ½ beyond
        wrong = torch.rand(paths, generator=generator) < p
        now = torch.where(wrong, 1.0, small).double()
        gamma, last = last if late else now, now
        measure += gamma * slope.abs() / T
        mean, squares = mean + gamma / T, squares + gamma.square() / T
        x = x - eta * gamma * torch.where(wrong, -slope, slope).sign()
    # The mean of the batch is slope · (−a or (1 + p a)/(1 − p)), unbiased; a sample has √T times
    # its deviation, and |slope| ≤ 1.
    deviation = math.sqrt(p * a**2 + (1 + p * a) ** 2 / (1 - p) - 1)
    sigma, delta = math.sqrt(T) * deviation, abs(start) - 0.5
    bound = (delta + 2 * sigma * mean + 0.5 * squares) * eta
    return float(measure.mean()), float(bound.mean())


def measurability(*, late: bool) -> Finding:
    """The weights must not know the gradient that they multiply."""
    measure, bound = walk(late=late)
    numbers = {"late": late, "measure": measure, "bound": bound}
    return stated("measurability", measure / bound, decided(measure <= bound), **numbers)


def one_path() -> Finding:
    """F(x) = ½ x², x₁ = 0.1, T = 2: the path on which the first sign is wrong, chance p."""
    p, x, T = 0.01, 0.1, 2
    deviation = x * math.sqrt(p / (1 - p))  # of the mean of a batch of T
    measure = (x + (x + 1 / math.sqrt(T))) / 2
    bound = (x * x / 2 + 2 * math.sqrt(T) * deviation + 0.5) / math.sqrt(T)
    verdict = decided(measure <= bound)
    return stated("one_path", measure / bound, verdict, measure=measure, bound=bound)


def rank_as_a_norm() -> Finding:
    """The nuclear rank needs a constant weight."""
    S = _matrix((0, 1), (1, 0))
    diagonal = torch.eye(2, dtype=torch.float64) / torch.linalg.matrix_norm(S)
    found, rank = float(schatten_dual_norm(S, diagonal).square()), float(nuclear_rank(S))
    return stated("rank_as_a_norm", found, decided(math.isclose(found, rank)), rank=rank)


def corollary() -> Finding:
    """The rate and batch of the corollary, put into the bound for Γ = 1."""
    worst = 0.0
    for seed in range(100):
        delta, L, sigma = _randn(3, seed=seed).exp().tolist()
        T, r = 100 + seed, 1 + seed % 7
        eta, n = math.sqrt(2 * delta / (T * L)), r * sigma**2 * T / (2 * delta * L)
        bound = delta / (eta * T) + math.sqrt(r / n) * sigma + eta * L / 2
        claimed = 2 / math.sqrt(T) * math.sqrt(2 * delta * L)
        worst = max(worst, abs(bound / claimed - 1))
    return stated("corollary", worst, decided(worst < 1e-12))


STATEMENTS: Final[tuple[Callable[[], Finding], ...]] = (
    proposition,
    theorem,
    *(partial(without_stability, turn) for turn in (0.01, 0.1, 1.0)),
    remark,
    remark_of_the_norm,
    repaired_remark,
    smoothness_line,
    smaller_smoothness,
    no_adaptation,
    partial(measurability, late=False),
    partial(measurability, late=True),
    one_path,
    rank_as_a_norm,
)
"""What needs no trajectory, in the order of the page; the corollary comes last of all."""

# The bounds along trajectories, and the page ------------------------------------------------------

THEOREMS: Final[dict[Direction, str]] = {"sign": "Vector theorem", "msign": "Matrix theorem"}
ALIKE, UNLIKE = quadratic.SIZES
Key = tuple[str, Direction, Weights]


def along(size: str, direction: Direction, weights: Weights, bound: Bound) -> Finding:
    """Whether a bound held on a trajectory."""
    ratio = bound.measure / bound.bound
    words = {"size": size, "theorem": THEOREMS[direction], "weights": WEIGHTS[weights]}
    current = weights == "current"
    return stated("along", ratio, decided(ratio <= 1), **words, bound=bound, current=current)


def adapted(direction: Direction, bounds: Mapping[Key, Bound]) -> Finding:
    """What DeVA's Γ does to ‖L‖_{1,Γ̂²}: by its size, and by being small where L is large."""
    alike, unlike = (bounds[size, direction, "previous"] for size in (ALIKE, UNLIKE))
    return stated(
        "adapted",
        unlike.aligned,
        "holds in part",
        theorem=THEOREMS[direction],
        alike=alike,
        unlike=unlike,
        inverse_root=bounds[UNLIKE, direction, "inverse root"],
    )


@one_thread()
def compute(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every claim with what was found of it, and the bounds along trajectories."""
    bounds: dict[Key, Bound] = {
        (size, direction, weights): bound_along(size, direction, weights, **settings)
        for size in (ALIKE, UNLIKE)
        for direction in THEOREMS
        for weights in WEIGHTS
    }
    found = [statement() for statement in STATEMENTS]
    found += [along(*key, bound) for key, bound in bounds.items()]
    found += [adapted(direction, bounds) for direction in THEOREMS]
    return {"findings": [asdict(finding) for finding in [*found, corollary()]]}


def show(results: Mapping[str, Any], folder: Path) -> Shown:
    """The findings as a table, and the verdict in words."""
    found = {str(index): Finding(**row) for index, row in enumerate(results["findings"])}
    bounds = [each for each in found.values() if each.computed.startswith("trace quadratic")]
    return shown("theory", found, bounds=bounds)
