"""What must hold whatever the numbers are: the identities of the mathematics, as properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import deva_optim as do
from helpers import MATRIX, OPTIMIZERS, orthogonal, randn

UNROUTED = [
    n for n in MATRIX if n not in ("deva", "deva-rest-linf")
]  # a matrix is a matrix to them
EXACT = {"msign": "svd", "refresh_every": 3}

sizes = st.tuples(st.integers(2, 6), st.integers(2, 6))
seeds = st.integers(0, 2**31)


def run(optimizer, grads: list[Tensor], X: Tensor | None = None, **settings) -> Tensor:
    """Where a parameter that starts at X (zero unless given) is after these gradients."""
    start = torch.zeros_like(grads[0]) if X is None else X.clone()
    p = torch.nn.Parameter(start)
    stepper = optimizer([p], **{"lr": 0.1, "weight_decay": 0.0, **settings})
    for G in grads:
        p.grad = G.clone()
        stepper.step()
    return p.detach()


def close(A: Tensor, B: Tensor, tolerance: float = 1e-10) -> None:
    """Equal up to float64 rounding, which an exact msign of close singular values amplifies."""
    torch.testing.assert_close(A, B, rtol=0, atol=tolerance)


@given(sizes, seeds, st.integers(1, 12))
def test_constant_gradient_makes_deva_sinf_move_as_muon(size, seed, steps):
    grads = [randn(*size, seed=seed)] * steps
    for variant in ("default", "factored", "instantaneous"):
        deva = run(do.DeVASinf, grads, eps=0.0, variant=variant, **EXACT)
        # r and c are divided by their own averages, noise of 1e-16 in null rows included
        close(deva, run(do.Muon, grads, nesterov=False, msign="svd"), 1e-7)
    # In its own basis the gradient is diagonal, and only ε keeps rounding beside it from weight.
    whitened = run(do.DeVASinf, grads, eps=1e-4, variant="whitened", **EXACT)
    close(whitened, run(do.Muon, grads, nesterov=False, msign="svd"), 1e-7)


@given(sizes, seeds)
def test_in_the_identity_basis_and_with_even_noise_whitened_is_muon(size, seed):
    grads = [randn(*size, seed=seed + i).sign() for i in range(8)]  # V is the same everywhere
    settings = {"variant": "whitened", "nesterov": True, "max_dim": 1, "msign": "svd"}
    muon = run(do.Muon, grads, nesterov=True, msign="svd")
    close(run(do.DeVASinf, grads, **settings), muon, 1e-8)


@given(st.integers(1, 20), seeds, st.integers(1, 12))
def test_constant_gradient_makes_deva_linf_move_as_signum(size, seed, steps):
    grads = [randn(size, seed=seed)] * steps
    close(run(do.DeVALinf, grads, eps=0.0), run(do.Signum, grads))


SCALE_FREE = [n for n in OPTIMIZERS if n.startswith("deva-")]  # Adam's ε is not


@pytest.mark.parametrize("name", SCALE_FREE)
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_scaling_the_gradients_changes_nothing(name, scale):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):  # rounding
        if name in ("deva-rest-linf", "deva-sinf-whitened"):  # both take msign(M / √V)
            # In its own basis the first gradient is diagonal; what rounding leaves beside the
            # diagonal is divided by √ε = 1e-4, and 15 steps of 0.1 · 0.2 √5 follow from it.
            tolerance *= 1e4
        grads = [randn(5, 5, seed=i).to(dtype) for i in range(15)]
        plain = run(OPTIMIZERS[name], grads)
        scaled = run(OPTIMIZERS[name], [G * scale for G in grads])
        torch.testing.assert_close(scaled, plain, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", SCALE_FREE)
@pytest.mark.parametrize("scale", [2.0**-40, 2.0**40])
def test_scaling_by_a_power_of_two_changes_not_a_bit(name, scale):
    """On rectangles too, where the null space of the first covariance hangs on its rounding."""
    grads = [randn(4, 7, seed=i) for i in range(15)]
    plain = run(OPTIMIZERS[name], grads)
    assert torch.equal(run(OPTIMIZERS[name], [G * scale for G in grads]), plain)


@given(
    st.integers(2, 5),
    seeds,
    st.sampled_from(["default", "factored", "instantaneous", "whitened"]),
)
def test_rotating_the_problem_rotates_the_trajectory(n, seed, variant):
    grads = [randn(n, n, seed=seed + i) for i in range(8)]
    U, V = orthogonal(n, seed + 100), orthogonal(n, seed + 200)
    settings = {"variant": variant, **EXACT}
    rotated = run(do.DeVASinf, [U @ G @ V.mT for G in grads], **settings)
    close(rotated, U @ run(do.DeVASinf, grads, **settings) @ V.mT, 1e-7)


@given(sizes, seeds)
def test_rotating_the_problem_rotates_muon(size, seed):
    n, m = size
    grads = [randn(n, m, seed=seed + i) for i in range(5)]
    U, V = orthogonal(n, seed + 100), orthogonal(m, seed + 200)
    rotated = run(do.Muon, [U @ G @ V.mT for G in grads], nesterov=False, msign="svd")
    close(rotated, U @ run(do.Muon, grads, nesterov=False, msign="svd") @ V.mT, 1e-7)


@given(st.integers(2, 5), seeds, st.sampled_from([n for n in UNROUTED if n != "soap"]))
def test_permuting_rows_and_columns_permutes_the_trajectory(n, seed, name):
    grads = [randn(n, n, seed=seed + i) for i in range(8)]
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    columns = torch.randperm(n, generator=torch.Generator().manual_seed(seed + 1))
    permuted = run(OPTIMIZERS[name], [G[rows][:, columns] for G in grads])
    close(permuted, run(OPTIMIZERS[name], grads)[rows][:, columns], 1e-7)


@given(st.integers(1, 4), sizes, seeds, st.sampled_from(UNROUTED))
def test_a_batch_moves_as_its_matrices_do(batch, size, seed, name):
    grads = [randn(batch, *size, seed=seed + i) for i in range(6)]
    together = run(OPTIMIZERS[name], grads)
    for b in range(batch):
        close(together[b], run(OPTIMIZERS[name], [G[b] for G in grads]))


@given(sizes, seeds)
def test_without_memory_of_the_variance_deva_is_muon(size, seed):
    grads = [randn(*size, seed=seed + i) for i in range(8)]
    for variant in ("default", "factored", "instantaneous"):
        settings = {"betas": (0.9, 0.0), "eps": 0.0, "variant": variant, **EXACT}
        deva = run(do.DeVASinf, grads, **settings)
        close(deva, run(do.Muon, grads, momentum=0.9, nesterov=False, msign="svd"), 1e-8)


@given(sizes, seeds)
def test_in_the_identity_basis_soap_is_adam(size, seed):
    grads = [randn(*size, seed=seed + i) for i in range(8)]
    soap = run(do.SOAP, grads, betas=(0.9, 0.99), max_dim=1, skip_first=False)
    close(soap, run(do.AdamW, grads, betas=(0.9, 0.99)), 1e-15)


@pytest.mark.parametrize("name", ["muon", "muon-polar-express", "deva-sinf", "adamuon", "adamw"])
@pytest.mark.parametrize("shape", [(64, 64), (256, 64), (64, 256), (32, 16, 3, 3)])
def test_updates_carry_the_rms_of_adamw(name, shape):
    """On Gaussian gradients, so that a learning rate for AdamW can be used as it is."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.zeros(shape))
    optimizer = OPTIMIZERS[name]([p], lr=1.0, weight_decay=0.0)
    for _ in range(30):
        p.grad = torch.randn(shape)
        before = p.detach().clone()
        optimizer.step()
    rms = (p.detach() - before).square().mean().sqrt().item()
    # AdamW's own is 0.2 to 0.4 here. Newton–Schulz leaves singular values of 0.7 to 1.2, and
    # DeVA's Γ averages just below one.
    assert 0.14 <= rms <= 0.45


