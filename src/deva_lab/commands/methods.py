"""`deva methods`: the optimizers that can be compared, and what each one is made of."""

from __future__ import annotations

import argparse

from deva_optim import METHODS

from ..entrants import ENTRANTS, options_of
from ..errors import unknown

ROWS = {"deva": "deva-sinf-whitened", "deva-sinf-authors": "deva-sinf", "torch-adamw": "adamw"}


def run(options: argparse.Namespace) -> int:
    """Print the table, or the options of one optimizer."""
    if options.name is None:
        print(table())
    elif options.name in ENTRANTS:
        print(f"{options.name} takes {', '.join(options_of(options.name))}")
    else:
        raise unknown("optimizer", options.name, ENTRANTS)
    return 0


def table() -> str:
    """A line an optimizer."""
    head = ("name", "basis", "direction", "adaptation", "rest", "usual lr", "paper")
    rows = [head, *(_row(name) for name in ENTRANTS)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _row(name: str) -> tuple[str, ...]:
    method = METHODS[ROWS.get(name, name)]
    basis = "–" if method.basis is None else method.basis.label
    adaptation = "1" if method.adaptation is None else method.adaptation.formula
    adaptation += ", before msign" * method.whitens
    rest = method.vector or "itself"
    lr = f"{ENTRANTS[name].lr:g}"
    return name, basis, method.direction, adaptation, rest, lr, method.paper
