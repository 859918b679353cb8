"""The command `deva`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import deva_optim

from .commands import bench, compare, data, methods, race, report, reproduce, train
from .errors import UsageError

DESCRIPTION = """\
Compare optimizers on real training, on your own machine.

  deva compare                                    DeVA, Muon, SOAP and AdamW on a small GPT
  deva compare --optimizers deva,adamw --lr x0.5,x1,x2 --seeds 3
  deva compare --task vit --data path/to/images   your own data
  deva train --optimizer deva --size medium       one run, with checkpoints
  deva reproduce --list                           the paper, figure by figure
  deva race --rules                               the fewest tokens to a tuned Muon's loss
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, 1 if it failed, 2 if it makes no sense."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(words)
    options.words = words
    try:
        code: int = options.run(options)
    except UsageError as error:
        print(f"deva: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of the output has left, as `head` does
        sys.stderr.close()
        return 1
    return code


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(
        prog="deva",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"deva {deva_optim.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (compare, train, methods, bench, report, data, reproduce, race):
        module.add(commands)
    return top
