"""What `deva tune` takes."""

from __future__ import annotations

from . import Commands, add_command
from .compare import OPTIMIZERS
from .training import add_output, add_training

BUDGET = 12
DESCRIPTION = """\
Find the learning rate of each optimizer on a task, by the rule of the race: three rates a factor of
two apart about the usual one, then one by one, beyond an end that is best, else into the middle of
the wider gap beside the best. Every optimizer gets as many rates as the others. At the end there is
a table, and the `deva compare` that races them at the rates found, on other seeds.

  deva tune --task my_task.py --optimizers deva,adamw --budget 12
  deva tune --task mlp --steps 100 --optimizers deva,muon,adamw --budget 15 --out runs/rates
  deva tune --resume runs/rates --budget 24       goes on with more
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "tune",
        help="the learning rate of each optimizer on a task, by the rule of the race",
        description=DESCRIPTION,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument(
        "--optimizers",
        metavar="LIST",
        help=f"names with settings, see `deva methods`; an lr=… is where to begin ({OPTIMIZERS})",
    )
    parser.add_argument(
        "--budget",
        type=int,
        metavar="RUNS",
        help=f"runs in all, the same number for each optimizer ({BUDGET})",
    )
    parser.add_argument("--seeds", metavar="N|LIST", help="on which each rate is tried (1)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side (as cores allow)")
    add_training(parser)
    add_output(parser, "tune")
