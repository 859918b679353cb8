"""`deva bench`: what a step costs, in time, memory and FLOPs.

Benchmarks are imported when they are asked for: torch takes seconds, and the help needs none of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from ..errors import unknown
from ..usage import BENCHMARKS, add_arguments, text


def run(options: argparse.Namespace) -> int:
    """Run a benchmark; returns the exit code. Without the name of one it is `step`."""
    words = options.words_of_bench
    if words[:1] in (["-h"], ["--help"]):
        print(text("bench"))
        return 0
    if not words or words[0].startswith("-"):  # options alone are those of `step`
        words = ["step", *words]
    name, *rest = words
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    about, layout = text(f"bench-{name}"), argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"deva bench {name}", None, about, formatter_class=layout)
    add_arguments(parser, f"bench {name}")
    _RUN[name](parser, rest)
    return 0


def _step(parser: argparse.ArgumentParser, words: list[str]) -> None:
    from ..bench import step
    from ..bench.timing import Settings

    usual = Settings()
    parser.set_defaults(**{**vars(usual), "shapes": ()})
    given = vars(parser.parse_args(words))
    listed, task, out = (given.pop(name) for name in ("list", "task", "out"))
    given["shapes"] = (*given["shapes"], *[task] * bool(task)) or usual.shapes
    given["only"] = tuple(given["only"])
    if listed:
        print(step.listing())
    else:
        step.run(Settings(**given), out, say=_progress)


def _counted(
    parser: argparse.ArgumentParser, words: list[str], *, default: str, table: str
) -> None:
    """A table for each set of shapes that is named."""
    from ..bench import counting
    from ..bench.subjects import shape_set

    names = parser.parse_args(words).shapes or [default]
    for found in [shape_set(name) for name in names]:
        print(getattr(counting, table)(found))


_RUN: Final[dict[str, Callable[[argparse.ArgumentParser, list[str]], None]]] = {
    "step": _step,
    "launches": partial(_counted, default="gpt2-small", table="launches_table"),
    "state": partial(_counted, default="llama-8b", table="state_table"),
}


def _progress(message: str) -> None:
    """Progress on one line of the terminal; nothing where there is none."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)
