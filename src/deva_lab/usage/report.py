"""What `deva report` takes."""

from __future__ import annotations

from pathlib import Path

from . import Commands, add_command

DESCRIPTION = """\
Draw the curves and write the page of one comparison again, or of several together: runs of the same
task at different times, for example, or on different machines.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "report",
        help="draw finished runs again, or several comparisons together",
        description=DESCRIPTION,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR", help="(the first DIR)")
    parser.add_argument("--baseline", metavar="NAME", help="whose final loss is the target (adamw)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
