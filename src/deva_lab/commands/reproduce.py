"""`deva reproduce`: a figure or a table of the paper, ours beside theirs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import UsageError
from ..files import write_text
from ..reproduce.experiment import SCALES, page, results_of
from ..reproduce.experiments import experiment, listing
from . import Commands, add_command
from .options import command_line

DESCRIPTION = """\
Repeat an experiment of the paper and say whether it comes out as the paper has it.

  deva reproduce --list
  deva reproduce theory
  deva reproduce fig-trace table-cost --out results

Results are kept in DIR by what they depend on: a second call shows them at once.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "reproduce",
        help="a figure or a table of the paper, ours beside theirs",
        description=DESCRIPTION,
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="see --list")
    parser.add_argument("--list", action="store_true", help="every figure and table of the paper")
    parser.add_argument(
        "--scale", choices=SCALES, default="cpu", help="(cpu: in minutes, on two cores)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="(runs/reproduce)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute what is not there yet, write a page for each id and print it."""
    if options.list:
        print(listing())
        return 0
    if not options.ids:
        raise UsageError("say which: deva reproduce ID, or --list to see them")
    chosen = [experiment(name) for name in options.ids]
    options.out.mkdir(parents=True, exist_ok=True)
    for one in chosen:
        command = command_line(options.words)
        record = results_of(one, options.scale, options.out, say=_progress, command=command)
        text = page(one, record, options.out)
        write_text(options.out / f"{one.id}.md", text)
        print(text)
        print(f"{options.out / one.id}.md")
    return 0


def _progress(message: str) -> None:
    """Progress, for whoever watches."""
    if sys.stderr.isatty():
        print(f"  {message}", file=sys.stderr, flush=True)
