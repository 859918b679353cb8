"""The command `deva`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Final

from .config import with_config
from .errors import CommandError, UsageError
from .usage import add, add_bench

DESCRIPTION = """\
Compare optimizers on real training, on your own machine.

  deva compare                                    DeVA, Muon, SOAP and AdamW on a small GPT
  deva compare --optimizers deva,adamw --lr x0.5,x1,x2 --seeds 3
  deva compare --task vit --data path/to/images   your own data
  deva compare --task my_task.py                  your own model; deva init-task writes a first one
  deva tune --task my_task.py --budget 12         the learning rate of each optimizer
  deva train --optimizer deva --size medium       one run, with checkpoints
  deva reproduce --list                           the paper, figure by figure
  deva race --rules                               the fewest tokens to a tuned Muon's loss
"""

COMMANDS: Final = (
    *("compare", "train", "tune", "init-task", "methods", "bench"),
    *("report", "data", "reproduce", "race", "completion"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, 1 if it failed, 2 if it makes no sense."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # √ and ∞ are in no Windows code page
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(words)
    try:
        options = with_config(options, words, parser)
        options.words = words
        # The command is imported only now: torch alone takes seconds.
        name = options.command.replace("-", "_")
        code: int = import_module(f".commands.{name}", __package__).run(options)
        return code
    except (UsageError, CommandError) as error:
        print(f"deva: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:  # the second one: after the first, runs save and stop
        return 130
    except BrokenPipeError:  # the reader of the output has left, as `head` does
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"deva: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1


def parser(
    kind: type[argparse.ArgumentParser] = argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    """All commands with their options, in parsers of a kind."""
    top = kind(
        prog="deva",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        if name == "bench":
            add_bench(commands)
        else:
            add(commands, name)
    return top


class _Version(argparse.Action):
    """Prints the version of the library, which is imported for it."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> None:
        from deva_optim import __version__

        print(f"deva {__version__}")
        parser.exit()
