"""`deva bench`: what a step costs, in time, memory and FLOPs.

Benchmarks are imported when they are asked for: torch takes seconds, and the help needs none of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..errors import unknown
from ..usage.bench import BENCHMARKS, DESCRIPTION


def run(options: argparse.Namespace) -> int:
    """Run a benchmark; returns the exit code. Without the name of one it is `step`."""
    words = options.words_of_bench
    if words[:1] in (["-h"], ["--help"]):
        print(DESCRIPTION)
        return 0
    if not words or words[0].startswith("-"):  # options alone are those of `step`
        words = ["step", *words]
    name, *rest = words
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        f"deva bench {name}", None, BENCHMARKS[name], formatter_class=layout
    )
    return _RUN[name](parser, rest)


def _step(parser: argparse.ArgumentParser, words: list[str]) -> int:
    from ..bench import step
    from ..bench.timing import Settings

    add = parser.add_argument
    add("shapes", nargs="*", help=f"sets of shapes ({' '.join(Settings.shapes)})")
    add("--task", metavar="FILE", help="my_task.py: the hidden matrices of your own model")
    add("--dims", type=widths, default=(), help="widths of one GPT block, 128,256,…")
    add("--only", nargs="+", default=["*"], metavar="NAME", help="subjects, or globs (all)")
    _add_settings(parser, Settings)
    add("--compile", nargs="?", const="inductor", metavar="BACKEND",
        help="measure each of ours once more, compiled (inductor)")  # fmt: skip
    add("--no-profile", action="store_false", dest="profile",
        help="time alone: no FLOPs, no peak, no profile")  # fmt: skip
    add("--out", type=Path, default=step.OUT, help="where to write, without suffix (%(default)s)")
    add("--strict", action="store_true", help="exit with 1 if a requirement does not hold")
    add("--list", action="store_true", help="show all sets of shapes and all subjects")
    given = vars(parser.parse_args(words))
    listed, task, out, strict = (given.pop(name) for name in ("list", "task", "out", "strict"))
    if listed:
        print(step.listing())
        return 0
    given["shapes"] = (*given["shapes"], *[task] * bool(task)) or Settings.shapes
    given["only"] = tuple(given["only"])
    holds = step.run(Settings(**given), out, say=_progress)
    return 0 if holds or not strict else 1


def _training(parser: argparse.ArgumentParser, words: list[str]) -> int:
    from ..bench.step import TrainingSettings, run_training

    _add_settings(parser, TrainingSettings)
    run_training(TrainingSettings(**vars(parser.parse_args(words))))
    return 0


def _counted(parser: argparse.ArgumentParser, words: list[str], *, default: str, table: str) -> int:
    """A table for each set of shapes that is named."""
    from ..bench import counting
    from ..bench.subjects import shape_set

    parser.add_argument("shapes", nargs="*", default=[default], help=f"sets ({default})")
    for found in [shape_set(name) for name in parser.parse_args(words).shapes]:
        print(getattr(counting, table)(found))
    return 0


def _ranks(parser: argparse.ArgumentParser, words: list[str]) -> int:
    from ..bench import ranks

    _add_settings(parser, ranks.RanksSettings)
    parser.add_argument("--plan", action="store_true", help="on paper, for a model of 70B")
    given = vars(parser.parse_args(words))
    if given.pop("plan"):
        print(ranks.plan())
        return 0
    settings = ranks.RanksSettings(**given)
    print(f"{settings}\nthe largest rank over the mean of all\n\n{ranks.table(settings)}")
    return 0


_RUN: Final[dict[str, Callable[[argparse.ArgumentParser, list[str]], int]]] = {
    "step": _step,
    "training": _training,
    "launches": partial(_counted, default="gpt2-small", table="launches_table"),
    "state": partial(_counted, default="llama-8b", table="state_table"),
    "ranks": _ranks,
}


def widths(text: str) -> tuple[int, ...]:
    """Numbers between commas, in order, each once."""
    return tuple(sorted({int(part) for part in text.split(",")}))


def _add_settings(parser: argparse.ArgumentParser, settings: Any) -> None:
    """An option for each of the settings that has one."""
    for one in fields(settings):
        if not one.metadata:
            continue
        about = f"{one.metadata['help']}{' (%(default)s)' * (one.default is not False)}"
        how: dict[str, Any] = {"default": one.default, "help": about}
        if one.default is False:
            how["action"] = "store_true"
        else:
            how |= {"type": type(one.default), "choices": one.metadata.get("choices")}
        parser.add_argument(f"--{one.name.replace('_', '-')}", **how)


def _progress(message: str) -> None:
    """Progress on one line of the terminal; nothing where there is none."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)
