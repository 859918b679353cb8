"""What `deva compare` takes."""

from __future__ import annotations

from ..run.settings import TUNED
from . import Commands, add_command
from .launching import add_launching
from .training import add_output, add_training

OPTIMIZERS = ",".join(TUNED)
DESCRIPTION = """\
Train the same model with several optimizers, from the same weights on the same batches, and write
results.jsonl, curves.png, curves.svg and report.html. Unless told otherwise it takes DeVA, Muon,
SOAP and AdamW, each with the settings and the rate that the race found best (docs/race.md).

A run that fails is a row of the table, with its error, and the others go on; the exit code is then
1, and --resume tries it again.

  deva compare
  deva compare --optimizers deva,deva:variant=factored,muon:nesterov=true
  deva compare --lr x0.3,x1,x3 --seeds 3          each optimizer is reported at its own best rate
  deva compare --data book.txt --size tiny --steps 500
  deva compare --task my_task.py                  your own model and data; see deva init-task
  deva compare --resume runs/compare-20260101-1200
  deva compare --lr x0.3,x1,x3 --seeds 5 --launcher slurm --gpus 1 --out /shared/sweep
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "compare",
        help="several optimizers on the same task, and a report",
        description=DESCRIPTION,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument(
        "--optimizers",
        metavar="LIST",
        help=f"names with settings, see `deva methods` ({OPTIMIZERS})",
    )
    parser.add_argument(
        "--lr", metavar="LIST", help="rates for all, or x0.5,x1,x2: multiples of each one's usual"
    )
    parser.add_argument("--seeds", metavar="N|LIST", help="how many, or which (1)")
    parser.add_argument("--baseline", metavar="NAME", help="whose final loss is the target (adamw)")
    parser.add_argument(
        "--telemetry",
        type=int,
        metavar="STEPS",
        help="keep what the optimizers did every so many steps, for the page (none)",
    )
    add_training(parser)
    add_launching(parser)
    add_output(parser, "compare")
