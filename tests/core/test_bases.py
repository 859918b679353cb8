"""Bases: the refresh, what happens when a decomposition fails, and the first basis."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from deva_optim.core import bases
from deva_optim.core.methods import METHODS, basis_sides
from helpers import OPTIMIZERS, off_diagonal


def covariance(n: int, rank: int | None = None, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(n, rank or n, generator=generator, dtype=torch.float64)
    return A @ A.mT


def renewed(solve_, L: Tensor, Q: Tensor, **settings) -> Tensor:
    """What `solve_` makes of Q, and Q left as it was."""
    new = Q.clone(memory_format=torch.contiguous_format)
    solve_(L, new, **settings)
    return new


@settings(max_examples=8)
@given(st.integers(2, 8), st.integers(0, 100))
def test_refreshing_converges_to_the_eigenvectors(n, seed):
    L = covariance(n, seed=seed)
    Q = torch.eye(n, dtype=torch.float64)
    for _ in range(3000):
        Q = renewed(bases.refresh_, L, Q)
    assert off_diagonal(L, Q) < 1e-2  # power iteration: as slow as two eigenvalues are close


@given(st.integers(2, 8), st.integers(0, 100), st.booleans())
def test_a_refresh_keeps_the_basis_orthonormal_and_its_columns_in_place(n, seed, singular):
    L = covariance(n, max(1, n // 2) if singular else None, seed)
    Q = renewed(bases.eigenbasis_, L, torch.eye(n, dtype=torch.float64))
    shuffled = Q[:, torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    new = renewed(bases.refresh_, L, shuffled)
    assert torch.allclose(new.mT @ new, torch.eye(n, dtype=torch.float64), atol=1e-12)
    # Eigenvectors stay where they were (up to sign); those of the null space are arbitrary.
    kept = (L @ shuffled).norm(dim=0) > 1e-8 * L.norm()
    cosines = (new * shuffled).sum(0).abs()
    assert (cosines[kept] > 1 - 1e-6).all()


@given(st.integers(3, 40), st.integers(1, 5), st.integers(0, 100))
def test_a_refresh_keeps_what_a_covariance_of_low_rank_says_nothing_of(n, rank, seed):
    """The range of L gets its columns, and the others change as little as they can."""
    L = covariance(n, min(rank, n - 1), seed)
    Q = torch.linalg.qr(covariance(n, seed=seed + 1)).Q  # every column has a part in the range
    new = renewed(bases.refresh_, L, Q)
    quotients = (new * (L @ new)).sum(0).sort(descending=True)
    inside, outside = quotients.indices[: min(rank, n - 1)], quotients.indices[min(rank, n - 1) :]
    # Rounding of L Q, times what it grows by where columns are nearly parallel in the range.
    assert quotients.values[len(inside) :].abs().max() <= 1e-9 * L.trace()
    # The old columns, made orthogonal to the new ones and to each other in their order.
    order = (Q * (L @ Q)).sum(0).argsort(descending=True).tolist()
    order = sorted(order, key=lambda i: i not in inside.tolist())
    expected = torch.linalg.qr(torch.where(torch.isin(torch.arange(n), inside), new, Q)[:, order]).Q
    cosines = (new[:, order] * expected).sum(0).abs()[len(inside) :]
    assert len(outside) == len(cosines)
    assert (cosines > 1 - 1e-6).all()


def test_a_batch_is_refreshed_matrix_by_matrix():
    L = torch.stack([covariance(4, seed=i) for i in range(6)]).view(2, 3, 4, 4)
    Q = torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4)
    together = renewed(bases.refresh_, L, Q)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(together[i, j], renewed(bases.refresh_, L[i, j], Q[i, j]))


@given(st.integers(2, 6), st.sampled_from([2, 4]), st.integers(0, 50))
def test_inverse_root(n, root, seed):
    L = covariance(n, seed=seed) + torch.eye(n, dtype=torch.float64)
    P = renewed(bases.inverse_root_, L, torch.zeros_like(L), root=root, eps=0.5)
    expected = torch.linalg.inv(L + 0.5 * torch.eye(n, dtype=torch.float64))
    torch.testing.assert_close(torch.linalg.matrix_power(P, root), expected)


@pytest.mark.parametrize(
    ("sides", "max_dim", "expected"),
    [
        ("both", 10, (True, True)),
        ("short", 10, (True, False)),
        ("both", 5, (True, False)),
        ("both", 3, (False, False)),
        ("short", 3, (False, False)),
    ],
)
def test_sides(sides, max_dim, expected):
    soap, lean = METHODS["soap"], METHODS["deva-sinf-lean"]
    group = {"sides": sides, "max_dim": max_dim}
    assert basis_sides(soap, group, (4, 7)) == expected
    assert basis_sides(soap, group, (2, 7, 4)) == expected[::-1]
    assert basis_sides(soap, {**group, "max_dim": 10}, (4, 4)) == (True, True)
    assert basis_sides(lean, {**group, "max_dim": 10}, (4, 4)) == (True, False)


# Decompositions that fail -----------------------------------------------------------------------


def failing(real, how: str, dtypes: tuple[torch.dtype, ...]):
    """A decomposition that raises or returns NaN in some precisions."""

    def decompose(A: Tensor, *args, **kwargs):
        if A.dtype not in dtypes:
            return real(A, *args, **kwargs)
        if how == "raises":
            raise torch.linalg.LinAlgError("did not converge")
        return type(real(A))([x * float("nan") for x in real(A)])

    return decompose


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_failed_decomposition_is_tried_again_in_float64(how, monkeypatch):
    L = torch.stack([covariance(4, seed=i) for i in range(3)]).float()
    Q = torch.linalg.qr(torch.randn(3, 4, 4)).Q
    expected = renewed(bases.eigenbasis_, L, Q)
    real = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", failing(real, how, (torch.float32,)))
    found = renewed(bases.eigenbasis_, L, Q)
    # Four roundings of float32 over the smallest gap of the eigenvalues, 0.078 of the largest one;
    # the margin is 16.
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=0, atol=16 * 4 * 2**-24 / 0.078)
    monkeypatch.setattr(torch.linalg, "eigh", failing(real, how, (torch.float32, torch.float64)))
    assert torch.equal(renewed(bases.eigenbasis_, L, Q), Q)


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_failed_refresh_starts_again_from_the_eigenvectors(how, monkeypatch):
    L = torch.stack([covariance(4, seed=i) for i in range(3)]).float()
    Q = torch.linalg.qr(torch.randn(3, 4, 4)).Q
    monkeypatch.setattr(torch, "geqrf", failing(torch.geqrf, how, (torch.float32,)))
    found = renewed(bases.refresh_, L, Q)
    assert torch.equal(found, renewed(bases.eigenbasis_, L, Q))


def test_one_matrix_that_fails_costs_the_others_nothing(monkeypatch):
    real = torch.linalg.eigh

    def eigh(A: Tensor):
        if (A == 7).all(-1).all(-1).any():
            raise torch.linalg.LinAlgError("did not converge")
        return real(A)

    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    L = torch.stack([covariance(3), torch.full((3, 3), 7.0, dtype=torch.float64)])
    Q = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    new = renewed(bases.eigenbasis_, L, Q)
    assert off_diagonal(L[0], new[0]) < 1e-12
    assert torch.equal(new[1], Q[1])


@pytest.mark.parametrize("name", ["deva-sinf", "soap", "splus", "shampoo"])
def test_training_goes_on_when_every_decomposition_fails(name, monkeypatch):
    dtypes = (torch.float32, torch.float64)
    for module, function in ((torch.linalg, "eigh"), (torch, "geqrf")):
        broken = failing(getattr(module, function), "raises", dtypes)
        monkeypatch.setattr(module, function, broken)
    p = nn.Parameter(torch.randn(4, 6))
    start = p.square().sum().item()
    optimizer = OPTIMIZERS[name]([p], lr=0.5 if name == "splus" else 0.02, refresh_every=3)
    for _ in range(40):
        optimizer.zero_grad()
        p.square().sum().backward()
        optimizer.step()
    assert p.square().sum().item() < start


# The first basis --------------------------------------------------------------------------------


def first(G: Tensor) -> tuple[Tensor, Tensor]:
    Q_L, Q_R = bases.first_bases(G, left=True, right=True)
    assert Q_L is not None
    assert Q_R is not None
    return Q_L, Q_R


def apart(Q: Tensor, P: Tensor) -> float:
    """How far two bases are from each other, whatever the signs of their columns."""
    signs = (Q * P).sum(-2).sign()
    return float((Q - P * signs).abs().amax())


KINDS = {
    "wide": lambda: randn(4, 11),
    "tall": lambda: randn(11, 4),
    "square": lambda: randn(6, 6),
    "rank one": lambda: randn(5, 1) @ randn(1, 8),
    "constant": lambda: torch.ones(5, 8, dtype=torch.float64),
    "zero rows and columns": lambda: torch.block_diag(randn(3, 2), torch.zeros(2, 6).double()),
    "one entry": lambda: torch.zeros(5, 8, dtype=torch.float64).index_fill(0, torch.tensor(2), 0),
}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_basis_diagonalises_both_covariances(kind):
    G = KINDS[kind]()
    G[2, 1] += 1
    Q_L, Q_R = first(G)
    for Q, C in ((Q_L, G @ G.mT), (Q_R, G.mT @ G)):
        # products of eleven terms, and a QR of as many columns
        bound = 11 * 16 * 2**-53
        identity = torch.eye(len(Q), dtype=torch.float64)
        torch.testing.assert_close(Q.mT @ Q, identity, rtol=0, atol=bound)
        T = Q.mT @ C @ Q
        assert (T - torch.diag(T.diagonal())).abs().amax() < bound * C.trace()


@pytest.mark.parametrize("kind", ["wide", "tall", "rank one", "constant", "zero rows and columns"])
def test_a_first_basis_does_not_hang_on_the_last_bit(kind):
    """A gradient that differs by rounding has the same basis to rounding, its null space too."""
    G = KINDS[kind]()
    for seed in range(20):
        torch.manual_seed(seed)
        if kind in ("rank one", "constant", "zero rows and columns"):
            # what has no more than this rank keeps it
            rows, columns = (
                1 + 2**-52 * torch.randint(-2, 3, s) for s in ((len(G), 1), G.shape[1:])
            )
            other = G * rows.double() * columns.double()
        else:
            other = G * (1 + 2**-52 * torch.randint(-2, 3, G.shape).double())
        for Q, P in zip(first(G), first(other), strict=True):
            # 2^-51 of the gradient, over the gaps between its singular values, above 1/1000 here,
            # and over the pivots of the axes, above 1/100
            assert apart(Q, P) < 2**-51 * 11 * 1e5


def test_axes_without_gradient_stay_axes():
    G = torch.zeros(4, 9, dtype=torch.float64)
    G[:, 2:5] = randn(4, 3)
    _, Q_R = first(G)
    for axis in (0, 1, 5, 6, 7, 8):
        assert Q_R[axis].abs().amax() > 1 - 16 * 2**-53  # nine columns of a QR


@pytest.mark.parametrize("name", ["deva-sinf", "soap", "splus", "deva-sinf-whitened"])
def test_a_float32_trajectory_follows_a_perturbed_one_on_the_long_side(name):
    """Gradients that differ by rounding lead to weights that do, and not by percents."""
    torch.manual_seed(0)
    grads = [torch.randn(6, 20) for _ in range(12)]

    def final(scale: float) -> Tensor:
        p = nn.Parameter(torch.zeros(6, 20))
        group = {"params": [p], "refresh_every": 4, "eps": 1e-4, "weight_decay": 0.0}
        optimizer = OPTIMIZERS[name]([group], lr=0.1)
        for G in grads:
            p.grad = G * scale
            optimizer.step()
        return p.detach()

    # 2^-23 of each gradient, 500 times at small singular values or over 1/ε and the gaps of the
    # eigenvalues, in twelve steps of a tenth: 1e-3 of the way at the most; it was a half.
    assert (final(1 + 2**-20) - final(1.0)).abs().amax() < 1e-2 * final(1.0).abs().amax()
