"""`deva init-task`: a file to start from, to compare optimizers on one's own model and data."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from ..errors import UsageError, unknown
from ..files import typed, write_text
from ..usage import STARTER, STARTERS


def run(options: argparse.Namespace) -> int:
    """Write the file."""
    kind, path = options.kind, options.path
    if kind.endswith(".py"):  # the path alone
        kind, path = STARTER, Path(kind)
    if kind not in STARTERS:
        raise unknown("kind of task", kind, STARTERS)
    if path.suffix != ".py":
        raise UsageError(f"PATH must be a file that ends in .py, got {path}")
    if path.exists():
        raise UsageError(f"{path} is there already: name another file")
    starter = files("deva_lab").joinpath("starters").joinpath(f"{kind}.py.txt")
    write_text(path, starter.read_text("utf-8").replace("FILE", typed(path).replace("\\", "/"), 1))
    print(f"{path} is written, and runs as it is: deva compare --task {typed(path)}")
    return 0
