"""The trace quadratic: one batch of matrices moves as its seeds do, and the paper's claims."""

import math
from functools import cache

import pytest
import torch

import deva_optim as do
from deva_lab.quadratic import hessian
from deva_lab.reproduce import trace
from deva_lab.reproduce.trace import problem_of

SETTINGS = {"seeds": 12, "steps": 400, "batch": 3, "lr": 0.1, "factors": (1,)}


@cache
def results() -> dict:
    return trace.compute(SETTINGS)


@pytest.mark.parametrize("loss", trace.ABOUT)
@pytest.mark.parametrize("size", trace.SIZES)
def test_the_factor_and_the_gradient_are_those_of_the_quadratic(loss, size):
    problem = problem_of(size, loss, seeds=2)
    X = problem.start(2, 9, 9)
    H = torch.stack([hessian(size, seed) for seed in range(2)])
    # Nine products of rounded factors in float32, of numbers up to 5000; the margin is 4.
    atol = 4 * (9 + 2) * 2**-24 * 5000
    torch.testing.assert_close(problem.A.mT @ problem.A, H.float(), rtol=0, atol=atol)
    value = 0.5 * (X * (problem.H @ X)).sum((-2, -1))
    # 81 products with sums of nine; the margin is 16, for terms of either sign as well.
    torch.testing.assert_close(problem.value(X), value, rtol=16 * (81 + 9) * 2**-24, atol=0)


@pytest.mark.parametrize("loss", trace.ABOUT)
def test_a_sampled_gradient_is_the_derivative_of_the_sampled_loss(loss, monkeypatch):
    problem = problem_of("heterogeneous", loss, seeds=2)
    rows = torch.tensor([[0, 4, 8], [3, 3, 7]])
    monkeypatch.setattr(torch, "randint", lambda *a, **k: rows[..., None])
    X = problem.start(2, 9, 9).requires_grad_()
    norms = torch.stack([(problem.A[b, rows[b]] @ X[b]).norm() for b in range(2)])
    sampled = 9 / 3 * 0.5 * (norms**2 if loss == "squared" else norms)
    sampled.sum().backward()
    # Two products of float32 in a row, of nine and of three terms, a norm of 27; the margin is 4.
    atol = 4 * (9 + 3 + 27) * 2**-24 * X.grad.abs().max().item()
    found = problem.sample(X.detach(), squared=loss == "squared")
    torch.testing.assert_close(found, X.grad, rtol=0, atol=atol)


def test_a_batch_of_seeds_moves_as_each_of_them_would():
    """DeVA-S∞ on three seeds at once, and on each alone with the same gradients."""
    problem = problem_of("heterogeneous", "squared", seeds=3)
    start = problem.start(3, 9, 9).double()
    together = torch.nn.Parameter(start.clone())
    optimizer = do.DeVASinf([together], 0.1, (0.0, 0.99, 0.99), weight_decay=0.0)
    alone = [torch.nn.Parameter(start[b].clone()) for b in range(3)]
    others = [do.DeVASinf([p], 0.1, (0.0, 0.99, 0.99), weight_decay=0.0) for p in alone]
    for _ in range(15):
        together.grad = problem.sample(together.detach().float()).double()
        for b, (p, other) in enumerate(zip(alone, others, strict=True)):
            p.grad = together.grad[b].clone()
            other.step()
        optimizer.step()
    for b, p in enumerate(alone):
        torch.testing.assert_close(p, together[b], rtol=0, atol=1e-9)  # float64 rounding, 15 steps


def test_the_rate_is_constant_for_half_and_then_falls_to_zero():
    rates = [trace.schedule(step, 400) for step in range(400)]
    assert rates[:201] == [1.0] * 201
    assert rates[300] == 0.5
    assert rates[399] == pytest.approx(2 / 400)


def test_gradient_descent_is_deterministic_and_known():
    """GD shrinks the part of X along an eigenvector of H by 1 − η λ at every step."""
    found = trace.run("sgd", "homogeneous", "squared", seeds=1, steps=50)["loss"][1]
    problem = problem_of("homogeneous", "squared", seeds=1)
    λ, Q = torch.linalg.eigh(problem.H[0].double())
    X = Q.mT @ problem.start(1, 9, 9)[0].double()
    for t in (0, 1, 50):
        decayed = ((1 - 1e-4 * λ) ** t).unsqueeze(-1) * X
        expected = 0.5 * (λ.unsqueeze(-1) * decayed**2).sum()
        # Fifty steps in float32, each a product of nine terms; the margin is 32.
        assert found[t] == pytest.approx(float(expected), rel=32 * 50 * 10 * 2**-24)


@pytest.mark.slow
def test_with_the_published_loss_the_published_ordering_comes_out():
    """GD alike on both, DeVA-S∞ below Muon where heterogeneous, adaptive below SignSGD."""
    held = {each.claim: each.verdict == "holds" for each in trace.claims(results()["published"])}
    assert len(held) == 7
    assert held["GD is much the same on both problems"]
    assert held["heterogeneous: DeVA-S∞ ends below Muon"]
    assert held["heterogeneous: DeVA-ℓ∞ ends below SignSGD"]
    assert held["heterogeneous: Adam ends below SignSGD"]
    assert held["‖H‖₁,Γ of DeVA-S∞ falls, more where heterogeneous"]


@pytest.mark.slow
def test_a_claim_that_does_not_hold_is_reported_as_such():
    curves = {size: dict(results()["published"][size]) for size in trace.SIZES}
    worse = [[10 * x for x in times] for times in curves["heterogeneous"]["muon"]["loss"]]
    curves["heterogeneous"]["devasinf"] = {**curves["heterogeneous"]["devasinf"], "loss": worse}
    held = {each.claim: each.verdict == "holds" for each in trace.claims(curves)}
    assert not held["heterogeneous: DeVA-S∞ ends below Muon"]


@pytest.mark.slow
def test_curves_have_a_point_a_step_and_quartiles_in_order():
    for loss in trace.ABOUT:
        for size in trace.SIZES:
            for curve in (results()[loss][size][method] for method in trace.METHODS):
                low, middle, high = curve["loss"]
                assert len(low) == SETTINGS["steps"] + 1
                assert all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True))
                assert all(math.isfinite(x) for x in high)


@pytest.mark.slow
def test_the_figure_and_the_page_are_drawn(tmp_path):
    shown = trace.show(results(), tmp_path)
    assert [path.name for path in shown.figures] == [
        "fig-trace-squared.png",
        "fig-trace-squared.svg",
        "fig-trace-published.png",
        "fig-trace-published.svg",
    ]
    assert all(path.stat().st_size > 10_000 for path in shown.figures)
    assert all(path.stat().st_size < 150_000 for path in shown.figures if path.suffix == ".svg")
    text = shown.figures[1].read_text()
    for name in ("DeVA-S∞", "SignSGD", "homogeneous", "step"):
        assert name in text
    assert "7 claims hold with the published loss" in shown.verdict
    assert shown.why.startswith("The authors' own setting: ")
    assert "(heterogeneous: DeVA-S∞ ends below Muon" in shown.why
