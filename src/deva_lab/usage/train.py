"""What `deva train` takes."""

from __future__ import annotations

from ..run.settings import MODES
from . import Commands, add_command
from .training import add_output, add_training

OPTIMIZER = "deva"
DESCRIPTION = """\
Train one model. Checkpoints are written whole or not at all, and --resume goes on from the newest
to the same bits. SIGTERM and Ctrl-C save before they end it; a second one does not wait.

  deva train --optimizer deva:sides=short --size small --steps 2000 --out runs/first
  deva train --resume runs/first

Over several processes, on the batches of one process: --parallel under torchrun. A command that is
given again, as torchrun does when a rank has died, goes on from the last checkpoint.

  torchrun --nproc-per-node 2 --max-restarts 3 -m deva_lab train --parallel fsdp --out runs/two
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "train",
        help="one run, with checkpoints",
        description=DESCRIPTION,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument("--optimizer", metavar="NAME[:SETTINGS]", help=f"({OPTIMIZER})")
    parser.add_argument("--lr", help="learning rate (the optimizer's usual one)")
    parser.add_argument("--seed", type=int, help="of weights and batches (0)")
    parser.add_argument(
        "--parallel",
        choices=MODES,
        help="train over the ranks of torchrun: ddp, each with the whole model; fsdp, each with a "
        "shard of it; hsdp, copies in shards (a copy a node, two on a single one)",
    )
    add_training(parser)
    add_output(parser, "train")
