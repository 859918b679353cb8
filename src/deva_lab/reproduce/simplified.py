"""Trajectories of the two theorems' simplified updates, and the theorems' bounds along them.

    x_{t+1} = x_t − η γ_t ⊙ sign(g_t)        X_{t+1} = X_t − η Γ_t ⊙ msign(G_t)

on the trace quadratic f(X) = ½ tr(Xᵀ H X), with η = 1/√T and g_t the mean over n_t = T samples, as
the theorems want it. Everything is float64 and exact: msign by SVD, the variance by its formula.

    X, G, dF  B×9×9  iterate, sampled gradient and gradient, B paths of the noise at once
    A         9×9    H = Aᵀ A; a sample is a row of it
    L_m       9×9    smoothness along each coordinate: the largest eigenvalue of its block
    Γ         B×9×9  weights; `gamma`
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

from ..quadratic import SIZES, hessian
from .quantities import linf_dual_norm, smoothness, spectral_smoothness

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
class Trajectory:
    """One trajectory: the problem, the update, and how its weights are chosen."""

    size: str
    direction: Direction
    weights: Weights
    steps: int = 400
    paths: int = 24
    seed: int = 0


@dataclass(frozen=True)
class Bound:
    """Both sides of a theorem, means over the paths.

    Attributes:
        measure: The left side: the mean over the steps of ‖∇f‖_{1,γ} (sign) or of ψ (msign).
        bound: The right side as printed.
        smaller: The right side with the smaller smoothness term that the matrix theorem admits.
        gained: (f(X₁) − f(X_{T+1})) / Δ: what of Δ the trajectory has used.
        shrunk: ‖L‖_{1,Γ̂²} / ‖L‖₁: what is left of the smoothness term of Γ = 1.
        aligned: The same for weights of mean square 1: below 1 if Γ is small where L is large.
        least_psi: The least ψ / (min(Γ) ‖G‖₁) of all steps and paths; at least 1 by the remark.
    """

    measure: float
    bound: float
    smaller: float
    gained: float
    shrunk: float
    aligned: float
    least_psi: float


class Sampled:
    """The trace quadratic, its gradient a mean over n rows of A, drawn with replacement."""

    def __init__(self, size: str, seed: int, n: int) -> None:
        self.H = hessian(size, seed)
        self.A = torch.linalg.cholesky(self.H).mT
        largest = torch.tensor([max(block) for block in SIZES[size]], dtype=torch.float64)
        self.L_m = largest.repeat_interleave(3)[:, None].expand(9, 9)
        self.n = n
        self.generator = torch.Generator().manual_seed(seed)

    def start(self, paths: int) -> Tensor:
        """X₁, Gaussian, the same for all paths."""
        X = torch.randn(9, 9, generator=self.generator, dtype=torch.float64)
        return X.expand(paths, 9, 9)

    def value(self, X: Tensor) -> Tensor:
        """f(X)."""
        return 0.5 * (X * (self.H @ X)).sum((-2, -1))

    def sample(self, X: Tensor) -> Tensor:
        """G: the mean of 9 a aᵀ X over the n rows a that were drawn."""
        rows = torch.randint(9, (len(X), self.n), generator=self.generator)
        counts = torch.zeros(len(X), 9, dtype=torch.float64)
        counts.scatter_add_(1, rows, torch.ones_like(rows, dtype=torch.float64))
        share = 9 * counts / self.n
        G: Tensor = self.A.mT @ (share[..., None] * (self.A @ X))
        return G

    def variance(self, X: Tensor) -> Tensor:
        """σ² of a single sample, entry by entry: 9 Σ_i (a_i a_iᵀ X)² − (H X)²."""
        AX = self.A @ X
        second = 9 * torch.einsum("ik,bil->bkl", self.A.square(), AX.square())
        variance: Tensor = (second - (self.H @ X).square()).clamp_min(0)
        return variance


def run(setting: Trajectory) -> Bound:
    """Take the trajectory and evaluate both sides of its theorem."""
    f, T, B = Sampled(setting.size, setting.seed, setting.steps), setting.steps, setting.paths
    X = f.start(B)
    delta, eta = f.value(X), 1 / math.sqrt(T)
    weigh = _WEIGHERS[setting.weights](setting.direction)
    measure, smaller = (torch.zeros(B, dtype=torch.float64) for _ in range(2))
    least = math.inf
    mean, squares, variance = (torch.zeros(B, 9, 9, dtype=torch.float64) for _ in range(3))
    for _ in range(T):
        G = f.sample(X)
        gamma = weigh(G)
        variance = torch.maximum(variance, f.variance(X))
        if setting.direction == "sign":
            O, measured = G.sign(), linf_dual_norm(f.H @ X, gamma)
        else:
            O = msign(G, "svd")
            measured = (gamma * G * O).sum((-2, -1))
            floor = gamma.amin((-2, -1)) * (G * O).sum((-2, -1))
            least = min(least, float((measured / floor).min()))
        measure, mean, squares = measure + measured / T, mean + gamma / T, squares + gamma**2 / T
        smaller = smaller + _smaller(setting.direction, f.L_m, gamma) / T
        X = X - eta * gamma * O
    sigma = variance.amax(0).sqrt()
    noise = _noise(setting.direction, sigma, mean, squares)
    terms = delta + noise
    shrunk = smoothness(f.L_m, squares.sqrt()) / f.L_m.sum()
    return Bound(
        measure=float(measure.mean()),
        bound=float((terms + 0.5 * smoothness(f.L_m, squares.sqrt())).mean()) * eta,
        smaller=float((terms + 0.5 * smaller).mean()) * eta,
        gained=float(((delta - f.value(X)) / delta).mean()),
        shrunk=float(shrunk.mean()),
        aligned=float((shrunk / squares.mean((-2, -1))).mean()),
        least_psi=least,
    )


def _noise(direction: Direction, sigma: Tensor, mean: Tensor, squares: Tensor) -> Tensor:
    """2 ‖σ‖_{1,γ̂} of the vector theorem, √r ‖σ‖_{F,Γ̂} of the matrix theorem."""
    if direction == "sign":
        return 2 * linf_dual_norm(sigma, mean)
    size: Tensor = torch.linalg.matrix_norm(squares.sqrt() * sigma)
    return 3 * size  # √9


def _smaller(direction: Direction, L_m: Tensor, gamma: Tensor) -> Tensor:
    """The smoothness term of one step; the smaller one is convex in Γ², so its mean is taken."""
    term = smoothness if direction == "sign" else spectral_smoothness
    return term(L_m, gamma)


# The weights, each a function of the gradients that it has been shown ---------------------------

Weigh = Callable[[Tensor], Tensor]


def _one(direction: Direction) -> Weigh:
    return torch.ones_like


def _measured(direction: Direction, G: Tensor) -> Tensor:
    if direction == "sign":
        return G.square()
    r, c = side_norms(G)
    return r * c


def _inverse_root(direction: Direction) -> Weigh:
    """EMA[G²]^(−1/2), in units in which the first is 1, from the gradients before this one."""
    V: list[Tensor] = []

    def weigh(G: Tensor) -> Tensor:
        new = _measured(direction, G)
        scale = new.mean((-2, -1), keepdim=True)
        if not V:
            V.extend((new, scale))
            return torch.ones_like(G)
        gamma = (V[0] / V[1]).rsqrt().clamp(FLOOR, 1 / FLOOR)
        V[0] = torch.lerp(new, V[0], BETA)
        return gamma

    return weigh


def _current(direction: Direction) -> Weigh:
    """√(measured / EMA[measured]), bias-corrected: 1 at the first step and for a constant G."""
    V: list[Tensor] = []

    def weigh(G: Tensor) -> Tensor:
        new = _measured(direction, G)
        V[:] = [torch.lerp(new, V[0], BETA) if V else new]
        return (new / V[0]).sqrt().clamp_min(FLOOR)

    return weigh


def _previous(direction: Direction) -> Weigh:
    """The same, a step late: nothing of the gradient that it multiplies is in it."""
    current = _current(direction)
    last: list[Tensor] = []

    def weigh(G: Tensor) -> Tensor:
        gamma = last[0] if last else torch.ones_like(G)
        last[:] = [current(G)]
        return gamma

    return weigh


_WEIGHERS: Final[dict[Weights, Callable[[Direction], Weigh]]] = {
    "one": _one,
    "inverse root": _inverse_root,
    "previous": _previous,
    "current": _current,
}
