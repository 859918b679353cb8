"""`fig-trace`: the paper's trace quadratic, its hundred seeds as one batch of matrices.

    X  B×9×9  where the seeds are      H  B×9×9  their Hessians, H = Aᵀ A
    G  B×9×9  sampled gradients        A  B×9×9  a sample is a row of it

Two settings. "squared" is the paper's text: ½ ‖aᵀ X‖² of the sampled rows, A by Cholesky, Muon with
the scale of its table. "published" is what the published script computes: the norm in place of its
square, A the symmetric root, Muon at five times that scale, no update at the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

import deva_optim as do
from deva_optim.core.bases import project

from .. import quadratic
from ..quadratic import hessian
from ..render import figures as palette
from ..render.figures import draw
from .experiment import Say, Shown, markdown_table, one_thread
from .quantities import linf_dual_norm, linf_snr, schatten_dual_norm, spectral_snr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Loss = Literal["squared", "published"]
ABOUT: Final[dict[Loss, str]] = {
    "squared": "the squared loss of the text, Muon at its usual scale",
    "published": "the published script's setting: norm not squared, Muon at five times the scale",
}
ALIKE, UNLIKE = SIZES = tuple(quadratic.SIZES)
RECORD_EVERY: Final = 10  # as often as bases are renewed; it is done halfway between
BETA2: Final = 0.99


def _deva(params: list[Tensor], lr: float, loss: Loss) -> Optimizer:
    first = loss == "published"
    return do.DeVASinf(params, lr, (0.0, BETA2, BETA2), weight_decay=0.0, skip_first=first)


def _muon(params: list[Tensor], lr: float, loss: Loss) -> Optimizer:
    return do.Muon(params, 5 * lr if loss == "published" else lr, weight_decay=0.0, momentum=0.0)


METHODS: Final[dict[str, Callable[[list[Tensor], float, Loss], Optimizer]]] = {
    "sgd": lambda p, lr, loss: torch.optim.SGD(p, lr * 1e-3),  # deterministic: GD
    "signum": lambda p, lr, loss: do.Signum(p, lr, momentum=0.0, weight_decay=0.0),
    "adamw": lambda p, lr, loss: do.AdamW(p, lr, (0.0, BETA2), weight_decay=0.0),
    "muon": _muon,
    "soap": lambda p, lr, loss: do.SOAP(p, lr, (0.0, BETA2, BETA2), weight_decay=0.0),
    "adamuon": lambda p, lr, loss: do.AdaMuon(p, lr, (0.0, BETA2), weight_decay=0.0),
    "devalinf": lambda p, lr, loss: do.DeVALinf(p, lr, (0.0, BETA2), weight_decay=0.0),
    "devasinf": _deva,
}
ADAPTED: Final = ("devalinf", "devasinf")
NAMES: Final = {**palette.NAMES, "sgd": "GD", "signum": "SignSGD", "adamw": "Adam"}
"""What the paper calls them, without decay and without momentum."""

# Computed -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One curve: a method on one of the problems."""

    method: str
    size: str
    loss: Loss
    seeds: int = 100
    steps: int = 400
    batch: int = 3
    lr: float = 0.1


class Problem:
    """The quadratics of all seeds."""

    def __init__(self, setting: Setting) -> None:
        H = torch.stack([hessian(setting.size, seed) for seed in range(setting.seeds)])
        self.loss, self.rows = setting.loss, setting.batch
        root = torch.linalg.cholesky(H).mT if setting.loss == "squared" else _symmetric_root(H)
        self.H, self.A = H.float(), root.float()
        self.generator = torch.Generator().manual_seed(0)  # the same rows for all methods

    def start(self) -> Tensor:
        """X, Gaussian, B×9×9."""
        return torch.randn(self.H.shape, generator=self.generator)

    def value(self, X: Tensor) -> Tensor:
        """f(X) = ½ tr(Xᵀ H X), B; the least value is 0."""
        return 0.5 * (self.A @ X).square().sum((-2, -1))

    def gradient(self, X: Tensor) -> Tensor:
        """H X."""
        gradient: Tensor = self.H @ X
        return gradient

    def sample(self, X: Tensor) -> Tensor:
        """The gradient of 9/b · ½ ‖A_b X‖_F², or of 9/b · ½ ‖A_b X‖_F, for b rows of A."""
        rows = torch.randint(9, (len(X), self.rows, 1), generator=self.generator)
        A_b = self.A.gather(1, rows.expand(-1, -1, 9))
        residual = A_b @ X
        G: Tensor = 9 / self.rows * A_b.mT @ residual
        if self.loss == "squared":
            return G
        size: Tensor = torch.linalg.matrix_norm(residual, keepdim=True)
        return G / (2 * size)


