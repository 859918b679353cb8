"""The commands of `deva`, a module each: `add` says what it takes, `run` does it."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Commands, name: str, *, help: str, description: str
) -> argparse.ArgumentParser:
    """The parser of a new command, whose description is printed as it stands."""
    layout = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=help, description=description, formatter_class=layout)
