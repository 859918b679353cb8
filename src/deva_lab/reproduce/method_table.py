"""`table-methods`: the paper's table of special instances beside the table of methods here.

G     n×m  a gradient, the only sample: E[·] is the value itself
L, R       G Gᵀ and Gᵀ G
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from deva_optim import METHODS

from .claims import Finding, findings_table, judged, sentence
from .experiment import Say, Shown, markdown_table
from .printed import PRINTED

ROWS: Final = {
    "Adam": "adamw",
    "Shampoo": "shampoo-ungrafted",
    "SOAP": "soap",
    "SPlus": "splus",
    "DeVA-S∞": "deva-sinf",
}
"""The paper's name → ours; the paper's Shampoo is not grafted."""

REPAIRED: Final = "DeVA-S∞ with both factors under the root"
ROUNDING: Final = 1e-10  # float64, roots of matrices with singular values from 1 to 10


def power(C: Tensor, p: float) -> Tensor:
    """C^p of a positive definite C."""
    λ, Q = torch.linalg.eigh(C)
    root: Tensor = (Q * λ**p) @ Q.mT
    return root


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


def compute(settings: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Bases and adaptations of our methods, and how the updates of the paper's table scale."""
    generator = torch.Generator().manual_seed(0)
    U, V = (
        torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64)).Q
        for _ in range(2)
    )
    G = U @ torch.diag(torch.linspace(1, 10, 4, dtype=torch.float64)) @ V.mT
    return {
        "methods": {name: list(_row(ours)) for name, ours in ROWS.items()},
        "scaling": {name: _scaling(update, G) for name, update in UPDATES.items()},
    }


def _row(name: str) -> tuple[str, bool]:
    """The eigenbases and whether there is a variance adaptation."""
    method = METHODS[name]
    rotates = method.basis is not None and method.basis.keeps == "basis"
    return "Q_L, Q_R" if rotates else "I", method.adaptation is not None


def _scaling(update: Callable[[Tensor], Tensor], G: Tensor) -> float:
    """By how much the update changes, relative to it, when the gradient is ten times as large."""
    before, after = update(G), update(10 * G)
    return float((after - before).norm() / before.norm())


def show(results: Mapping[str, Any], folder: Path) -> Shown:
    """Both tables, and which of the printed preconditioners lose the scale of the gradient."""
    printed = PRINTED["table-methods"]
    rows = [
        (name, *(f"{_cell(p)}; {_cell(o)}" for p, o in zip(printed[name], ours, strict=True)))
        for name, ours in results["methods"].items()
    ]
    head = ("the paper; here", "eigenbases", "variance adaptation")
    findings = [_same(results["methods"], printed), *map(_invariant, results["scaling"].items())]
    return Shown(
        "\n\n".join([markdown_table(head, rows), findings_table(findings)]), sentence(findings)
    )


def _cell(value: str | bool) -> str:
    return value if isinstance(value, str) else "yes" if value else "none"


def _same(ours: Mapping[str, Any], printed: Mapping[str, Any]) -> Finding:
    other = [name for name in printed if tuple(ours[name]) != tuple(printed[name])]
    return judged(
        "each method has these eigenbases, and a variance adaptation or none",
        "rows of METHODS that differ",
        float(len(other)),
        most=0,
        how=", ".join(other) or f"all {len(printed)} agree",
    )


def _invariant(row: tuple[str, float]) -> Finding:
    name, change = row
    return judged(
        f"{name}: M⁻¹ G does not depend on the scale of G",
        "relative change when G is ten times as large, 4 × 4, one sample",
        change,
        most=ROUNDING,
        how="{:.1g}",
    )
