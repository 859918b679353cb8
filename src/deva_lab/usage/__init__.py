"""What the commands of `deva` take; `commands` has what they do.

`options.ini` has the commands with their arguments, `texts` what the help says of each at length.
Nothing here imports more than the standard library, so that `deva --help` answers at once and in
any installation.
"""

from __future__ import annotations

import argparse
from configparser import RawConfigParser, SectionProxy
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias

from ..data import SHARD_TOKENS
from ..reproduce import SCALES
from ..run.settings import DTYPES, LOGGERS, MODES, TASKS, TUNED

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
BENCHMARKS: Final = ("step", "launches", "state")
STARTERS: Final = {
    "tensors": "a small network on tensors",
    "images": "a small convolutional network on a folder of images",
    "hf": "a causal language model of transformers, of any size, on a text",
}
STARTER: Final = "tensors"
CPUS: Final = 1
MINUTES: Final = 60
OPTIMIZERS: Final = ",".join(TUNED)  # what is compared and tuned unless told otherwise
OPTIMIZER: Final = "deva"
BUDGET: Final = 12

# What stands in braces in options.ini.
_WORDS: Final = {
    "optimizers": OPTIMIZERS,
    "optimizer": OPTIMIZER,
    "budget": BUDGET,
    "cpus": CPUS,
    "minutes": MINUTES,
    "modes": " ".join(MODES),
    "dtypes": " ".join(DTYPES),
    "scales": " ".join(SCALES),
    "shard_tokens": SHARD_TOKENS,
    "loggers": ", ".join(LOGGERS),
    "starter": STARTER,
    "starter_texts": "; ".join(f"{name}: {about}" for name, about in STARTERS.items()),
    "tasks": "; ".join(f"{name}: {kind.about}" for name, kind in TASKS.items()),
    "sizes": "; ".join(f"{name}: {', '.join(kind.presets)}" for name, kind in TASKS.items()),
    "size": TASKS["gpt"].size,
}
_TYPES: Final = {"int": int, "float": float, "path": Path}


def text(name: str) -> str:
    """What the help says of a command, or of a benchmark, at length."""
    return files(__package__).joinpath("texts").joinpath(f"{name}.txt").read_text("utf-8")


def add(commands: Commands, name: str) -> None:
    """Add a command of `options.ini`; the module of `commands` with _ for - carries it out."""
    told = _table()[name]
    layout = argparse.RawDescriptionHelpFormatter  # the description is printed as it stands
    how: dict[str, Any] = {"description": text(name), "formatter_class": layout}
    parser = commands.add_parser(name, help=told["help"], **how)
    parser.set_defaults(command=name)
    add_arguments(parser, name)
    for group in told.get("groups", "").split():
        add_arguments(parser.add_argument_group(_table()[group]["title"]), group, name)
    if action := told.get("action"):
        actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
        below = f"{name} {action}"
        add_arguments(actions.add_parser(action, help=_table()[below]["help"], **how), below)


def add_bench(commands: Commands) -> None:
    """Add `deva bench`, which takes words for a benchmark that reads them itself."""
    parser = commands.add_parser(
        "bench",
        help="time, memory and FLOPs of a step",
        add_help=False,
        prefix_chars="\0",  # so that options are left for the benchmark to read
    )
    parser.add_argument("words_of_bench", nargs="*", metavar="…")
    parser.set_defaults(command="bench")


@cache
def _table() -> RawConfigParser:
    table = RawConfigParser(delimiters="=")
    table.read_string(files(__package__).joinpath("options.ini").read_text("utf-8"))
    return table


def add_arguments(
    parser: argparse._ActionsContainer, owner: str, command: str | None = None
) -> None:
    """Add the arguments of a command, a group or a benchmark, in the order of `options.ini`."""
    exclusive: argparse._ActionsContainer | None = None
    for section, told in _table().items():
        if section.startswith(f"{owner}: "):
            rule = told.get("exclusive")
            if rule and exclusive is None:
                exclusive = parser.add_mutually_exclusive_group(required=rule == "required")
            flags = section.partition(": ")[2].split()
            place = exclusive if rule and exclusive else parser
            place.add_argument(*flags, **_as_argparse_takes_it(told, command or owner))


def _as_argparse_takes_it(told: SectionProxy, command: str) -> dict[str, Any]:
    how: dict[str, Any] = {
        key: value.replace("\n", " ").format(command=command, **_WORDS)
        for key, value in told.items()
        if key not in ("exclusive", "hidden")
    }
    if "type" in how:
        how["type"] = _TYPES[how["type"]]
    if "choices" in how:
        how["choices"] = how["choices"].split()
    if "required" in how:
        how["required"] = True
    if "hidden" in told:
        how["help"] = argparse.SUPPRESS
    if how.get("action") == "yes_or_no":
        how |= {"action": argparse.BooleanOptionalAction, "default": None}
    return how
