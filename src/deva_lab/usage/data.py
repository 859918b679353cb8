"""What `deva data` takes."""

from __future__ import annotations

from pathlib import Path

from ..data import SHARD_TOKENS
from . import Commands, add_command

DESCRIPTION = """\
Tokenise a text into the shards that modded-nanogpt reads and `--data DIR` takes.

  deva data prepare fineweb:100000 --out shards
  deva data prepare book.txt --vocabulary 4096 --out shards
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "data", help="tokenise a text", description=DESCRIPTION, needs=("numpy",)
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    action = actions.add_parser(
        "prepare",
        help="write token shards",
        description=DESCRIPTION,
        formatter_class=parser.formatter_class,
    )
    action.add_argument("source", help="a name or a path, as for --data")
    action.add_argument("--out", type=Path, required=True, metavar="DIR")
    action.add_argument("--vocabulary", default="gpt2", metavar="N|gpt2", help="(gpt2)")
    action.add_argument(
        "--shard-tokens", type=int, default=SHARD_TOKENS, metavar="N", help="(%(default)s)"
    )
