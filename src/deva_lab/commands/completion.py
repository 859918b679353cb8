"""`deva completion`: scripts for shells, and what they ask: what a word may become.

Nothing here imports torch: an answer must come before one has typed on.
"""

from __future__ import annotations

import argparse
import json
import shlex
from argparse import Action
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from typing import Final, TypeAlias

from ..cli import parser
from ..config import Command, tree
from ..data.text_sources import NAMES as TEXTS
from ..run.settings import LOGGERS, OPTIMIZERS, TASKS, TUNED
from ..usage import BENCHMARKS, STARTERS

WIDTH: Final = 70  # of what a candidate is

# Names whose tables need torch; the tests hold the two to each other. The others are in files.
IMAGES: Final = ("digits", "cifar10", "imagenet-1k", "cifar10-small", "tiny-imagenet")
STAGES: Final = ("all", "tune", "freeze", "final", "confirm", "robustness", "page", "recipe")
_RACE, _PAPER = (
    json.loads(files(f"deva_lab.{package}").joinpath(name).read_text("utf-8"))
    for package, name in (("race", "race.json"), ("reproduce", "paper.json"))
)
PLACES, COURSES, EXPERIMENTS = map(tuple, (_RACE["places"], _RACE["courses"], _PAPER))

Texts: TypeAlias = Mapping[str, str]  # word → what it is, or nothing
Given: TypeAlias = Mapping[str, str]  # option → its value on the line so far


def run(options: argparse.Namespace) -> int:
    """Print a script, or what the word that is being typed may become.

    An answer has flags in its first line, then a candidate a line, a tab before what it is.
    """
    if options.shell is not None:
        script = files("deva_lab").joinpath("shells").joinpath(f"deva.{options.shell}")
        print(script.read_text("utf-8"), end="")
        return 0
    words = split_line(options.line) if options.line is not None else options.typed
    answer = complete(tree(parser()), words or [""])
    print(answer.flags)
    for word, text in answer.candidates.items():
        print(f"{word}\t{text}" if text else word)
    return 0


@dataclass(frozen=True)
class Answer:
    """What a word may become.

    Attributes:
        candidates: Words as they would stand on the line, each with what it is.
        files: Whether it may be a path as well.
        space: Whether the word is then complete.
    """

    candidates: Texts
    files: bool = False
    space: bool = True

    @property
    def flags(self) -> str:
        """The first line of an answer; never empty, as shells drop empty lines."""
        return " ".join(["words", *["files"] * self.files, *["nospace"] * (not self.space)])


def complete(root: Command, words: Sequence[str]) -> Answer:
    """What the last of some words may become.

    Args:
        root: The commands.
        words: What was typed behind the name of the program; the last one is being typed.
    """
    *before, word = words
    command, given, places, waiting = _read(root, before)
    name, equals, _ = word.partition("=")
    if waiting is not None:
        found = _values(waiting, word, given)
    elif equals and name in command.options:
        found = _values(command.options[name], word, given, name + equals)
    elif command.commands and not word.startswith("-"):
        found = Answer({x: below.help for x, below in command.commands.items()})
    elif command.places and not word.startswith("-"):
        found = _values(command.places[min(places, len(command.places) - 1)], word, given)
    else:
        found = Answer(_options(command, given))
    fitting = {x: text for x, text in found.candidates.items() if x.startswith(word)}
    return replace(found, candidates=fitting)


def split_line(line: str) -> list[str]:
    """The words of a line behind the name of the program, quotes removed.

    >>> split_line("deva compare --data 'my text"), split_line("deva compare ")
    (['compare', '--data', 'my text'], ['compare', ''])
    """
    for end in ("", "'", '"'):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        return words[1:] + [""] * (not end and line[-1:].isspace())
    return line.split()[1:]


def _read(
    root: Command, words: Iterable[str]
) -> tuple[Command, dict[str, str], int, Action | None]:
    """The command, what was given, how many arguments have no name, what waits for a value."""
    command, given, places = root, dict[str, str](), 0
    waiting: Action | None = None
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("-") and name in command.options:
            action = command.options[name]
            given[action.dest] = value
            waiting = action if action.nargs != 0 and not equals else None
        elif waiting is not None:
            given[waiting.dest] = word
            waiting = waiting if waiting.nargs in ("+", "*") else None
        elif word in command.commands:
            command = command.commands[word]
        else:
            places += 1
    return command, given, places, waiting


def _options(command: Command, given: Given) -> dict[str, str]:
    """The options that are not there yet; the short forms are short enough."""
    return {
        name: shorten((action.help or "").replace("%%", "%"), WIDTH, placeholder=" …")
        for name, action in command.options.items()
        if name.startswith("--")
        and action.help != argparse.SUPPRESS
        and (action.dest not in given or action.nargs == 0)
    }


def _values(action: Action, word: str, given: Given, before: str = "") -> Answer:
    """The values of an option or an argument; `before` them, the word has the option itself."""
    texts = _known(action.dest, given) or dict.fromkeys(map(str, action.choices or ()), "")
    several = action.dest in ("optimizers", "log")  # a list, which has none of them twice
    if several:
        head, comma, _ = word.removeprefix(before).rpartition(",")
        texts = {x: text for x, text in texts.items() if x not in head.split(",")}
        before += head + comma
    files = action.type is Path or action.dest in ("data", "source", "task")
    return Answer({before + x: text for x, text in texts.items()}, files, space=not several)


def _known(dest: str, given: Given) -> Texts:
    """The values of an option or an argument that have names, each with what it is."""
    kind = TASKS.get(task := given.get("task", "gpt"))  # none for a task of the user's
    if dest == "task":
        return {name: each.about for name, each in TASKS.items()}
    if dest == "kind":
        return STARTERS
    if dest == "size" and kind:
        return {name: f"{x.steps} steps of {x.batch}" for name, x in kind.presets.items()}
    if dest == "data" and kind:
        return dict.fromkeys({"gpt": TEXTS, "quadratic": ()}.get(task, IMAGES), "")
    if dest == "baseline":  # one of the optimizers that are compared
        parts = given.get("optimizers", "").split(",")
        names = [part for part in parts if part and ("=" not in part or ":" in part)]
        return dict.fromkeys(names or TUNED, "")
    return dict.fromkeys(_NAMES.get(dest, ()), "")


_NAMES: Final[Mapping[str, Iterable[str]]] = {
    **dict.fromkeys(("optimizer", "optimizers", "name"), OPTIMIZERS),
    "source": TEXTS,
    "vocabulary": ("gpt2",),
    "device": ("cpu", "cuda", "mps"),
    "log": (*LOGGERS, "none"),
    "stage": STAGES,
    "at": PLACES,
    "course": COURSES,
    "ids": ("all", *EXPERIMENTS),
    "words_of_bench": BENCHMARKS,
}
