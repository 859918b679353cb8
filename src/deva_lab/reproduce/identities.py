"""The paper's theorem on coordinates and its proposition on eigenvalues, against the full matrices.

    G         n×m    gradient; `samples` are the gradients that an expectation is taken over
    L, R      –      G Gᵀ and Gᵀ G, eigenbases Q_L and Q_R
    K         nm×nm  L^½ ⊗ R^½

(A ⊗ B) vec(X) = vec(A X Bᵀ) holds for the vec that reads a matrix row by row, as flatten does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deva_optim import msign
from deva_optim.core.bases import project, restore
from deva_optim.core.linalg import value
from deva_optim.core.variance import side_norms

from .claims import Finding, judged
from .quantities import spectral_snr

SHAPES = ((2, 2), (3, 3), (4, 4), (3, 5), (5, 3), (6, 4))
DRAWS = 20
ROUNDING = 1e-10  # float64, amplified by the fourth root of singular values near zero
TURNS = (0.01, 0.1, 1.0)


def findings() -> list[Finding]:
    """The proposition, the theorem, and what it costs that bases do move."""
    return [_proposition(), _theorem(), *(_without_stability(turn) for turn in TURNS)]


def _proposition() -> Finding:
    worst = 0.0
    for shape in SHAPES:
        for seed in range(DRAWS):
            worst = max(worst, _eigenvalue_error(_randn(*shape, seed=seed)))
    return judged(
        "Proposition: the squared row and column norms of Q_Lᵀ G Q_R are the eigenvalues of G Gᵀ "
        "and Gᵀ G",
        f"{len(SHAPES)} shapes × {DRAWS} Gaussian G",
        worst,
        most=ROUNDING,
        how="off by {:.0e} of the largest at most: rounding",
    )


def _eigenvalue_error(G: Tensor) -> float:
    (λ, Q_L), (μ, Q_R) = torch.linalg.eigh(G @ G.mT), torch.linalg.eigh(G.mT @ G)
    r, c = side_norms(project(G, Q_L, Q_R))
    left, right = r[:, 0].square() - λ, c[0].square() - μ
    return float(torch.cat([left, right]).abs().max() / λ.max())


def _theorem() -> Finding:
    worst = 0.0
    for shape in SHAPES:
        for seed in range(DRAWS):
            worst = max(worst, _difference(_samples(shape, seed, turn=0.0)))
    return judged(
        "Theorem (coordinate-wise DeVA-S∞): the update is Q_L (Γ ⊙ msign(Q_Lᵀ G Q_R)) Q_Rᵀ",
        f"the Kronecker expression in full, {len(SHAPES)} shapes × {DRAWS} draws of gradients that "
        "share their bases; roots of singular matrices as pseudo-inverses",
        worst,
        most=ROUNDING,
        how="relative difference {:.0e} at most: rounding",
    )


def _without_stability(turn: float) -> Finding:
    found = [_difference(_samples((4, 4), seed, turn=turn)) for seed in range(DRAWS)]
    middle = float(torch.tensor(found).median())
    return Finding(
        "… where “local stability” is not exact: gradients do not share their bases",
        f"the same, 4×4, bases of each gradient turned by e^{{{turn:g} W}}, W Gaussian and "
        "skew-symmetric; coordinates are the eigenbases of E[L] and E[R]",
        "holds" if middle < ROUNDING else "holds in part",
        f"median relative difference {middle:.1g}: an approximation",
        middle,
    )


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
    G_ = project(samples[0], Q_L, Q_R)
    gamma = spectral_snr(G_, _settled(torch.stack(products).mean(0)))
    return value(restore(gamma * msign(G_, "svd"), Q_L, Q_R))


def kronecker_update(samples: list[Tensor]) -> Tensor:
    """E[L^½ ⊗ R^½]^(−½) (L ⊗ R)^¼ vec(msign(G)), for the first sample, in full."""
    G = samples[0]
    K = torch.stack([torch.kron(_power(A @ A.mT, 0.5), _power(A.mT @ A, 0.5)) for A in samples])
    adapted = _power(K.mean(0), -0.5) @ _power(K[0], 0.5) @ msign(G, "svd").flatten()
    return adapted.view_as(G)


def _power(A: Tensor, exponent: float) -> Tensor:
    """A to a power, for a positive semidefinite A; zero on its null space."""
    λ, Q = torch.linalg.eigh(A)
    powers = torch.where(λ > 1e-12 * λ.max(), λ.clamp_min(1e-300) ** exponent, 0)
    power: Tensor = (Q * powers) @ Q.mT
    return power


def _settled(A: Tensor) -> Tensor:
    """A, and zero where it is rounding."""
    return A * (A / A.max() > 1e-7)


def _samples(shape: tuple[int, int], seed: int, *, turn: float) -> list[Tensor]:
    """Gradients with bases of their own, turned away from common ones, and random singular values.

    They have one order of their singular values: what the bases share is then well defined.
    """
    n, m = shape
    U, V = _orthogonal(n, seed), _orthogonal(m, seed + 1000)
    found = []
    for i in range(5):
        sizes = torch.arange(1, min(shape) + 1) + _randn(min(shape), seed=seed + 10 * i).sigmoid()
        S = torch.zeros(shape, dtype=torch.float64)
        S.diagonal().copy_(sizes)
        left, right = (_turned(k, turn, seed + 7 * i + k) for k in shape)
        found.append(U @ left @ S @ right.mT @ V.mT)
    return found


def _turned(n: int, turn: float, seed: int) -> Tensor:
    W = _randn(n, n, seed=seed)
    rotation: Tensor = torch.linalg.matrix_exp(turn * (W - W.mT) / 2**0.5)
    return rotation


def _orthogonal(n: int, seed: int) -> Tensor:
    Q: Tensor = torch.linalg.qr(_randn(n, n, seed=seed)).Q
    return Q


def _randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
