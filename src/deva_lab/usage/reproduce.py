"""What `deva reproduce` takes."""

from __future__ import annotations

from pathlib import Path

from ..reproduce import SCALES
from . import Commands, add_command
from .training import add_launching

DESCRIPTION = """\
Repeat an experiment of the paper and say whether it comes out as the paper has it.

  deva reproduce --list
  deva reproduce theory
  deva reproduce fig-nanogpt table-nanogpt --out results
  deva reproduce all                              everything: about an hour on two cores
  deva reproduce all --scale paper --dry-run      what the paper's own size would take
  deva reproduce --page reproduction.md           one page of all that DIR has, and report.html

Results are kept in DIR, those of training run by run: experiments share them, a second call shows
them at once, and one that was stopped goes on.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "reproduce",
        help="a figure or a table of the paper, ours beside theirs",
        description=DESCRIPTION,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="see --list; or all")
    parser.add_argument("--list", action="store_true", help="every figure and table of the paper")
    parser.add_argument(
        "--scale", choices=SCALES, default="cpu", help="(cpu: in minutes, on two cores)"
    )
    parser.add_argument(
        "--data", metavar="NAME|PATH", help="what is trained on (FineWeb's sample, if it is there)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say which runs, and do none")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE.md",
        help="write all that DIR has into one page, its figures beside it, and as DIR/report.html",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="(runs/reproduce)"
    )
    add_launching(parser)
