"""What the commands of `deva` take; `commands` has what they do.

Nothing here imports more than the standard library, so that `deva --help` answers at once and in
any installation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
SHELLS: Final = ("bash", "zsh", "fish")
STARTERS: Final = {
    "tensors": "a small network on tensors",
    "images": "a small convolutional network on a folder of images",
    "hf": "a causal language model of transformers, of any size, on a text",
}

METHODS = """\
Print the table of optimizers: basis, direction, adaptation, the method for the rest, usual learning
rate. With a name, print its options, each with type, default and meaning. They are given as in
--optimizers deva:sides=short,refresh_every=20.
"""
REPORT = """\
Draw the curves and write the page of one comparison again, or of several together: runs of the same
task at different times, for example, or on different machines.
"""
INIT_TASK = """\
Write a file that says what `deva compare --task` trains, for you to change: its model, batches,
loss and validation. It runs as it is, without a network. See docs/your-model.md.

  deva init-task                        my_task.py, a small network on tensors
  deva init-task images flowers.py      a folder of images
  deva init-task hf                     a causal language model of transformers
  deva compare --task my_task.py
"""
COMPLETION = """\
Print a script that completes the words of `deva` in a shell: commands, options, optimizers, tasks,
sizes, data. It asks `deva` at every Tab, so that it fits any version.

  deva completion bash > ~/.local/share/bash-completion/completions/deva
  deva completion zsh > DIR/_deva                 where DIR is a folder of $fpath
  deva completion fish > ~/.config/fish/completions/deva.fish

or, for one shell alone: source <(deva completion bash)
"""


def add_command(
    commands: Commands, name: str, *, help: str, description: str, needs: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """The parser of a new command, whose description is printed as it stands.

    Args:
        commands: Where it is added.
        name: What the user types; the module of `commands` with _ for - carries it out.
        help: What it does, in a few words.
        description: The same at length.
        needs: The modules of an extra without which it need not begin, as `EXTRAS` names them.
    """
    layout = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=help, description=description, formatter_class=layout)
    parser.set_defaults(command=name, needs=needs)
    return parser


def add_methods(commands: Commands) -> None:
    """Add `deva methods`."""
    parser = add_command(
        commands, "methods", help="the optimizers, and the options of each", description=METHODS
    )
    parser.add_argument("name", nargs="?", help="one of them")


def add_report(commands: Commands) -> None:
    """Add `deva report`."""
    parser = add_command(
        commands,
        "report",
        help="draw finished runs again, or several comparisons together",
        description=REPORT,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR", help="(the first DIR)")
    parser.add_argument("--baseline", metavar="NAME", help="whose final loss is the target (adamw)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def add_init_task(commands: Commands) -> None:
    """Add `deva init-task`."""
    parser = add_command(
        commands,
        "init-task",
        help="a file to start from, for your own model and data",
        description=INIT_TASK,
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


def add_completion(commands: Commands) -> None:
    """Add `deva completion`."""
    parser = add_command(
        commands, "completion", help="completion for bash, zsh and fish", description=COMPLETION
    )
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("shell", nargs="?", choices=SHELLS, help="print its script")
    # What the scripts ask: the last word is the one to complete.
    asked.add_argument("--words", dest="typed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked.add_argument("--line", help=argparse.SUPPRESS)
