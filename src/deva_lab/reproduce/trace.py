"""`fig-trace`: the paper's trace quadratic, its hundred seeds as one batch of matrices.

    X  B×9×9  where the seeds are      H  B×9×9  their Hessians, H = Aᵀ A
    G  B×9×9  sampled gradients        A  B×9×9  a sample is a row of it

Two settings. "squared" is the paper's text: ½ ‖aᵀ X‖² of the sampled rows, A by Cholesky, Muon with
the scale of its table. "published" is what the published script computes: the norm in place of its
square, A the symmetric root, Muon at five times that scale, no update at the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

import deva_optim as do
from deva_optim.core.bases import project

from .. import quadratic
from ..quadratic import hessian
from .experiment import one_thread
from .quantities import linf_dual_norm, linf_snr, schatten_dual_norm, spectral_snr

Loss = Literal["squared", "published"]
LOSSES: Final[tuple[Loss, ...]] = ("squared", "published")
SIZES: Final = tuple(quadratic.SIZES)
RECORD_EVERY: Final = 10  # as often as bases are renewed; it is done halfway between
BETA2: Final = 0.99

Build = Callable[[list[Tensor], float, Loss], Optimizer]


def _deva(params: list[Tensor], lr: float, loss: Loss) -> Optimizer:
    first = loss == "published"
    return do.DeVASinf(params, lr, (0.0, BETA2, BETA2), weight_decay=0.0, skip_first=first)


def _muon(params: list[Tensor], lr: float, loss: Loss) -> Optimizer:
    return do.Muon(params, 5 * lr if loss == "published" else lr, weight_decay=0.0, momentum=0.0)


METHODS: Final[dict[str, Build]] = {
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
NAMES: Final = {"sgd": "GD", "signum": "SignSGD", "adamw": "Adam"}
"""What the paper calls them, where it is not what we do: without decay and without momentum."""


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
    values, norms = [problem.value(X.detach())], []
    for step in range(setting.steps):
        deterministic = setting.method == "sgd"
        X.grad = (problem.gradient if deterministic else problem.sample)(X.detach())
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate if deterministic else rate * _schedule(step, setting.steps)
        optimizer.step()
        values.append(problem.value(X.detach()))
        if setting.method in ADAPTED and step % RECORD_EVERY == RECORD_EVERY // 2:
            norms.append(_weighted_norm(problem.H, setting.method, optimizer.state[X], step + 1))
    return {
        "loss": _quartiles(torch.stack(values)),
        "norm": _quartiles(torch.stack(norms)) if norms else None,
    }


def _schedule(step: int, steps: int) -> float:
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


def _quartiles(values: Tensor) -> list[list[float]]:
    """Lower quartile, median and upper quartile over the seeds, for each time."""
    levels = torch.tensor([0.25, 0.5, 0.75])
    found: list[list[float]] = values.double().quantile(levels.double(), dim=1).tolist()
    return found


@one_thread()
def compute(settings: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Every curve: loss → problem → method → quartiles; and what other rates give."""
    sizes = {key: settings[key] for key in ("seeds", "steps", "batch", "lr")}
    found: dict[str, Any] = {}
    for loss in LOSSES:
        found[loss] = {}
        for size in SIZES:
            curves = {m: run(Setting(m, size, loss, **sizes)) for m in METHODS}
            found[loss][size] = curves
            say(f"{loss} loss, {size}: {len(curves)} methods")
        found[loss]["factors"] = list(settings["factors"])
        found[loss]["rates"] = _rates(Setting("muon", SIZES[1], loss, **sizes), settings["factors"])
    return found


def _rates(setting: Setting, factors: Sequence[float]) -> dict[str, list[float]]:
    """The median of f at the end for Muon and DeVA-S∞ at these multiples of their rate."""
    return {
        method: [
            run(replace(setting, method=method, lr=factor * setting.lr))["loss"][1][-1]
            for factor in factors
        ]
        for method in ("muon", "devasinf")
    }
