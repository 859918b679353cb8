"""`deva data`: text made ready beforehand."""

from __future__ import annotations

import argparse

from ..data.corpus import prepare
from .options import vocabulary_of


def run(options: argparse.Namespace) -> int:
    """Write the shards."""
    vocabulary = vocabulary_of(options.vocabulary) or "gpt2"
    paths = prepare(options.source, options.out, vocabulary, options.shard_tokens, print)
    print(f"{len(paths)} shards in {options.out}; train on them with --data {options.out}")
    return 0
