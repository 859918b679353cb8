"""`--config FILE`: options from a file of JSON, such as the options.json that commands write.

A file is turned into the words that would have said the same, which go before those that were
typed. So values are checked as typed ones are, and what is typed wins.
"""

from __future__ import annotations

import argparse
import json
from argparse import Action
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from .errors import UsageError, unknown
from .files import FIELD, unsealed

NOT_IN_FILES: Final = ("help", "config", "resume")
EXCLUSIVE: Final = {"steps": "tokens", "tokens": "steps"}  # the length is given as one of them

Make = Callable[[type[argparse.ArgumentParser]], argparse.ArgumentParser]


class Command(NamedTuple):
    """What a command takes.

    Attributes:
        help: What it does, in a few words.
        options: By each of their names, dashes included.
        places: The arguments without a name, in their order.
        commands: Those below it, by name.
    """

    help: str
    options: Mapping[str, Action]
    places: tuple[Action, ...]
    commands: Mapping[str, Command]


def tree(parser: argparse.ArgumentParser, help: str = "") -> Command:
    """The commands below a parser. argparse has no public way to ask for them."""
    options: dict[str, Action] = {}
    places: list[Action] = []
    commands: dict[str, Command] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands = {
                name: tree(below, helps.get(name, "")) for name, below in action.choices.items()
            }
        elif action.option_strings:
            options |= dict.fromkeys(action.option_strings, action)
        else:
            places.append(action)
    return Command(help, options, tuple(places), commands)


class Raising(argparse.ArgumentParser):
    """A parser whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong."""
        raise UsageError(message)


def with_config(
    options: argparse.Namespace, words: Sequence[str], make: Make
) -> argparse.Namespace:
    """The options again, over those of the file that `--config` names, if it does.

    Args:
        options: What was typed, read.
        words: What was typed, the command first.
        make: Makes the parser, of a class.
    """
    path = getattr(options, "config", None)
    if path is None:
        return options
    known = _known(make(Raising), options.command)
    given = _read(path, options.command, known)
    for name, other in EXCLUSIVE.items():
        if getattr(options, name, None) is not None:
            given.pop(other, None)
    said = _words(path, given, known)
    try:
        make(Raising).parse_args([options.command, *said])
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return make(argparse.ArgumentParser).parse_args([options.command, *said, *words[1:]])


def _known(parser: argparse.ArgumentParser, command: str) -> dict[str, Action]:
    """The options that a file may have, by name."""
    actions = tree(parser).commands[command].options.values()
    return {action.dest: action for action in actions if action.dest not in NOT_IN_FILES}


def _read(path: Path, command: str, known: Mapping[str, Action]) -> dict[str, Any]:
    """What the file has, by the names of options.

    Raises:
        UsageError: If it is damaged, or has something that the command does not know.
    """
    try:
        record = json.loads(path.read_text("utf-8-sig"))  # of Windows, often with a mark
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--config {path} is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise UsageError(f"--config {path} must have options by name, as in {{'steps': 100}}")
    if FIELD in record and unsealed(record) is None:
        raise UsageError(
            f"--config {path} is not as it was written: if it was edited by hand, remove its "
            f"field {FIELD!r}"
        )
    given = {name.replace("-", "_"): value for name, value in record.items() if name != FIELD}
    for name in given:
        if name not in known:
            raise UsageError(f"{path}: {unknown(f'option of deva {command}', name, known)}")
    return {name: value for name, value in given.items() if value is not None}


def _words(path: Path, given: Mapping[str, Any], known: Mapping[str, Action]) -> list[str]:
    """The options as one would type them."""
    found = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(known[name], argparse._StoreTrueAction | argparse.BooleanOptionalAction):
            if not isinstance(value, bool):
                raise UsageError(f"{path}: {name} must be true or false, got {value!r}")
            word = option if value else f"--no-{option[2:]}"
            found += [word] if word in known[name].option_strings else []
        elif isinstance(value, bool | dict):
            raise UsageError(f"{path}: {name} must be a text, a number or a list, got {value!r}")
        else:
            values = value if isinstance(value, list) else [value]
            one = "," if name == "seeds" and value is values and len(values) == 1 else ""
            found.append(f"{option}={','.join(map(str, values))}{one}")  # 5 alone is five seeds
    return found
