"""`deva completion`: scripts for shells, and the answers that they ask for."""

from __future__ import annotations

import argparse

from ..cli import parser
from ..completion import complete, split_line
from ..shells import SCRIPTS
from ..usage.tree import tree


def run(options: argparse.Namespace) -> int:
    """Print a script, or what the word that is being typed may become.

    An answer has flags in its first line, then a candidate a line, a tab before what it is.
    """
    if options.shell is not None:
        print(SCRIPTS[options.shell], end="")
        return 0
    words = split_line(options.line) if options.line is not None else options.typed
    answer = complete(tree(parser()), words or [""])
    print(answer.flags)
    for word, text in answer.candidates.items():
        print(f"{word}\t{text}" if text else word)
    return 0
