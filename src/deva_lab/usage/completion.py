"""What `deva completion` takes."""

from __future__ import annotations

import argparse

from . import Commands, add_command

SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = """\
Print a script that completes the words of `deva` in a shell: commands, options, optimizers, tasks,
sizes, data. It asks `deva` at every Tab, so that it fits any version.

  deva completion bash > ~/.local/share/bash-completion/completions/deva
  deva completion zsh > DIR/_deva                 where DIR is a folder of $fpath
  deva completion fish > ~/.config/fish/completions/deva.fish

or, for one shell alone: source <(deva completion bash)
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "completion", help="completion for bash, zsh and fish", description=DESCRIPTION
    )
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("shell", nargs="?", choices=SHELLS, help="print its script")
    # What the scripts ask: the last word is the one to complete.
    asked.add_argument("--words", dest="typed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked.add_argument("--line", help=argparse.SUPPRESS)
