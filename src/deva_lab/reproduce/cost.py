"""`table-cost`: memory and FLOPs of a step, by formula, counted and measured.

    n, m  the sides of a matrix, s the shorter and l the longer
    k     steps between two refreshes of a basis

The paper's table has its columns swapped. Put right, it counts weight, gradient and moments, one
square matrix a side, and of the products those with one side. A basis needs two square matrices for
a side (L and Q_L, R and Q_R), and with both sides every product costs n m² beside n² m.

Formulas are for sides below 512; from there on covariances compute half of a symmetric product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ..bench.flops import count_flops
from ..bench.memory import state_bytes
from ..bench.settings import Settings
from ..bench.subjects import SUBJECTS
from .experiment import Say, Shown, markdown_table

Flops = Callable[[int, int, int], float]  # n, m, k → FLOPs of a step, refreshes in their share

PAPER: Final = {
    "muon": ("3nm", "5nm²"),
    "soap": ("n² + m² + 4nm", "n²m + (n³ + m³)/k"),
    "deva-both": ("n² + m² + 4nm", "n²m + 5nm² + (n³ + m³)/k"),
}
"""Memory and FLOPs as the paper's table has them, each under its right name."""

NAMES: Final = {
    "muon": "Muon",
    "adamuon": "AdaMuon",
    "soap": "SOAP",
    "deva-both": "DeVA-S∞",
    "deva-short": "DeVA-S∞, short side",
    "deva-factored": "DeVA-S∞, factored",
    "deva-instantaneous": "DeVA-S∞, instantaneous",
    "shampoo": "Shampoo",
    "splus": "SPlus",
    "adamw": "AdamW",
    "deva-linf": "DeVA-ℓ∞",
}


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


@dataclass(frozen=True)
class Row:
    """The cost of a method: in words, and in numbers."""

    words: str
    flops: Flops


def _both(n: int, m: int, k: int) -> float:
    """Projection, restoring and covariances, and the refresh."""
    return 3 * rotation_flops(n, m) + (refresh_flops(n) + refresh_flops(m)) / k


def _factored(n: int, m: int, k: int) -> float:
    return _both(n, m, k) + msign_flops(n, m)


def _deva(n: int, m: int, k: int) -> float:
    return _factored(n, m, k) + 2 * n * m  # r cᵀ


def _short(n: int, m: int, k: int) -> float:
    if n == m:
        return _deva(n, m, k)
    s, l = sorted((n, m))
    return 3 * 2 * s * s * l + refresh_flops(s) / k + msign_flops(n, m) + 2 * n * m


def _soap(n: int, m: int, k: int) -> float:
    return _both(n, m, k) + 2 * rotation_flops(n, m) / k  # M is turned along at a refresh


def _shampoo(n: int, m: int, k: int) -> float:
    return 2 * rotation_flops(n, m) + 11 * (n**3 + m**3) / k


def _splus(n: int, m: int, k: int) -> float:
    return 3 * rotation_flops(n, m) + 9 * (n**3 + m**3) / k


_ROTATIONS: Final = "6(n²m + nm²) + 14/3 (n³ + m³)/k"
_TURNED_ONCE_MORE: Final = "8(n²m + nm²) + 14/3 (n³ + m³)/k + msign + 2nm"
ROWS: Final[dict[str, Row]] = {
    "muon": Row("msign", lambda n, m, k: msign_flops(n, m)),
    "adamuon": Row("msign", lambda n, m, k: msign_flops(n, m)),
    "soap": Row(f"{_ROTATIONS} + 4(n²m + nm²)/k", _soap),
    "deva-both": Row(f"{_ROTATIONS} + msign + 2nm", _deva),
    "deva-short": Row("6s²l + 14/3 s³/k + msign + 2nm, or as above", _short),
    "deva-factored": Row(f"{_ROTATIONS} + msign", _factored),
    "deva-instantaneous": Row(
        _TURNED_ONCE_MORE, lambda n, m, k: _deva(n, m, k) + rotation_flops(n, m)
    ),
    "shampoo": Row("4(n²m + nm²) + 11(n³ + m³)/k", _shampoo),
    "splus": Row("6(n²m + nm²) + 9(n³ + m³)/k", _splus),
    "adamw": Row("no products", lambda n, m, k: 0.0),
    "deva-linf": Row("no products", lambda n, m, k: 0.0),
}


def measure(name: str, shape: tuple[int, int], k: int) -> dict[str, Any]:
    """FLOPs of a step, counted over a whole period of refreshes, and bytes of the state."""
    torch.manual_seed(0)
    subject = SUBJECTS[name]
    weight = torch.nn.Parameter(torch.randn(shape))
    optimizer = subject.build([weight], Settings(refresh_every=k, steps=k))

    def step() -> None:
        weight.grad = torch.randn(shape)
        optimizer.step()

    step()  # the first basis is chosen once

    def period() -> None:
        for _ in range(k):
            step()

    return {
        "shape": list(shape),
        "formula_flops": ROWS[name].flops(*shape, k),
        "counted_flops": count_flops(period).total / k,
        "formula_bytes": subject.state.bytes([shape]),
        "measured_bytes": state_bytes(optimizer),
    }


def compute(settings: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Every method on every shape."""
    shapes, k = [tuple(shape) for shape in settings["shapes"]], settings["refresh_every"]
    found = {}
    for name in ROWS:
        found[name] = [measure(name, (n, m), k) for n, m in shapes]
        say(NAMES[name])
    return {"methods": found, "refresh_every": k}


def show(results: Mapping[str, Any], folder: Path) -> Shown:
    """The formulas beside the paper's, and the numbers beside the formulas."""
    methods = results["methods"]
    exact = all(
        math.isclose(row["formula_flops"], row["counted_flops"], rel_tol=1e-12)
        and row["formula_bytes"] == row["measured_bytes"]
        for rows in methods.values()
        for row in rows
    )
    same = "every formula is what was counted and measured" if exact else "a formula is off"
    verdict = (
        "holds in part: the paper's columns are swapped and leave out the bases and the products "
        f"of the second side; {same}"
    )
    return Shown(f"{_formulas()}\n\n{_numbers(methods)}", verdict)


def _formulas() -> str:
    rows = []
    for name, row in ROWS.items():
        memory, flops = (f"O({x})" for x in PAPER[name]) if name in PAPER else ("–", "–")
        rows.append((NAMES[name], memory, SUBJECTS[name].state.formula, flops, row.words))
    head = ("", "memory, the paper", "state, here", "FLOPs, the paper", "FLOPs of a step, here")
    note = (
        "msign is 20s²l + 10s³, or 4s²l + 34s³ where l > 1.5 s; s and l are the short and the long "
        "side, k is `refresh_every`. The paper's memory counts weight and gradient too."
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def _numbers(methods: Mapping[str, Any]) -> str:
    rows = []
    for name, found in methods.items():
        for row, muon in zip(found, methods["muon"], strict=True):
            n, m = row["shape"]
            ratio = row["counted_flops"] / muon["counted_flops"]
            rows.append((NAMES[name], f"{n}×{m}", f"{row['counted_flops'] / 1e6:.1f}",
                         f"{row['formula_flops'] / 1e6:.1f}", f"{ratio:.2f}",
                         f"{row['measured_bytes']:,}", f"{row['formula_bytes']:,}"))  # fmt: skip
    head = ("", "shape", "MFLOP a step, counted", "by formula", "over Muon's",
            "bytes of state, measured", "by formula")  # fmt: skip
    return markdown_table(head, rows)
