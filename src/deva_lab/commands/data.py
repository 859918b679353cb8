"""`deva data`: text made ready beforehand."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..data.corpus import SHARD_TOKENS, prepare
from . import Commands, add_command
from .options import vocabulary_of

DESCRIPTION = """\
Tokenise a text into the shards that modded-nanogpt reads and `--data DIR` takes.

  deva data prepare fineweb:100000 --out shards
  deva data prepare book.txt --vocabulary 4096 --out shards
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "data", help="tokenise a text", description=DESCRIPTION)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    action = add_command(actions, "prepare", help="write token shards", description=DESCRIPTION)
    action.add_argument("source", help="a name or a path, as for --data")
    action.add_argument("--out", type=Path, required=True, metavar="DIR")
    action.add_argument("--vocabulary", default="gpt2", metavar="N|gpt2", help="(gpt2)")
    action.add_argument(
        "--shard-tokens", type=int, default=SHARD_TOKENS, metavar="N", help="(%(default)s)"
    )
    action.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the shards."""
    vocabulary = vocabulary_of(options.vocabulary) or "gpt2"
    paths = prepare(options.source, options.out, vocabulary, options.shard_tokens, print)
    print(f"{len(paths)} shards in {options.out}; train on them with --data {options.out}")
    return 0