class TraceQuadratic:
    """f(X) = ½ tr(Xᵀ H X), H of three rotated 3×3 blocks of unequal eigenvalues."""

    def __init__(self, seed: int) -> None:
        blocks = [[1.0, 2.0, 3.0], [99.0, 100.0, 101.0], [4998.0, 4999.0, 5000.0]]
        turned = []
        for i, block in enumerate(blocks):
            Q = orthogonal(3, seed + i)
            turned.append(Q @ torch.diag(torch.tensor(block, dtype=torch.float64)) @ Q.mT)
        self.H = torch.block_diag(*turned)
        # The largest eigenvalue of its block bounds the curvature along each coordinate.
        largest = torch.tensor([max(b) for b in blocks], dtype=torch.float64)
        self.L = largest.repeat_interleave(3)[:, None].expand(9, 9)

    def __call__(self, X: Tensor) -> float:
        return float(0.5 * (X * (self.H @ X)).sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("direction", ["sign", "msign"])
def test_the_convergence_bounds_hold_on_the_trace_example(direction, seed):
    """Both theorems without noise, with a Γ that is known before the gradient it multiplies."""
    f, T = TraceQuadratic(seed), 400
    X = randn(9, 9, seed=seed)
    start, eta = f(X), 1 / math.sqrt(T)
    measure, squares = 0.0, torch.zeros(9, 9, dtype=torch.float64)
    V = torch.ones(9, 9, dtype=torch.float64)
    for _ in range(T):
        G = f.H @ X
        gamma = V.rsqrt().clamp(1e-3, 1.0)  # from the gradients so far
        O = G.sign() if direction == "sign" else do.msign(G, "svd")
        measure += float((gamma * G * O).sum()) / T
        squares += gamma.square() / T
        X = X - eta * gamma * O
        V = 0.99 * V + 0.01 * G.square()
    assert measure <= (start + 0.5 * float((f.L * squares).sum())) / math.sqrt(T)