def _symmetric_root(H: Tensor) -> Tensor:
    λ, Q = torch.linalg.eigh(H)
    root: Tensor = (Q * λ.sqrt().unsqueeze(-2)) @ Q.mT
    return root


def run(setting: Setting) -> dict[str, Any]:
    """Quartiles over the seeds of f, and of ‖H‖_{1,Γ} / ‖H‖₁ where Γ is DeVA's."""
    problem = Problem(setting)
    X = torch.nn.Parameter(problem.start())
    optimizer = METHODS[setting.method]([X], setting.lr, setting.loss)
    rates = [group["lr"] for group in optimizer.param_groups]
    deterministic = setting.method == "sgd"
    values, norms = [problem.value(X.detach())], []
    for step in range(setting.steps):
        X.grad = (problem.gradient if deterministic else problem.sample)(X.detach())
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate if deterministic else rate * schedule(step, setting.steps)
        optimizer.step()
        values.append(problem.value(X.detach()))
        if setting.method in ADAPTED and step % RECORD_EVERY == RECORD_EVERY // 2:
            norms.append(_weighted_norm(problem.H, setting.method, optimizer.state[X], step + 1))
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
    levels = torch.tensor([0.25, 0.5, 0.75])
    stacked = torch.stack(values).double()
    found: list[list[float]] = stacked.quantile(levels.double(), dim=1).tolist()
    return found


@one_thread()
def compute(settings: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Every curve: loss → problem → method → quartiles; and what other rates give."""
    sizes = {key: settings[key] for key in ("seeds", "steps", "batch", "lr")}
    found: dict[str, Any] = {}
    for loss in ABOUT:
        found[loss] = {}
        for size in SIZES:
            curves = {m: run(Setting(m, size, loss, **sizes)) for m in METHODS}
            found[loss][size] = curves
            say(f"{loss} loss, {size}: {len(curves)} methods")
        factors = found[loss]["factors"] = list(settings["factors"])
        usual = Setting("muon", UNLIKE, loss, **sizes)
        found[loss]["rates"] = {
            method: [
                run(replace(usual, method=method, lr=factor * usual.lr))["loss"][1][-1]
                for factor in factors
            ]
            for method in ("muon", "devasinf")
        }
    return found


# Shown --------------------------------------------------------------------------------------------

Curves = Mapping[str, Any]  # problem → method → "loss" or "norm" → quartiles → times
Claim = tuple[str, bool, str]  # what the paper says, whether it holds here, the numbers
LOWEST: Final = 1e-6  # of the axis: below it float32 has nothing to say about f


def show(results: Mapping[str, Any], folder: Path) -> Shown:
    """The table and the claims for both settings, and a figure for each."""
    text, figures = list[str](), list[Path]()
    for loss, about in ABOUT.items():
        curves = results[loss]
        told = [
            (claim, "holds" if ok else "does not hold", how) for claim, ok, how in claims(curves)
        ]
        rates = [(NAMES[m], *(f"{end:.2g}" for end in ends)) for m, ends in curves["rates"].items()]
        factors = tuple(f"× {factor:g}" for factor in curves["factors"])
        text += [
            f"## {loss}: {about}",
            _ends(curves),
            markdown_table(("the paper", "here", "median of f at the end, or ‖H‖₁,Γ / ‖H‖₁"), told),
            # how Muon and DeVA-S∞ compare over learning rates, which the paper does not ask
            markdown_table(("heterogeneous, f at the end, rate", *factors), rates),
        ]
        figures += draw(folder, f"fig-trace-{loss}", (8.4, 6.2), partial(_fill, curves))
    return Shown("\n\n".join(text), verdict(results), tuple(figures), why=why(results))


def why(results: Mapping[str, Any]) -> str:
    """Which claims fail, in which of the two settings; both are the authors'."""
    told = []
    for loss in ABOUT:
        broken = [claim for claim, holds, _ in claims(results[loss]) if not holds]
        which = f" ({'; '.join(broken)})" if broken else ""
        told.append(f"{len(broken) or 'none'} of the claims fail with the {loss} loss{which}")
    return f"The authors' own setting: {' and '.join(told)}."


def verdict(results: Mapping[str, Any]) -> str:
    """How many of the paper's claims hold in each setting, and whether they hold at other rates."""
    held = {loss: [holds for _, holds, _ in claims(results[loss])] for loss in ABOUT}
    every = [holds for each in held.values() for holds in each]
    word = "holds" if all(every) else "holds in part" if any(every) else "does not hold"
    counts = (f"{sum(h)} of {len(h)} claims hold with the {loss} loss" for loss, h in held.items())
    best = [{m: min(ends) for m, ends in results[loss]["rates"].items()} for loss in ABOUT]
    ahead = sum(each["devasinf"] < each["muon"] for each in best)
    return (
        f"{word} at the paper's learning rate: {', '.join(counts)}; with a best rate for each, "
        f"DeVA-S∞ ends below Muon in {ahead} of {len(ABOUT)} settings"
    )


def claims(curves: Curves) -> list[Claim]:
    """What the paper says of its figure."""

    def last(size: str, method: str) -> float:
        return float(curves[size][method]["loss"][1][-1])

    def below(one: str, other: str) -> Claim:
        a, b = last(UNLIKE, one), last(UNLIKE, other)
        claim = f"heterogeneous: {NAMES[one]} ends below {NAMES[other]}"
        return claim, a < b, f"{a:.2g} against {b:.2g}"

    def similar(claim: str, method: str) -> Claim:
        a, b = last(ALIKE, method), last(UNLIKE, method)
        return claim, 1 / 3 < a / b < 3, f"{a:.2g} homogeneous, {b:.2g} heterogeneous"

    def lower(method: str) -> Claim:
        norms = (curves[size][method]["norm"][1] for size in SIZES)
        a, b = (float(sum(times) / len(times)) for times in norms)
        claim = f"‖H‖₁,Γ of {NAMES[method]} falls, more where heterogeneous"
        return claim, b < a < 1, f"mean {a:.2f} homogeneous, {b:.2f} heterogeneous"

    return [
        similar("GD is much the same on both problems", "sgd"),
        below("devasinf", "muon"),
        below("devalinf", "signum"),
        below("adamw", "signum"),
        similar("SOAP is similar on both problems", "soap"),
        lower("devalinf"),
        lower("devasinf"),
    ]


def _ends(curves: Curves) -> str:
    """Where every method ends on both problems."""
    rows = []
    for method in METHODS:
        ends = [[times[-1] for times in curves[size][method]["loss"]] for size in SIZES]
        cells = [f"{middle:.2g} ({low:.2g} … {high:.2g})" for low, middle, high in ends]
        rows.append((NAMES[method], *cells))
    return markdown_table(("f at the end: median (quartiles)", *SIZES), rows)


def _fill(curves: Curves, figure: Figure) -> None:
    above, below = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[1.6, 1])
    for i, size in enumerate(SIZES):
        _losses(above[i], curves[size], size)
        _norms(below[i], curves[size])
    above[0].set_ylabel(r"$f(X) = \frac{1}{2}\,\mathrm{tr}(X^T H X)$")
    below[0].set_ylabel(r"$\|H\|_{1,\Gamma}\;/\;\|H\|_1$")
    handles, labels = above[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False)


