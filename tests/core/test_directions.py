"""The matrix sign: exact where it should be, near enough where it is iterated or in bfloat16."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reference
from deva_optim import msign
from deva_optim.core import directions, linalg
from deva_optim.core.directions import (
    _POLAR_EXPRESS,
    MSIGN_KINDS,
    POLAR_EXPRESS,
    SOFT,
    best_quintic,
    fast_dtype,
    polar,
    settled_sign,
    soft_in_basis,
    soft_quintics,
    soft_steps,
    softness_of,
)
from deva_optim.core.linalg import Columns, add_, value
from helpers import OPTIMIZERS

KINDS = st.sampled_from(MSIGN_KINDS)
SHAPES = st.sampled_from([(3, 3), (2, 5), (5, 2), (4, 3, 3), (2, 3, 4, 6), (1, 4), (4, 1)])


def singular_values(X):
    return torch.linalg.svdvals(X)


@given(KINDS, SHAPES, st.integers(0, 1000))
def test_agrees_with_the_reference(kind, shape, seed):
    X = np.random.default_rng(seed).normal(size=shape)
    expected = np.array([reference.msign(A, kind) for A in X.reshape(-1, *shape[-2:])])
    found = msign(torch.tensor(X), kind).numpy().reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)  # rounding / smallest gap


@given(SHAPES, st.integers(0, 1000), st.floats(1e-6, 1e6))
def test_svd_is_the_polar_factor(shape, seed, scale):
    X = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    O = msign(X * scale, "svd")
    torch.testing.assert_close(singular_values(O), torch.ones_like(singular_values(O)))
    torch.testing.assert_close(O, msign(X, "svd"), rtol=0, atol=1e-9)
    H = O.mT @ X  # X = O H with H symmetric and positive
    torch.testing.assert_close(H, H.mT)
    assert torch.linalg.eigvalsh(H).min() > -1e-12


@pytest.mark.parametrize("kind", MSIGN_KINDS)
@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e30, 1e37])
def test_the_matrix_sign_has_no_scale(kind, scale):
    X = torch.randn(3, 4, 7)
    # the rounding of the scaled entries, made 500 times larger at small singular values
    torch.testing.assert_close(
        msign(X * scale, kind), msign(X, kind), rtol=0, atol=500 * 4 * 2**-24
    )


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("newton-schulz", 0.68, 1.21), ("polar-express", 0.84, 1.13)]
)
def test_iterations_bring_every_singular_value_near_one(kind, low, high):
    torch.manual_seed(0)
    U, V = torch.linalg.qr(torch.randn(40, 40)).Q, torch.linalg.qr(torch.randn(90, 90)).Q[:40]
    # from 1 % of the norm up, where five steps reach
    S = torch.logspace(-1.5, 0, 40)
    values = singular_values(msign((U * S) @ V, kind))
    assert values.min() > low
    assert values.max() < high


@pytest.mark.parametrize("kind", SOFT)
@pytest.mark.parametrize("size", [(2, 3), (16, 40), (120, 60), (300, 300)])
def test_soft_lifts_what_is_well_above_the_mean_and_not_what_is_below(size, kind):
    """σ / √(σ² + c²) up to the error of the steps, at the norm of an orthogonal matrix."""
    n, m = min(size), max(size)
    torch.manual_seed(0)
    U, V = (torch.linalg.qr(torch.randn(k, k, dtype=torch.float64)).Q for k in (n, m))
    S = torch.logspace(-4, 0, n, dtype=torch.float64)
    X = (U * S) @ V[:n]
    O = msign(X.mT if size[0] > size[1] else X, kind)
    O = O.mT if size[0] > size[1] else O
    assert O.norm().item() == pytest.approx(n**0.5, rel=1e-12)
    found = U.mT @ O @ V[:n].mT
    values = found.diagonal()
    torch.testing.assert_close(found, values.diag(), rtol=0, atol=1e-12)  # the same vectors
    ratio = values / (S / (S**2 + softness_of(kind, n) * S.square().mean()).sqrt())
    assert ratio.max() / ratio.min() < 1.21 / 0.64  # between which the quintic leaves all of them


@pytest.mark.parametrize("n", [512, 1024])
def test_firm_is_soft_from_a_short_side_of_1024_on(n):
    X = torch.randn(n, n + 1)
    assert torch.equal(msign(X, "firm"), msign(X, "soft")) == (n == 1024)


@pytest.mark.parametrize("kind", SOFT)
def test_soft_leaves_an_orthogonal_matrix_as_it_is(kind):
    O = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    torch.testing.assert_close(msign(3 * O, kind), O, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", SOFT)
@pytest.mark.parametrize("size", [(40, 40), (30, 90), (90, 30), (2, 20, 40)])
def test_soft_in_half_precision_is_the_same_to_its_rounding(size, kind):
    torch.manual_seed(0)
    X = torch.randn(size) @ torch.logspace(-2, 0, size[-1]).diag()  # singular values far apart
    found = value(polar(X, kind, dtype=torch.bfloat16))
    # products of bfloat16, 2⁻⁹ each, of which a step has three in a row; a third step, which the
    # firm sign takes here, lifts the roundings before it by 3.44 at the most
    steps = soft_steps(min(size[-2:]), softness_of(kind, min(size[-2:])))
    torch.testing.assert_close(found, msign(X, kind), rtol=0, atol=0.03 * 3.44 ** (steps - 2))


@pytest.mark.parametrize("kind", MSIGN_KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_zero_stays_zero_and_dtypes_stay_theirs(kind, dtype):
    assert torch.equal(msign(torch.zeros(3, 4, dtype=dtype), kind), torch.zeros(3, 4, dtype=dtype))
    assert msign(torch.randn(2, 3, 4).to(dtype), kind).dtype == dtype


@pytest.mark.parametrize("kind", MSIGN_KINDS)
def test_neither_autocast_nor_a_gradient_changes_a_sign(kind):
    X = torch.randn(512, 512)  # a size from which on half of the symmetric products is computed
    expected = msign(X, kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(msign(X, kind), expected)
    found = msign(X.requires_grad_(), kind)
    assert torch.equal(found, expected)
    assert not found.requires_grad


def test_directions_without_signal_have_sign_zero():
    X = torch.zeros(3, 3, dtype=torch.float64)
    X[0, 0] = 2.0
    expected = torch.zeros_like(X)
    expected[0, 0] = 1.0
    torch.testing.assert_close(msign(X, "svd"), expected)


def test_polar_express_is_the_best_quintic_at_every_step():
    """Chebyshev: the odd quintic nearest to a constant on an interval errs by as much four times.

    The authors do not let the interval begin below 2.4 % of its end, and scale each step so that
    what is left of [0.001, 1] lies evenly around 1.
    """
    low, high, cushion = 1e-3, 1.0, 0.02407327424182761
    for a, b, c in _POLAR_EXPRESS:
        x = torch.linspace(max(low, cushion * high), high, 200_001, dtype=torch.float64)
        p = a * x + b * x**3 + c * x**5
        turns = (p[1:-1] - p[:-2]) * (p[2:] - p[1:-1]) < 0
        bottom, top, dip, end = torch.cat([p[:1], p[1:-1][turns], p[-1:]]).tolist()
        assert bottom == pytest.approx(dip, rel=1e-6)
        assert top == pytest.approx(end, rel=1e-6)
        low = a * low + b * low**3 + c * low**5
        assert low + end == pytest.approx(2, rel=1e-6)
        high = 2 - low


def test_the_safety_factor_spares_the_last_step():
    assert POLAR_EXPRESS[-1] == _POLAR_EXPRESS[-1]
    for (a, b, c), (A, B, C) in zip(POLAR_EXPRESS[:-1], _POLAR_EXPRESS[:-1], strict=True):
        x = 0.37
        assert a * x + b * x**3 + c * x**5 == pytest.approx(
            A * (x / 1.01) + B * (x / 1.01) ** 3 + C * (x / 1.01) ** 5
        )


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"at least two dimensions, got shape \(3,\)"):
        msign(torch.ones(3))
    with pytest.raises(ValueError, match="kind must be one of .*, got 'newton'"):
        msign(torch.ones(3, 3), "newton")
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(TypeError, match=f"must be a floating-point tensor, got {dtype}"):
            msign(torch.ones(3, 3, dtype=dtype))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 3, 4)])
@pytest.mark.parametrize("kind", MSIGN_KINDS)
def test_the_sign_of_nothing_is_nothing(kind, shape):
    assert msign(torch.ones(shape), kind).shape == shape


@given(st.integers(0, 1000))
def test_settled_sign_hears_everything_but_rounding(seed):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    assert torch.equal(settled_sign(X), X.sign())
    noisy = torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64))
    noisy += 1e-16 * torch.randn(5, 5, generator=generator, dtype=torch.float64)
    assert torch.equal(settled_sign(noisy), torch.eye(5, dtype=torch.float64))


# The precision of products ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["newton-schulz", "polar-express", *SOFT])
@pytest.mark.parametrize("shape", [(24, 24), (16, 64), (64, 16), (3, 8, 40)])
def test_products_in_bfloat16_give_the_same_direction(kind, shape):
    torch.manual_seed(0)
    X = torch.randn(shape)
    fast = value(polar(X, kind, dtype=torch.bfloat16))
    assert fast.dtype == torch.float32
    exact = msign(X, kind)
    cosine = (fast * exact).sum() / (fast.norm() * exact.norm())
    assert cosine > 0.99  # eight bits, fifteen products deep
    # their roundings, 2⁻⁹ each, of which a step lifts what is small by 3.4: 15 · 3.4 · 2⁻⁹ = 0.1
    assert torch.linalg.svdvals(fast).max() < torch.linalg.svdvals(exact).max() + 0.1


def test_bfloat16_is_asked_of_the_device(monkeypatch):
    def tensor(dtype: torch.dtype, device: str) -> SimpleNamespace:
        return SimpleNamespace(dtype=dtype, device=torch.device(device))

    for has in (True, False):
        monkeypatch.setattr(directions, "_has_bfloat16", lambda has=has: has)
        assert fast_dtype(tensor(torch.float32, "cpu")) == torch.float32
        assert fast_dtype(tensor(torch.float64, "cuda")) == torch.float64
        expected = torch.bfloat16 if has else torch.float32
        assert fast_dtype(tensor(torch.float32, "cuda")) == expected


@pytest.mark.parametrize("name", ["muon", "deva-sinf"])
def test_msign_dtype_is_obeyed(name):
    torch.manual_seed(0)
    start, G = torch.randn(8, 8), torch.randn(8, 8)
    found = []
    for dtype in (None, torch.float32, torch.bfloat16):
        p = nn.Parameter(start.clone())
        p.grad = G
        OPTIMIZERS[name]([p], msign_dtype=dtype).step()
        found.append(p.detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-3 * 0.2 * 8**0.5 * 0.2)


# The soft sign in a basis ------------------------------------------------------------------------


def of(quintic, x):
    a, b, c = quintic
    return a * x + b * x**3 + c * x**5


@given(st.floats(0.01, 0.9))
def test_the_best_quintic_is_as_far_from_one_four_times_over(least):
    quintic, error = best_quintic(least, 1.0)
    x = np.linspace(least, 1.0, 100_001)
    distance = 1 - of(quintic, x)
    # between two points of the grid the distance bends by 1e-10 times its second derivative, < 1e3
    assert abs(distance).max() == pytest.approx(error, abs=1e-7)
    extreme = distance[abs(distance) > error - 1e-6]
    assert (np.diff(np.sign(extreme)) != 0).sum() == 3  # Chebyshev: then no other is nearer


@pytest.mark.parametrize("kind", SOFT)
@pytest.mark.parametrize("n", [2, 16, 72, 73, 768, 1249, 1250, 4096, 10_000])
def test_the_soft_quintics_lift_all_that_a_gram_matrix_can_have(n, kind):
    share = softness_of(kind, n)
    x = np.geomspace(np.sqrt(share / (n + share)), 1.0, 10_001)
    for quintic in soft_quintics(n, share):
        x = of(quintic, x)
    assert x.min() > 0.6
    assert x.max() < 1.4


def soft(B, Q, w, kind="soft"):
    columns = Columns(B, B, 1.0, torch.ones_like(B[..., :1, :]))
    U, size = soft_in_basis(columns, Q, w, kind)
    return value(U) * size


@given(
    st.sampled_from([(4, 4), (3, 8), (2, 5, 9)]),
    st.integers(0, 1000),
    st.booleans(),
    st.sampled_from(list(SOFT)),
)
def test_the_soft_sign_in_a_basis_is_that_of_the_projection(shape, seed, based, kind):
    generator = torch.Generator().manual_seed(seed)
    B = torch.randn(shape, generator=generator, dtype=torch.float64)
    n = shape[-2]
    w = torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64) + 0.1
    turn = torch.randn(*shape[:-2], n, n, generator=generator, dtype=torch.float64)
    Q = torch.linalg.qr(turn).Q if based else torch.eye(n).expand(*shape[:-2], n, n).double()
    whitened = w * (Q.mT @ B)
    matrices = whitened.reshape(-1, *shape[-2:]).numpy()
    expected = [reference.best_soft_sign(A, kind) for A in matrices]
    found = soft(B.clone(), Q if based else None, w, kind)
    expected = Q @ torch.tensor(np.array(expected)).reshape(shape)
    # a handful of products of at most nine terms, of which w makes some 11 times larger and smaller
    torch.testing.assert_close(found, expected, rtol=0, atol=11**2 * 9 * 30 * 2**-53)


@pytest.mark.parametrize("shape", [(1, 3, 9), (2, 4, 13), (1, 2, 40)])
@pytest.mark.parametrize("beta", [1.0, 0.9])
@pytest.mark.parametrize("kind", SOFT)
def test_by_strips_the_soft_sign_is_what_it_is_in_full(shape, beta, kind, monkeypatch):
    monkeypatch.setattr(linalg, "_SYMMETRIC_FROM", 2)
    generator = torch.Generator().manual_seed(0)
    M, G, turn, X, w, c = (
        torch.randn(size, generator=generator, dtype=torch.float64)
        for size in (shape, shape, (*shape[:2], shape[1]), shape, (*shape[:2], 1), (1, 1, shape[2]))
    )
    Q, w, c = torch.linalg.qr(turn).Q, w.abs() + 0.1, c.abs() + 0.1
    U, size = soft_in_basis(Columns(M, G, beta, c), Q, w, kind)
    B = (beta * M + (1 - beta) * G) * c
    whitened = (w * (Q.mT @ B)).numpy()
    expected = Q @ torch.tensor(np.array([reference.best_soft_sign(A, kind) for A in whitened]))
    # a few dozen roundings; the largest of w is thirty times the smallest, and K has its square
    close = {"rtol": 0, "atol": 30**2 * 40 * 30 * 2**-53}
    torch.testing.assert_close(value(U) * size, expected, **close)
    torch.testing.assert_close(value(U.mT) * size, expected.mT, **close)
    for wide, term in ((X.clone(), U), (X.mT.clone(), U.mT)):
        add_(wide, term, keep=0.5, weight=size)
        found = wide if term is U else wide.mT
        torch.testing.assert_close(found, 0.5 * X + expected, **close)


@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e30, 1e36])
def test_the_soft_sign_in_a_basis_has_no_scale(scale):
    B, w = torch.randn(3, 4, 7), torch.rand(3, 4, 1) + 0.5
    Q = torch.linalg.qr(torch.randn(3, 4, 4)).Q
    # the rounding of the scaled entries and of products of seven terms, made 9 times larger by w
    found, expected = (soft(B * x, Q, w) for x in (scale, 1.0))
    torch.testing.assert_close(found, expected, rtol=0, atol=9 * 7 * 30 * 2**-24)


def test_the_soft_sign_in_a_basis_of_zero_is_zero():
    found = soft(torch.zeros(2, 3, 5), torch.eye(3).expand(2, 3, 3), torch.ones(2, 3, 1))
    assert not found.any()
