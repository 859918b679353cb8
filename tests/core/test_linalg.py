"""Lazy products must be what they stand for; the Q of a QR orthonormal; norms within range."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deva_optim.core.linalg import (
    Product,
    Quotient,
    Square,
    add_,
    add_gram_,
    average_,
    matrix_norms,
    mirror_,
    norms,
    orthonormalise_,
    scaled,
    value,
)
from helpers import randn

TINY, HUGE = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


def term(kind: str, lead: tuple[int, ...], n: int, m: int):
    if kind == "product":
        return Product(randn(*lead, n, 3), randn(*lead, 3, m, seed=1))
    if kind == "square":
        return Square(randn(*lead, n, m))
    if kind == "quotient":
        return Quotient(randn(*lead, n, m), randn(*lead, n, m, seed=1).abs() + 1)
    return randn(*lead, n, m)


def written(kind: str, x) -> torch.Tensor:
    """The value by another road than the one under test."""
    if kind == "product":
        return torch.einsum("...ik,...kj->...ij", x.left, x.right)
    if kind == "square":
        return x.X**2
    return x.over.clone() / x.under.clone() if kind == "quotient" else x.clone()


KINDS = st.sampled_from(["product", "square", "quotient", "tensor"])
LEADS = st.sampled_from([(1,), (3,), (2, 3)])
NUMBERS = st.sampled_from(["number", "tensor"])


@given(KINDS, LEADS, NUMBERS, NUMBERS)
def test_adding_is_adding_the_value(kind, lead, keep_kind, weight_kind):
    X, x = randn(*lead, 4, 5, seed=2), term(kind, lead, 4, 5)
    many = torch.linspace(0.5, 2, 6, dtype=torch.float64)[: torch.Size(lead).numel()]
    many = many.reshape(*lead, 1, 1)
    keep = 0.75 if keep_kind == "number" else many
    weight = -0.3 if weight_kind == "number" else -many
    expected = keep * X + weight * written(kind, x)
    add_(X, x, keep=keep, weight=weight)
    torch.testing.assert_close(X, expected)


@given(KINDS, LEADS)
def test_averages_and_values(kind, lead):
    X, x = randn(*lead, 4, 5, seed=2), term(kind, lead, 4, 5)
    plain = written(kind, x)
    expected = 0.9 * X + 0.1 * plain
    average_(X, x, 0.1)
    torch.testing.assert_close(X, expected)
    where = torch.ones(*lead, 1, 1, dtype=torch.bool)
    where[0] = False
    by = torch.full((*lead, 1, 1), 3.0, dtype=torch.float64)
    torch.testing.assert_close(value(scaled(x, by, where)), torch.where(where, 3 * plain, 0))
    torch.testing.assert_close(value(term(kind, lead, 4, 5)), plain)


def test_a_product_is_added_where_no_batch_shares_the_memory():
    base = randn(2, 4, 3, 5, seed=2)
    X = base.movedim(-2, -3)  # 2×3×4×5, whose first two dimensions cannot be one
    x = term("product", (2, 3), 4, 5)
    expected = 0.5 * X + written("product", x)
    add_(X, x, keep=0.5)
    torch.testing.assert_close(base.movedim(-2, -3), expected)


@pytest.mark.parametrize("n", [5, 511, 512, 515])  # from 512 on half of it is computed
def test_a_gram_matrix_is_averaged_and_mirrored(n):
    L, A = torch.eye(n, dtype=torch.float64).repeat(2, 1, 1), randn(2, n, 7)
    expected = 0.9 * L + 0.1 * A @ A.mT
    add_gram_(L, A, keep=0.9, weight=0.1)
    torch.testing.assert_close(L.tril(), expected.tril())
    mirror_(L)
    torch.testing.assert_close(L, expected)


# The Q of a QR ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 96, 511, 512, 600])  # 512 and up go panel by panel
@pytest.mark.parametrize("kind", ["full", "dependent columns", "zero columns", "zero"])
def test_orthonormalise_is_the_q_of_a_qr(n, kind):
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    A = A * torch.logspace(0, -6, n, dtype=torch.float64)
    if kind == "dependent columns":
        A[:, :, n // 2] = A[:, :, 0]
    if kind == "zero columns":
        A[:, :, ::3] = 0
    if kind == "zero":
        A.zero_()
    Q = A.clone()
    orthonormalise_(Q)
    identity = torch.eye(n, dtype=torch.float64).expand_as(Q)
    # n times the rounding of float64, as is usual for n reflections
    torch.testing.assert_close(Q.mT @ Q, identity, rtol=0, atol=n * 1e-15 + 1e-14)
    assert (Q.mT @ A).tril(-1).abs().max() <= (n * 1e-15 + 1e-14) * 10
    if kind == "full":
        expected = torch.linalg.qr(A).Q
        torch.testing.assert_close(Q.abs(), expected.abs(), rtol=0, atol=1e-8)  # × condition, 1e6


@pytest.mark.parametrize("n", [40, 600])
def test_orthonormalise_says_which_columns_are_rounding(n):
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    A[:, :, 5] = A[:, :, 0] + 1e-4 * A[:, :, 5]  # nearly parallel to the first, and real
    A[:, :, 9] = A[:, :, 1] - A[:, :, 5]
    A[0, :, n - 1] = A[0, :, : n // 2].sum(-1)
    expected = torch.zeros(2, n, dtype=torch.bool)
    expected[:, 9] = expected[0, n - 1] = True
    noise = 4 * torch.finfo(A.dtype).eps * A.norm(dim=(-2, -1)).unsqueeze(-1)
    assert torch.equal(orthonormalise_(A.clone(), noise), expected)
    assert orthonormalise_(A) is None


# Norms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [TINY, 1e-30, 1.0, 1e30, HUGE / 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_neither_underflow_nor_overflow(dtype, scale):
    X = randn(2, 40, 30).clamp(-4, 4).to(dtype)
    expected = X.double().norm(dim=(-2, -1)) * scale
    Y = X * scale
    # the scaled numbers are rounded, to eight bits if they are bfloat16
    close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 0.0}
    torch.testing.assert_close(matrix_norms(Y), expected, **close)
    torch.testing.assert_close(norms([*Y], torch.float32), expected, **close)
