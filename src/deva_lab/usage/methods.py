"""What `deva methods` takes."""

from __future__ import annotations

from . import Commands, add_command

DESCRIPTION = """\
Print the table of optimizers: basis, direction, adaptation, the method for the rest, usual learning
rate. With a name, print its options, each with type, default and meaning. They are given as in
--optimizers deva:sides=short,refresh_every=20.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "methods", help="the optimizers, and the options of each", description=DESCRIPTION
    )
    parser.add_argument("name", nargs="?", help="one of them")
