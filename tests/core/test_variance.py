"""Γ and its bias correction: their closed forms against the loops and sums that define them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import reference
from deva_optim.core.bases import eigenbasis_, project, restore
from deva_optim.core.directions import msign
from deva_optim.core.linalg import value
from deva_optim.core.methods import METHODS
from deva_optim.core.variance import side_norms
from helpers import orthogonal, randn

seeds = st.integers(0, 2**31)


def close(A: Tensor, B: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(A, B, rtol=0, atol=tolerance)


@pytest.mark.parametrize("variant", ["default", "factored", "instantaneous"])
@pytest.mark.parametrize(
    "betas", [(0.95, 0.95), (0.9, 0.99), (0.0, 0.9), (0.9, 0.0), (0.99, 0.9801)]
)
def test_closed_form_of_the_bias_correction_is_its_recursion(variant, betas):
    row = METHODS["deva-sinf" if variant == "default" else f"deva-sinf-{variant}"]
    t = torch.arange(1, 200, dtype=torch.float64)
    s, w = 1 - betas[0] ** t, row.adaptation.mass(t, *betas)
    kappa = {"default": w.sqrt() / s, "factored": w / s, "instantaneous": w.sqrt()}[variant]
    expected = [reference.kappa(int(i), *betas, variant) for i in t]
    # 1 − 2β₁ + β₁² loses four digits of sixteen at β₁ = 0.99, and one more at the root
    np.testing.assert_allclose(kappa.numpy(), expected, rtol=1e-11)


@given(st.integers(2, 6), st.integers(2, 6), seeds)
def test_eigenvalues_are_squared_norms_in_the_eigenbasis(n, m, seed):
    """Proposition: for L = G Gᵀ the squared row norms of Q_Lᵀ G Q_R are the eigenvalues of L."""
    G = randn(n, m, seed=seed)
    L, R = G @ G.mT, G.mT @ G
    Q_L, Q_R = torch.empty_like(L), torch.empty_like(R)
    eigenbasis_(L, Q_L)
    eigenbasis_(R, Q_R)
    r, c = side_norms(project(G, Q_L, Q_R))
    close(r.square().squeeze(-1), torch.linalg.eigvalsh(L), 1e-12)
    close(c.square().squeeze(-2), torch.linalg.eigvalsh(R), 1e-12)


@given(st.integers(2, 4), st.integers(2, 4), seeds)
def test_the_coordinatewise_update_is_the_kronecker_expression(n, m, seed):
    """Theorem: Γ ⊙ msign(Q_Lᵀ G Q_R), rotated back, against the n m × n m matrices in full."""
    U, V = orthogonal(n, seed), orthogonal(m, seed + 1)

    def sample(i: int) -> Tensor:  # all samples share the eigenbases: local stability, exactly
        S = torch.zeros(n, m, dtype=torch.float64)
        S.fill_diagonal_(1.0)
        return U @ (S * (0.5 + randn(n, 1, seed=seed + i).abs())) @ V.mT

    samples = [sample(i) for i in range(2, 6)]
    G = samples[0]

    def products(A: Tensor) -> Tensor:  # σ_i σ_j, from the norms in the basis
        A = project(A, U, V)
        return A.norm(dim=1, keepdim=True) * A.norm(dim=0, keepdim=True)

    expectation = torch.stack([products(A) for A in samples]).mean(0)
    gamma = torch.where(expectation > 1e-12, products(G) / expectation, 0).sqrt()
    ours = value(restore(gamma * msign(project(G, U, V), "svd"), U, V))
    expected = reference.kronecker_update(G.numpy(), [A.numpy() for A in samples])
    # an exact msign of close singular values amplifies rounding
    close(ours, torch.tensor(expected), 1e-10)
