"""What `deva race` takes."""

from __future__ import annotations

from pathlib import Path

from . import Commands, add_command, add_launching

DESCRIPTION = """\
Race optimizers to the final loss of a tuned Muon: the fewest tokens win. See docs/race.md.

  deva race --rules                    the rules
  deva race --entries                  what takes part
  deva race                            tune, freeze and run everything, and print the board
  deva race --course broad             the same on another course: sprint, distance, broad, first
  deva race tune muon-fall lean-fall   tune some: learning rates on the tuning seeds
  deva race freeze                     write down the rates, before the final seeds are run
  deva race final lean-fall            run the final seeds of what is frozen
  deva race --list                     the leaderboard, with the command of each entry
  deva race confirm lean --at books wide      other tasks, at the same rate
  deva race robustness lean muon-quick        rates within 1 % of the best, ends sought
  deva race page --docs docs/race      the page of a course, its runs and the chart
  deva race recipe lean                the command for modded-nanogpt's track, on GPUs

Every stage goes on where it was stopped. All runs stay in DIR/results.jsonl.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "race",
        help="the fewest tokens to a tuned Muon's loss",
        description=DESCRIPTION,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument("stage", nargs="?", default="all", metavar="STAGE", help="as above (all)")
    parser.add_argument("names", nargs="*", metavar="ENTRY", help="(all)")
    parser.add_argument("--rules", action="store_true", help="print the rules")
    parser.add_argument("--entries", action="store_true", help="print the entries")
    parser.add_argument("--list", action="store_true", help="print the leaderboard")
    parser.add_argument("--at", nargs="+", default=[], metavar="PLACE", help="where to confirm")
    parser.add_argument("--course", default="sprint", help="or distance, broad, first (sprint)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="(runs/race/COURSE)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="look at these, not at DIR's")
    parser.add_argument(
        "--docs", type=Path, default=Path("docs/race"), metavar="DIR", help="(docs/race)"
    )
    add_launching(parser)
