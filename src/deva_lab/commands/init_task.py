"""`deva init-task`: a file to start from, to compare optimizers on one's own model and data."""

from __future__ import annotations

import argparse
from importlib.resources import files

from ..errors import UsageError
from ..files import write_text


def run(options: argparse.Namespace) -> int:
    """Write the file."""
    path = options.path
    if path.suffix != ".py":
        raise UsageError(f"PATH must be a file that ends in .py, got {path}")
    if path.exists():
        raise UsageError(f"{path} is there already: name another file")
    starter = files("deva_lab").joinpath("starters").joinpath(f"{options.kind}.py.txt")
    write_text(path, starter.read_text("utf-8").replace("FILE", path.as_posix(), 1))
    print(f"{path} is written, and runs as it is: deva compare --task {path}")
    return 0
