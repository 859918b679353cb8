"""`table-cost`, `table-hyper` and `table-methods`: the paper's tables that need no training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from deva_optim import METHODS

from ..bench.counting import count_flops, state_bytes
from ..bench.subjects import SUBJECTS
from ..models.gpt import GPT, SIZES
from ..run.entrants import Entrant
from ..run.settings import RunSettings
from . import paper
from .experiment import Shown, parameters, shown, units
from .measures import Finding, judged
from .paper import EXHIBITS, PRINTED
from .theory import power

# Memory and FLOPs of a step, by formula, counted and measured -------------------------------------
#
#     n, m  the sides of a matrix, s the shorter and l the longer
#     k     steps between two refreshes of a basis
#
# The paper's table has its columns swapped. Put right, it counts weight, gradient and moments, one
# square matrix a side, and of the products those with one side. A basis needs two square matrices
# for a side (L and Q_L, R and Q_R), and with both sides every product costs n m² beside n² m.
# Formulas are for sides below 512; from there on covariances compute half of a symmetric product.


def msign_flops(n: int, m: int) -> float:
    """Five steps: 5 (4 s² l + 2 s³), or 4 s² l + 34 s³ on the Gram matrix of a rectangle."""
    s, l = sorted((n, m))
    return 4 * s * s * l + 34 * s**3 if l > 1.5 * s else 5 * (4 * s * s * l + 2 * s**3)


def rotation_flops(n: int, m: int) -> float:
    """One of the pairs of products of a two-sided method: 2 (n² m + n m²)."""
    return 2 * (n * n * m + n * m * m)


def refresh_flops(n: int) -> float:
    """L Q, and Q of its QR: 2 n³ + 8/3 n³."""
    return 2 * n**3 + 2 * (2 * n**3 - 2 * n**3 // 3)


def _both(n: int, m: int, k: int) -> float:
    """Projection, restoring and covariances, and the refresh."""
    return 3 * rotation_flops(n, m) + (refresh_flops(n) + refresh_flops(m)) / k


def _deva(n: int, m: int, k: int) -> float:
    return _both(n, m, k) + msign_flops(n, m) + 2 * n * m  # r cᵀ


def _short(n: int, m: int, k: int) -> float:
    if n == m:
        return _deva(n, m, k)
    s, l = sorted((n, m))
    return 3 * 2 * s * s * l + refresh_flops(s) / k + msign_flops(n, m) + 2 * n * m


COSTS: Final[dict[str, Callable[[int, int, int], float]]] = {
    "muon": lambda n, m, k: msign_flops(n, m),
    "adamuon": lambda n, m, k: msign_flops(n, m),
    "soap": lambda n, m, k: _both(n, m, k) + 2 * rotation_flops(n, m) / k,  # M turns at a refresh
    "deva-both": _deva,
    "deva-short": _short,
    "deva-factored": lambda n, m, k: _both(n, m, k) + msign_flops(n, m),
    "deva-instantaneous": lambda n, m, k: _deva(n, m, k) + rotation_flops(n, m),
    "shampoo": lambda n, m, k: 2 * rotation_flops(n, m) + 11 * (n**3 + m**3) / k,
    "splus": lambda n, m, k: 3 * rotation_flops(n, m) + 9 * (n**3 + m**3) / k,
    "adamw": lambda n, m, k: 0.0,
    "deva-linf": lambda n, m, k: 0.0,
}
"""Subject of the benchmark → n, m, k → FLOPs of its step, refreshes in their share.

