"""`deva methods`: the optimizers that can be compared, and what each one is made of."""

from __future__ import annotations

import argparse
import textwrap

from torch import nn

from deva_optim import METHODS
from deva_optim.core.methods import method_of

from ..errors import unknown
from ..render import aligned
from ..run.entrants import ENTRANTS, Entrant, options_of

WIDTH = 100


def run(options: argparse.Namespace) -> int:
    """Print the table, or the options of one optimizer."""
    name = options.name and options.name.lower()
    if name is None:
        print(table())
    elif name in ENTRANTS:
        print(described(name))
    else:
        raise unknown("optimizer", name, ENTRANTS)
    return 0


def table() -> str:
    """A line an optimizer."""
    head = ("name", "basis", "direction", "adaptation", "rest", "usual lr", "paper")
    return aligned(head, list(map(_row, ENTRANTS)), left=range(len(head)))


def _row(name: str) -> tuple[str, ...]:
    """What the optimizer is made of, as its parameter groups say."""
    entrant = Entrant(name)
    group = entrant.build(nn.Linear(2, 2), entrant.default_lr).param_groups[0]
    method = method_of(group) if "method" in group else METHODS["adamw"]  # PyTorch's
    basis = "–" if method.basis is None else method.basis.label
    adaptation = "1" if method.adaptation is None else method.adaptation.formula
    adaptation += ", before msign" * method.whitens
    rest = "itself" if method.vector is None else group["rest"]
    lr = f"{ENTRANTS[name].lr:g}"
    return name, basis, method.direction, adaptation, rest, lr, method.paper


def described(name: str) -> str:
    """The options of an optimizer: type, default and what each one is."""
    options = options_of(name)
    heads = {key: f"{key}={option.default}" for key, option in options.items()}
    width = max(map(len, heads.values()))
    lines = [f"{name} takes these options, here with their defaults:"]
    for key, option in options.items():
        lines += ["", f"  {heads[key].ljust(width)}  {option.type}"]
        text = textwrap.wrap(option.text, WIDTH - 6, break_on_hyphens=False)
        lines += [" " * 6 + line for line in text]
    return "\n".join(lines)
