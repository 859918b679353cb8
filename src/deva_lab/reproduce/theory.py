"""`theory`: the paper's propositions and theorems, checked in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from .. import quadratic
from . import identities, proof_steps
from .claims import Finding, findings_table
from .experiment import Say, Shown, one_thread
from .simplified import WEIGHTS, Bound, Direction, Trajectory, Weights, run

THEOREMS: Final[dict[Direction, str]] = {"sign": "Vector theorem", "msign": "Matrix theorem"}
SIZES: Final = tuple(quadratic.SIZES)
Key = tuple[str, Direction, Weights]


@one_thread()
def compute(settings: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Every claim with what was found of it, and the bounds along trajectories."""
    bounds: dict[Key, Bound] = {
        (size, direction, weights): run(
            Trajectory(size, direction, weights, settings["steps"], settings["paths"])
        )
        for size in SIZES
        for direction in THEOREMS
        for weights in WEIGHTS
    }
    say(f"{len(bounds)} trajectories")
    along = [_along(*key, bound) for key, bound in bounds.items()]
    adapted = [_smoothness(direction, bounds) for direction in THEOREMS]
    found = [*identities.findings(), *proof_steps.findings(), *along, *adapted, _corollary()]
    return {"findings": [finding.as_dict() for finding in found]}


def findings(results: Mapping[str, Any]) -> list[Finding]:
    """The findings of cached results."""
    return [Finding(**row) for row in results["findings"]]


def _along(size: str, direction: Direction, weights: Weights, bound: Bound) -> Finding:
    ratio = bound.measure / bound.bound
    text = f"left side {ratio:.0%} of the right"
    if direction == "msign":
        text += f", {bound.measure / bound.smaller:.0%} with the sharpened smoothness term"
        text += f"; ψ ≥ {bound.least_psi:.2f} min(Γ) ‖G‖₁ at every step"
    if weights == "current":
        text += "; not covered by the proof, Γ being not F_{t−1}-measurable"
    return Finding(
        f"{THEOREMS[direction]}, {WEIGHTS[weights]}",
        f"trace quadratic, {size}, sampled gradients",
        "holds" if ratio <= 1 else "does not hold",
        text,
        ratio,
    )


def _smoothness(direction: Direction, bounds: Mapping[Key, Bound]) -> Finding:
    """What DeVA's Γ does to ‖L‖_{1,Γ̂²}: by its size, and by being small where L is large."""
    alike, unlike = (bounds[size, direction, "previous"] for size in SIZES)
    prose = bounds[SIZES[1], direction, "inverse root"]
    return Finding(
        f"{THEOREMS[direction]}: adaptation lowers ‖L‖_{{1,Γ̂²}}, the more so where the Hessian is "
        "heterogeneous",
        "the term over that of Γ = 1; and the same for weights of mean square 1, which is below 1 "
        "only if Γ is small where L is large",
        "holds in part",
        f"{alike.shrunk:.2f} homogeneous, {unlike.shrunk:.2f} heterogeneous: lower in both, as "
        "Γ is small as a whole, which lowers the left side too. At mean square 1: "
        f"{alike.aligned:.2f} and {unlike.aligned:.2f}; with Γ = EMA[G²]^(−1/2), which the paper's "
        f"text has in mind, {prose.aligned:.3f}",
        unlike.aligned,
    )


def _corollary() -> Finding:
    """The rate and batch of the corollary, put into the bound for Γ = 1."""
    worst = 0.0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        delta, L, sigma = torch.randn(3, generator=generator, dtype=torch.float64).exp().tolist()
        T, r = 100 + seed, 1 + seed % 7
        eta, n = math.sqrt(2 * delta / (T * L)), r * sigma**2 * T / (2 * delta * L)
        bound = delta / (eta * T) + math.sqrt(r / n) * sigma + eta * L / 2
        claimed = 2 / math.sqrt(T) * math.sqrt(2 * delta * L)
        worst = max(worst, abs(bound / claimed - 1))
    return Finding(
        "Corollary: with its η and n_t the bound is (2/√T) √(2Δ ‖L‖_{ℓ1})",
        "the bound at 100 random Δ, L, σ, T and r",
        "holds" if worst < 1e-12 else "does not hold",
        f"relative difference {worst:.0e}",
        worst,
    )


def show(results: Mapping[str, Any], folder: Path) -> Shown:
    """The findings as a table, and the verdict in words."""
    return Shown(findings_table(findings(results)), verdict(results))


def verdict(results: Mapping[str, Any]) -> str:
    """What stands of the theory."""
    rows = findings(results)
    bounds = [
        f for f in rows if f.claim.startswith(tuple(THEOREMS.values())) and "trace" in f.computed
    ]
    broken = [f for f in rows if f.verdict == "does not hold"]
    held = sum(f.verdict == "holds" for f in bounds)
    low, high = min(f.value for f in bounds), max(f.value for f in bounds)
    return (
        f"holds in part: the proposition, the theorem on coordinates and the corollary hold; both "
        f"convergence bounds held on {held} of {len(bounds)} trajectories, their left side "
        f"{low:.0%} to {high:.0%} of the right; {len(broken)} of {len(rows)} rows do not hold: "
        "docs/decisions.md has the repairs"
    )
