"""The checks of the paper's theory: what they find, and that they could find otherwise."""

from functools import cache

import pytest
import torch

from deva_lab.reproduce import quantities, theory
from deva_lab.reproduce.measures import Finding
from deva_lab.reproduce.quantities import linf_dual_norm

SMALL = {"steps": 60, "paths": 8}


@cache
def results() -> dict:
    return theory.compute(SMALL)


def found() -> list:
    return [Finding(**row) for row in results()["findings"]]


def of(text: str) -> list:
    return [f for f in found() if text in f.claim]


STATEMENTS = {
    theory.proposition: "holds",
    theory.theorem: "holds",
    theory.remark: "does not hold",
    theory.remark_of_the_norm: "does not hold",
    theory.repaired_remark: "holds",
    theory.smoothness_line: "does not hold",
    theory.smaller_smoothness: "holds",
    theory.no_adaptation: "does not hold",
    theory.one_path: "does not hold",
    theory.rank_as_a_norm: "does not hold",
    theory.corollary: "holds",
}


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.__name__)
def test_a_statement_holds_or_does_not(statement):
    assert statement().verdict == STATEMENTS[statement]


def test_every_statement_has_its_row_on_the_page():
    rows = [statement() for statement in (*theory.STATEMENTS, theory.corollary)]
    there = {(row.claim, row.computed, row.verdict) for row in found()}
    assert {(row.claim, row.computed, row.verdict) for row in rows} <= there
    partial = {statement.func for statement in theory.STATEMENTS if hasattr(statement, "func")}
    plain = {statement for statement in theory.STATEMENTS if not hasattr(statement, "func")}
    assert plain == {*STATEMENTS} - {theory.corollary}
    assert partial == {theory.without_stability, theory.measurability}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Remark", -0.2),
        ("and so min(Γ)", 20 / 481**0.5),
        ("second display", 8 / 4.04),
        ("no expectation", 1.20245),
        ("nuclear rank is", 0.0),
    ],
)
def test_what_does_not_hold_as_printed(text, value):
    (finding,) = of(text)
    assert finding.verdict == "does not hold"
    assert finding.value == pytest.approx(value, abs=1e-4)


def test_the_bounds_hold_along_every_trajectory():
    rows = [f for f in found() if f.computed.startswith("trace quadratic")]
    assert len(rows) == 2 * 2 * len(quantities.WEIGHTS)
    assert all(f.verdict == "holds" and 0 < f.value < 1 for f in rows)


def test_a_weight_that_knows_its_gradient_breaks_the_bound_and_one_that_is_late_does_not():
    measure, bound = theory.walk(late=False)
    assert measure > 1.1 * bound
    measure, bound = theory.walk(late=True)
    assert measure < 0.5 * bound


def test_without_local_stability_the_coordinates_are_an_approximation():
    values = [f.value for f in of("local stability")]
    assert values == sorted(values)  # the more the bases are turned
    assert 1e-3 < values[0] < 0.05 < values[-1] < 1


def test_the_kronecker_update_of_one_sample_is_the_matrix_sign():
    """E[K] = K: nothing to adapt. In the basis of G the direction is diagonal."""
    from deva_optim import msign

    G = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(theory.kronecker_update([G]), msign(G, "svd"))
    torch.testing.assert_close(theory.coordinatewise_update([G]), msign(G, "svd"))


@pytest.mark.parametrize("direction", ["sign", "msign"])
def test_terms_that_are_too_small_are_found_out(direction, monkeypatch):
    """The check can fail: without Δ and noise and with a part of the smoothness it does."""
    setting = {"size": "homogeneous", "direction": direction, "weights": "one"}
    length = {"steps": 2000, "paths": 2}
    honest = quantities.bound_along(**setting, **length)
    monkeypatch.setattr(
        quantities, "smoothness", lambda L, gamma: 0.02 * (L * gamma**2).sum((-2, -1))
    )
    monkeypatch.setattr(quantities.Problem, "variance", lambda self, X: torch.zeros_like(X))
    monkeypatch.setattr(quantities.Problem, "value", lambda self, X: torch.zeros(len(X)).double())
    wrong = quantities.bound_along(**setting, **length)
    assert honest.measure <= honest.bound
    assert wrong.measure > wrong.bound


def test_samples_are_unbiased_and_their_variance_is_the_formula():
    f = quantities.Problem("heterogeneous", n=1)
    X = f.start(9, 9).expand(20_000, 9, 9)
    G = f.sample(X)
    sigma = f.variance(X[:1])[0].sqrt()
    # a mean of 20 000 draws is off by σ/141, five times that at most over 81 entries; a standard
    # deviation of skewed draws by some per cent
    assert ((G.mean(0) - f.H @ X[0]).abs() <= 5 * sigma / 20_000**0.5).all()
    torch.testing.assert_close(G.std(0), sigma, rtol=0.05, atol=1e-9)


def test_the_weights_but_one_do_not_know_the_gradient():
    """Weights from before do not change when the last gradient does."""
    draws = torch.randn(4, 2, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name in quantities.WEIGHTS:
        for direction in ("sign", "msign"):
            last = []
            for other in (1.0, -3.0):
                weigh = quantities.weigher(name, direction)
                grads = [*draws[:3], draws[3] + other]
                last.append([weigh(G) for G in grads][-1])
            assert torch.equal(*last) == (name != "current")


def test_measures_are_norms_of_the_gradient():
    """The left side of the vector theorem for T = 1, by hand."""
    f = quantities.Problem("homogeneous", n=1)
    X = f.start(9, 9)
    expected = linf_dual_norm(f.H @ X, torch.ones_like(X)).item()
    found = quantities.bound_along("homogeneous", "sign", "one", steps=1, paths=1)
    assert found.measure == pytest.approx(expected)


def test_the_verdict_counts_what_was_found(tmp_path):
    shown = theory.show(results(), tmp_path)
    assert "16 of 16 trajectories" in shown.verdict
    assert shown.verdict.startswith("holds in part")
    assert shown.why.startswith("The authors' own proofs: 7 of 34 statements fail as printed")
    assert shown.text.count("| does not hold |") == 7