def _losses(axes: Axes, curves: Curves, size: str) -> None:
    looks = palette.styles(METHODS)
    for method in METHODS:
        low, middle, high = curves[method]["loss"]
        look, steps = looks[method], range(len(middle))
        axes.fill_between(steps, low, high, color=look.light, alpha=0.12, linewidth=0)
        dashed = method == "adamw"  # with β₁ = 0 it is DeVA-ℓ∞ but for ε, and lies on top of it
        axes.plot(
            steps,
            middle,
            color=look.light,
            linewidth=look.width * 0.8,
            linestyle=(0, (3, 3)) if dashed else "solid",
            zorder=3 if dashed else 2,
            label=NAMES[method],
        )
    start = curves["sgd"]["loss"][1][0]
    lowest = min(min(curves[method]["loss"][0]) for method in METHODS)
    axes.set_yscale("log")
    axes.set_ylim(max(LOWEST, lowest / 2), 30 * start)
    axes.set_title(f"{size}: median and quartiles over the seeds", fontsize=9)
    axes.grid(axis="y")


def _norms(axes: Axes, curves: Curves) -> None:
    looks = palette.styles(METHODS)
    for method in ADAPTED:
        low, middle, high = curves[method]["norm"]
        steps = [RECORD_EVERY * i + RECORD_EVERY // 2 + 1 for i in range(len(middle))]
        axes.fill_between(steps, low, high, color=looks[method].light, alpha=0.15, linewidth=0)
        axes.plot(steps, middle, color=looks[method].light, linewidth=1.8)
    axes.axhline(1, color="#5a5a5a", linewidth=0.7, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 1.15)
    axes.set_xlabel("step")
    axes.grid(axis="y")
