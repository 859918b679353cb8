"""`fig-trace`: the paper's trace quadratic, its hundred seeds as one batch of matrices.

Two settings. "squared" is the paper's text: ½ ‖aᵀ X‖² of the sampled rows, A by Cholesky, Muon with
the scale of its table. "published" is what the published script computes: the norm in place of its
square, A the symmetric root, Muon at five times that scale, no update at the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

import deva_optim as do
from deva_optim.core.bases import project

from .. import quadratic
from ..quadratic import Sampled, hessian
from ..render import figures as palette
from ..render.figures import GREY, draw, draw_curves
from ..results import Curve
from .experiment import Shown, one_thread, shown
from .losses import legend_below
from .measures import Finding, decided
from .quantities import linf_dual_norm, linf_snr, schatten_dual_norm, spectral_snr
from .theory import power

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Loss = Literal["squared", "published"]
ABOUT: Final[dict[Loss, str]] = {
    "squared": "the squared loss of the text, Muon at its usual scale",
    "published": "the published script's setting: norm not squared, Muon at five times the scale",
}
ALIKE, UNLIKE = SIZES = tuple(quadratic.SIZES)
RECORD_EVERY: Final = 10  # as often as bases are renewed; it is done halfway between
BETA2: Final = 0.99


METHODS: Final[dict[str, Callable[[list[Tensor], float, Loss], Optimizer]]] = {
    "sgd": lambda p, lr, loss: torch.optim.SGD(p, lr * 1e-3),  # deterministic: GD
    "signum": lambda p, lr, loss: do.Signum(p, lr, momentum=0.0, weight_decay=0.0),
    "adamw": lambda p, lr, loss: do.AdamW(p, lr, (0.0, BETA2), weight_decay=0.0),
    "muon": lambda p, lr, loss: do.Muon(
        p, 5 * lr if loss == "published" else lr, weight_decay=0.0, momentum=0.0
    ),
    "soap": lambda p, lr, loss: do.SOAP(p, lr, (0.0, BETA2, BETA2), weight_decay=0.0),
    "adamuon": lambda p, lr, loss: do.AdaMuon(p, lr, (0.0, BETA2), weight_decay=0.0),
    "devalinf": lambda p, lr, loss: do.DeVALinf(p, lr, (0.0, BETA2), weight_decay=0.0),
    "devasinf": lambda p, lr, loss: do.DeVASinf(
        p, lr, (0.0, BETA2, BETA2), weight_decay=0.0, skip_first=loss == "published"
    ),
}
ADAPTED: Final = ("devalinf", "devasinf")
NAMES: Final = {**palette.NAMES, "sgd": "GD", "signum": "SignSGD", "adamw": "Adam"}
"""What the paper calls them, without decay and without momentum."""

# Computed -----------------------------------------------------------------------------------------


def problem_of(size: str, loss: Loss, *, seeds: int, batch: int = 3) -> Sampled:
    """The quadratics of all seeds; methods see the same rows."""
    H = torch.stack([hessian(size, seed) for seed in range(seeds)])
    A = torch.linalg.cholesky(H).mT if loss == "squared" else power(H, 0.5)
    return Sampled(H.float(), A.float(), n=batch, seed=0)


def run(
    method: str, size: str, loss: Loss, *, seeds: int, steps: int, batch: int = 3, lr: float = 0.1
) -> dict[str, Any]:
    """Quartiles over the seeds of f, and of ‖H‖_{1,Γ} / ‖H‖₁ where Γ is DeVA's."""
    problem = problem_of(size, loss, seeds=seeds, batch=batch)
    X = torch.nn.Parameter(problem.start(seeds, 9, 9))
    optimizer = METHODS[method]([X], lr, loss)
    rates = [group["lr"] for group in optimizer.param_groups]
    values, norms = [problem.value(X.detach())], []
    for step in range(steps):
        if method == "sgd":
            X.grad = problem.H @ X.detach()
        else:
            X.grad = problem.sample(X.detach(), squared=loss == "squared")
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(step, steps)
        optimizer.step()
        values.append(problem.value(X.detach()))
        if method in ADAPTED and step % RECORD_EVERY == RECORD_EVERY // 2:
            norms.append(_weighted_norm(problem.H, method, optimizer.state[X], step + 1))
    return {"loss": _quartiles(values), "norm": _quartiles(norms) if norms else None}


def schedule(step: int, steps: int) -> float:
    """1 for the first half, then linearly to zero: what the paper calls a warm-up."""
    return min(1.0, 2 * (1 - step / steps))


def _weighted_norm(H: Tensor, method: str, state: Mapping[str, Tensor], t: int) -> Tensor:
    """‖H‖_{1,Γ} / ‖H‖₁ in the dual norm of the method, B."""
    one, kappa = torch.ones_like(H), (1 - BETA2**t) ** 0.5  # β₁ = 0
    M, V = state["exp_avg"], state["exp_avg_sq"]
    if method == "devalinf":
        return linf_dual_norm(H, kappa * linf_snr(M, V)) / linf_dual_norm(H, one)
    gamma = kappa * spectral_snr(project(M, state["basis_left"], state["basis_right"]), V)
    return schatten_dual_norm(H, gamma) / schatten_dual_norm(H, one)


def _quartiles(values: list[Tensor]) -> list[list[float]]:
    """Lower quartile, median and upper quartile over the seeds, for each time."""
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    found: list[list[float]] = torch.stack(values).double().quantile(levels, dim=1).tolist()
    return found


