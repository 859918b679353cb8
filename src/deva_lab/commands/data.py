"""`deva data`: text made ready beforehand."""

from __future__ import annotations

import argparse

from ..data.corpus import prepare
from ..files import typed


def run(options: argparse.Namespace) -> int:
    """Write the shards."""
    source, out, vocabulary = options.source, options.out, options.vocabulary
    paths = prepare(source, out, vocabulary, options.shard_tokens, print)
    print(f"{len(paths)} shards in {options.out}; train on them with --data {typed(options.out)}")
    return 0
