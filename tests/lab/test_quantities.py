"""The quantities of the paper's theory; test_reproduce_theory.py has its statements."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import deva_optim as do
from deva_lab.reproduce import quantities as dx

sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))
seeds = st.integers(0, 2**31)
# Sums of at most 49 products, each of them of singular vectors that float64 finds to 2⁻⁵³ over the
# gaps, of Γ whose entries span e⁸: numbers of a hundred. Gaps of a thousandth leave a margin of 2.
ROUNDING = 2 * 49 * 100 * 1000 / 10 * 2**-53


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(*shape: int, seed: int, spread: float = 2.0) -> Tensor:
    """A positive Γ whose entries span some orders of magnitude."""
    return (spread * randn(*shape, seed=seed)).exp()


# The norms --------------------------------------------------------------------------------------


@given(sizes, seeds)
def test_dual_norms_are_suprema_over_the_unit_ball(size, seed):
    S, gamma = randn(*size, seed=seed), weights(*size, seed=seed + 1)
    X = randn(*size, seed=seed + 2)
    in_cube = X / X.abs().max()
    in_ball = X / torch.linalg.matrix_norm(X, 2)
    best = do.msign(gamma * S, "svd")
    assert (gamma * S * in_cube).sum() <= dx.linf_dual_norm(S, gamma) + ROUNDING
    assert (gamma * S * in_ball).sum() <= dx.schatten_dual_norm(S, gamma) + ROUNDING
    # and both are attained
    torch.testing.assert_close((gamma * S * S.sign()).sum(), dx.linf_dual_norm(S, gamma))
    torch.testing.assert_close((gamma * S * best).sum(), dx.schatten_dual_norm(S, gamma))


@given(sizes, seeds)
def test_nuclear_rank_lies_between_one_and_the_short_side(size, seed):
    rank = dx.nuclear_rank(randn(*size, seed=seed))
    assert 1 - ROUNDING <= rank <= min(size) + ROUNDING


def test_batches_are_computed_matrix_by_matrix():
    S, gamma = randn(3, 4, 5, seed=0), weights(3, 4, 5, seed=1)
    for function in (dx.psi, dx.psi_floor, dx.smoothness, dx.spectral_smoothness,
                     dx.schatten_dual_norm, dx.linf_dual_norm):  # fmt: skip
        each = torch.stack([function(A, B) for A, B in zip(S, gamma, strict=True)])
        torch.testing.assert_close(function(S, gamma), each)


def test_snr_of_a_constant_gradient_is_one():
    G = randn(4, 6, seed=0)
    r, c = G.norm(dim=1, keepdim=True), G.norm(dim=0, keepdim=True)
    torch.testing.assert_close(dx.linf_snr(G, G.square()), torch.ones_like(G))
    torch.testing.assert_close(dx.spectral_snr(G, r * c), torch.ones_like(G))


# What holds in the place of the paper's steps (docs/decisions.md) --------------------------------


@given(sizes, seeds)
def test_the_repaired_bounds_of_psi_hold(size, seed):
    S, gamma = randn(*size, seed=seed), weights(*size, seed=seed + 1)
    slack = ROUNDING * gamma.max() * dx.nuclear_norm(S)
    assert dx.psi_floor(S, gamma) <= dx.psi(S, gamma) + slack
    assert dx.psi(S, gamma) <= dx.schatten_dual_norm(S, gamma) + slack
    frobenius = gamma.min() * torch.linalg.matrix_norm(S)
    assert frobenius <= dx.schatten_dual_norm(S, gamma) + slack
    assert gamma.min() * dx.nuclear_norm(S) / min(size) ** 0.5 <= frobenius + slack


@given(sizes, seeds)
def test_the_remark_holds_for_weights_of_rows_and_for_diagonal_matrices(size, seed):
    S = randn(*size, seed=seed)
    rows = weights(size[0], 1, seed=seed + 1).expand(size)
    assert dx.psi(S, rows) >= rows.min() * dx.nuclear_norm(S) * (1 - ROUNDING)
    diagonal = torch.zeros(size, dtype=torch.float64)
    diagonal.diagonal().copy_(S.diagonal())
    gamma = weights(*size, seed=seed + 2)
    assert dx.psi(diagonal, gamma) >= gamma.min() * dx.nuclear_norm(diagonal) * (1 - ROUNDING)


def test_the_floor_is_the_remark_where_singular_values_are_equal():
    Q = torch.linalg.qr(randn(4, 4, seed=3)).Q
    gamma = weights(4, 4, seed=4)
    torch.testing.assert_close(dx.psi_floor(Q, gamma), gamma.min() * dx.nuclear_norm(Q))


@given(sizes, seeds)
def test_the_smaller_smoothness_term_is_enough(size, seed):
    L_m, gamma = weights(*size, seed=seed), weights(*size, seed=seed + 1)
    O = do.msign(randn(*size, seed=seed + 2), "svd")
    moved = (L_m * gamma.square() * O.square()).sum()
    smaller, printed = dx.spectral_smoothness(L_m, gamma), dx.smoothness(L_m, gamma)
    assert moved <= smaller * (1 + ROUNDING)
    assert smaller <= printed * (1 + ROUNDING)