paper.json has the formulas in words.
"""


def measure_cost(name: str, shape: tuple[int, int], k: int) -> dict[str, Any]:
    """FLOPs of a step, counted over a whole period of refreshes, and bytes of the state."""
    torch.manual_seed(0)
    subject = SUBJECTS[name]
    weight = torch.nn.Parameter(torch.randn(shape))
    optimizer = subject.build([weight], k)

    def steps(number: int) -> None:
        for _ in range(number):
            weight.grad = torch.randn(shape)
            optimizer.step()

    steps(1)  # the first basis is chosen once
    return {
        "shape": list(shape),
        "formula_flops": COSTS[name](*shape, k),
        "counted_flops": count_flops(lambda: steps(k)).total / k,
        "formula_bytes": subject.state.bytes([shape]),
        "measured_bytes": state_bytes(optimizer),
    }


def compute_cost(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every method on every shape."""
    k, shapes = settings["refresh_every"], settings["shapes"]
    found = {name: [measure_cost(name, (n, m), k) for n, m in shapes] for name in COSTS}
    return {"methods": found, "refresh_every": k}


def show_cost(results: Mapping[str, Any], folder: Path) -> Shown:
    """The formulas beside the paper's, and the numbers beside the formulas."""
    exact = all(
        math.isclose(row["formula_flops"], row["counted_flops"], rel_tol=1e-12)
        and row["formula_bytes"] == row["measured_bytes"]
        for rows in results["methods"].values()
        for row in rows
    )
    states = {name: SUBJECTS[name].state.formula for name in COSTS}
    values = {"measured": results["methods"], "states": states, "exact": exact}
    return shown("table-cost", {}, rows=EXHIBITS["table-cost"]["rows"], **values)


# Hyper-parameters: the paper's beside those that `--scale paper` runs with -----------------------
#
# Ours are read from optimizers that are built as a run would build them. A hyper-parameter that a
# method has no use for is in the paper's table all the same, and compared with nothing here.

HYPER: Final = PRINTED["table-hyper"]
USED: Final = EXHIBITS["table-hyper"]["used"]
"""What a method has a use for beside rate, decay and batch, by the name of its entrant."""
WITHIN: Final = {"NanoGPT": (274e6, 276e6)}  # parameters, where the paper's text has them


def hyper_runs() -> dict[str, dict[str, RunSettings]]:
    """Title of a table → the paper's name of a method → a run of it at the paper's scale."""
    names = {**paper.NAMES, paper.ADAM: "Adam"}
    for methods in (paper.VECTOR, paper.MATRIX, paper.IMAGENET):
        names |= {label: paper.IMAGE_NAMES[method] for method, label in methods.items()}
    found: dict[str, dict[str, RunSettings]] = {}
    for title, name in EXHIBITS["table-hyper"]["runs"].items():
        setup = paper.setup_of(EXHIBITS[name]["subject"], "paper")
        runs = [(names[run.optimizer], run) for run in paper.RUNS[name](setup)]
        found[title] = {
            method: run
            for method, run in runs
            if method in HYPER[title] and run.lr == HYPER[title][method][0]
        }
    return found


def read_hyper(run: RunSettings) -> dict[str, Any]:
    """The hyper-parameters of a run that its method has a use for."""
    entrant = Entrant.parse(run.optimizer)
    optimizer = entrant.build(GPT(SIZES["tiny"], 16), run.lr)
    group = next(group for group in optimizer.param_groups if group["role"] == "matrix")
    betas = (*group.get("betas", [group.get("momentum")]), 0.0, 0.0)[:3]
    found = {
        "lr": group["lr"],
        "decay": group["weight_decay"],
        "batch": units(run) // run.steps,
        **dict(zip(("β₁", "β₂", "β₃"), betas, strict=True)),
        "ε": group["eps"],
        "refresh": group["refresh_every"],
        "Nesterov": group["nesterov"],
    }
    return {key: found[key] for key in ("lr", "decay", "batch", *USED[entrant.name])}


