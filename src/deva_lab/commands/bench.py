"""`deva bench`: what a step costs, in time, memory and FLOPs."""

from __future__ import annotations

import argparse

from ..bench.cli import main


def run(options: argparse.Namespace) -> int:
    """Measure."""
    return main(options.words_of_bench)
