"""`deva bench`: what a step costs, in time, memory and FLOPs."""

from __future__ import annotations

import argparse

from . import Commands


def add(commands: Commands) -> None:
    """Add the command; what follows it is the benchmark's own."""
    parser = commands.add_parser(
        "bench",
        help="time, memory and FLOPs of a step",
        description="Measure a step of every optimizer; `deva bench step --help` has the options.",
        add_help=False,
        prefix_chars="\0",  # so that options are left for the benchmark to read
    )
    parser.add_argument("words_of_bench", nargs="*", metavar="…")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure."""
    from ..bench.cli import main

    return main(options.words_of_bench)
