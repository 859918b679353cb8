"""What `deva init-task` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from . import Commands, add_command

STARTERS: Final = {
    "tensors": "a small network on tensors",
    "images": "a small convolutional network on a folder of images",
    "hf": "a causal language model of transformers, of any size, on a text",
}
DESCRIPTION = """\
Write a file that says what `deva compare --task` trains, for you to change: its model, batches,
loss and validation. It runs as it is, without a network. See docs/your-model.md.

  deva init-task                        my_task.py, a small network on tensors
  deva init-task images flowers.py      a folder of images
  deva init-task hf                     a causal language model of transformers
  deva compare --task my_task.py
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "init-task",
        help="a file to start from, to compare optimizers on your own model and data",
        description=DESCRIPTION,
    )
    kinds = "; ".join(f"{name}: {about}" for name, about in STARTERS.items())
    parser.add_argument(
        "kind", nargs="?", choices=STARTERS, default="tensors", help=f"{kinds} (tensors)"
    )
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=Path("my_task.py"),
        metavar="PATH",
        help="(my_task.py)",
    )
