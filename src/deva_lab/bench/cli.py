"""`deva bench`: what a step costs.

    deva bench                        time of a step: ours, a plain Muon, and the peers installed
    deva bench step gpt-768           the same for one set of shapes
    deva bench training               whole training steps, forward and backward included
    deva bench launches               kernels and bytes of a step on an accelerator, counted
    deva bench state                  the memory that optimizers keep for a model, counted
    deva bench ranks                  what each of several ranks computes, keeps and sends

Each has a --help of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

COMMANDS: Final = ("step", "training", "launches", "state", "ranks")  # a module each


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; returns the exit code. Without the name of one it is `step`."""
    name, *rest = argv or ("step",)
    if name in ("-h", "--help"):
        print(__doc__)
        return 0
    if name.startswith("-"):  # options alone are those of `step`
        name, rest = "step", list(argv)
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"deva bench: unknown command {name!r}; known are {known}", file=sys.stderr)
        return 2
    benchmark = import_module(f".{name}", __package__)  # only now: torch takes seconds
    code: int = benchmark.main(rest)
    return code