def compute_hyper(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Title → the hyper-parameters of each method, and the size and length of its runs."""
    found = {}
    for title, table in hyper_runs().items():
        first = next(iter(table.values()))
        found[title] = {
            "methods": {name: read_hyper(run) for name, run in table.items()},
            "parameters": parameters(first),
            "units": units(first),
        }
    return found


def show_hyper(results: Mapping[str, Any], folder: Path) -> Shown:
    """The tables, each cell ours, with the paper's where it differs."""
    found = {}
    for title, table in results.items():
        found[title] = _agree(title, table["methods"])
        if title in WITHIN:
            (low, high), number = WITHIN[title], table["parameters"]
            outside = max(low - number, number - high, 0)
            found[f"{title} parameters"] = judged(outside, most=0, how=f"{number:,}")
    return shown("table-hyper", found, tables=results, within=WITHIN, value=_text)


def _agree(title: str, methods: Mapping[str, Any]) -> Finding:
    """The values that differ from the paper's table."""
    number, other = 0, []
    for name, row in methods.items():
        printed = dict(zip(HYPER["head"], HYPER[title][name], strict=True))
        number += len(row)
        other += [f"{name} {k}: {v} for {printed[k]}" for k, v in row.items() if v != printed[k]]
    return judged(len(other), most=0, how="; ".join(other) or f"all {number} agree")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else f"{value:,}"


# Special instances: bases, adaptations and preconditioners of the methods ------------------------
#
#     G     n×m  a gradient, the only sample: E[·] is the value itself
#     L, R       G Gᵀ and Gᵀ G
#
# The rows in paper.json say which method of ours is the paper's; its Shampoo is not grafted.

REPAIRED: Final = "DeVA-S∞ with both factors under the root"
ROUNDING: Final = 1e-10  # float64, roots of matrices with singular values from 1 to 10


def _sides(G: Tensor, left: float, right: float) -> Tensor:
    """(L^−left ⊗ R^−right) vec(G), the vec that reads by rows: L^−left G R^−right."""
    return power(G @ G.mT, -left) @ G @ power(G.mT @ G, -right)


UPDATES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "Adam": lambda G: G / G.square().sqrt(),
    "Shampoo": lambda G: _sides(G, 1 / 4, 1 / 4),
    "SOAP": lambda G: (G @ G.mT).trace().sqrt() * _sides(G, 1 / 2, 1 / 2),
    "SPlus": lambda G: _sides(G, 1 / 4, 1 / 4),
    "DeVA-S∞": lambda G: _sides(G, 1 / 8, 1 / 4),  # as printed: ((L^½ ⊗ R)^½)^−½
    REPAIRED: lambda G: _sides(G, 1 / 4, 1 / 4),
}
"""M⁻¹ G by the preconditioner of the paper's table."""


def compute_methods(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Bases and adaptations of our methods, and how the updates of the paper's table scale."""
    generator = torch.Generator().manual_seed(0)
    U, V = (
        torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64)).Q
        for _ in range(2)
    )
    G = U @ torch.diag(torch.linspace(1, 10, 4, dtype=torch.float64)) @ V.mT
    scaling = {
        name: float((update(10 * G) - update(G)).norm() / update(G).norm())
        for name, update in UPDATES.items()
    }
    return {
        "methods": {
            name: list(_method(ours)) for name, ours in EXHIBITS["table-methods"]["rows"].items()
        },
        "scaling": scaling,
    }


def _method(name: str) -> tuple[str, bool]:
    """The eigenbases and whether there is a variance adaptation."""
    method = METHODS[name]
    rotates = method.basis is not None and method.basis.keeps == "basis"
    return "Q_L, Q_R" if rotates else "I", method.adaptation is not None


def show_methods(results: Mapping[str, Any], folder: Path) -> Shown:
    """Both tables, and which of the printed preconditioners lose the scale of the gradient."""
    printed, ours = PRINTED["table-methods"], results["methods"]
    other = [name for name in printed if ours[name] != printed[name]]
    same = judged(len(other), most=0, how=", ".join(other) or f"all {len(printed)} agree")
    invariant = {
        name: judged(change, most=ROUNDING, how="{:.1g}")
        for name, change in results["scaling"].items()
    }
    found = {"same": same, **invariant}
    return shown("table-methods", found, methods=ours, scaling=results["scaling"])
