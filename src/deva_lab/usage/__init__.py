"""What the commands of `deva` take, a module each; `commands` has what they do.

Nothing here imports more than the standard library, so that `deva --help` answers at once and in
any installation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


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