@one_thread()
def compute(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every curve: loss → problem → method → quartiles; and what other rates give."""
    lr, factors = settings["lr"], settings["factors"]
    sizes = {key: settings[key] for key in ("seeds", "steps", "batch")}
    found: dict[str, Any] = {}
    for loss in ABOUT:
        found[loss] = {"factors": list(factors)}
        for size in SIZES:
            found[loss][size] = {m: run(m, size, loss, lr=lr, **sizes) for m in METHODS}
        found[loss]["rates"] = {
            m: [run(m, UNLIKE, loss, lr=k * lr, **sizes)["loss"][1][-1] for k in factors]
            for m in ("muon", "devasinf")
        }
    return found


# Shown --------------------------------------------------------------------------------------------

Curves = Mapping[str, Any]  # problem → method → "loss" or "norm" → quartiles → times
DRAWN_EVERY: Final = 10  # steps: all of them would make a figure of half a megabyte
LOWEST: Final = 1e-6  # of the axis: below it float32 has nothing to say about f


def show(results: Mapping[str, Any], folder: Path) -> Shown:
    """The table and the claims for both settings, and a figure for each."""
    found = {loss: claims(results[loss]) for loss in ABOUT}
    figures = [
        draw(folder, f"fig-trace-{loss}", (8.4, 6.2), partial(_fill, results[loss]))
        for loss in ABOUT
    ]
    best = [{m: min(ends) for m, ends in results[loss]["rates"].items()} for loss in ABOUT]
    return shown(
        "fig-trace",
        {f"{loss}: {each.claim}": each for loss, own in found.items() for each in own},
        tuple(chain(*figures)),
        settings=[(loss, about, results[loss], found[loss]) for loss, about in ABOUT.items()],
        methods={method: NAMES[method] for method in METHODS},
        sizes=SIZES,
        ahead=sum(each["devasinf"] < each["muon"] for each in best),
    )


def claims(curves: Curves) -> list[Finding]:
    """What the paper says of its figure, and the medians of f at the end, or of the norms."""

    def last(size: str, method: str) -> float:
        return float(curves[size][method]["loss"][1][-1])

    def below(one: str, other: str) -> Finding:
        a, b = last(UNLIKE, one), last(UNLIKE, other)
        claim = f"heterogeneous: {NAMES[one]} ends below {NAMES[other]}"
        return Finding(decided(a < b), f"{a:.2g} against {b:.2g}", a / b, claim)

    def similar(claim: str, method: str) -> Finding:
        a, b = last(ALIKE, method), last(UNLIKE, method)
        how = f"{a:.2g} homogeneous, {b:.2g} heterogeneous"
        return Finding(decided(1 / 3 < a / b < 3), how, a / b, claim)

    def lower(method: str) -> Finding:
        a, b = (fmean(curves[size][method]["norm"][1]) for size in SIZES)
        claim = f"‖H‖₁,Γ of {NAMES[method]} falls, more where heterogeneous"
        how = f"mean {a:.2f} homogeneous, {b:.2f} heterogeneous"
        return Finding(decided(b < a < 1), how, b / a, claim)

    return [
        similar("GD is much the same on both problems", "sgd"),
        below("devasinf", "muon"),
        below("devalinf", "signum"),
        below("adamw", "signum"),
        similar("SOAP is similar on both problems", "soap"),
        lower("devalinf"),
        lower("devasinf"),
    ]


def _fill(curves: Curves, figure: Figure) -> None:
    """The losses above and the weighted norms below, medians and quartiles over the seeds."""
    above, below = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[1.6, 1])
    looks = {m: replace(look, name=NAMES[m]) for m, look in palette.styles(METHODS).items()}
    # With β₁ = 0 Adam is DeVA-ℓ∞ but for ε, and lies on top of it.
    looks["adamw"] = replace(looks["adamw"], dash=(3, 3))
    for size, losses, norms in zip(SIZES, above, below, strict=True):
        last = len(curves[size]["sgd"]["loss"][1])
        steps = range(RECORD_EVERY // 2 + 1, last, RECORD_EVERY)
        weighted = {looks[m]: _curve(curves[size][m]["norm"], steps) for m in ADAPTED}
        draw_curves(norms, weighted, x="step", y="")
        norms.axhline(1, color=GREY, linewidth=0.7, linestyle=(0, (4, 3)))
        norms.set(yscale="linear", ylim=(0, 1.15))
        drawn = {
            looks[m]: _curve(curves[size][m]["loss"], range(0, last, DRAWN_EVERY), DRAWN_EVERY)
            for m in METHODS
        }
        draw_curves(losses, drawn, x="", y="")
        losses.set_title(f"{size}: median and quartiles over the seeds", fontsize=9)
        lowest = min(min(curve.low) for curve in drawn.values())
        losses.set(yscale="log", ylim=(max(LOWEST, lowest / 2), 30 * drawn[looks["sgd"]].loss[0]))
        losses.minorticks_off()
        losses.lines[list(METHODS).index("adamw")].set_zorder(4)
    above[0].set_ylabel(r"$f(X) = \frac{1}{2}\,\mathrm{tr}(X^T H X)$")
    below[0].set_ylabel(r"$\|H\|_{1,\Gamma}\;/\;\|H\|_1$")
    legend_below(figure, above[0], columns=8)


def _curve(quartiles: list[list[float]], steps: Sequence[float], every: int = 1) -> Curve:
    low, middle, high = (times[::every] for times in quartiles)
    return Curve([*steps], [*steps], [*steps], middle, low, high)
