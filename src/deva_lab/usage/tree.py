"""The commands of a parser and their options, as data, for what reads more than a command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

Parser = argparse.ArgumentParser
Action = argparse.Action


@dataclass(frozen=True)
class Command:
    """What a command takes.

    Attributes:
        help: What it does, in a few words.
        options: By each of their names, dashes included.
        places: The arguments without a name, in their order.
        commands: Those below it, by name.
    """

    help: str = ""
    options: Mapping[str, Action] = field(default_factory=dict)
    places: tuple[Action, ...] = ()
    commands: Mapping[str, Command] = field(default_factory=dict)


def tree(parser: Parser, help: str = "") -> Command:
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


def takes_value(action: Action) -> bool:
    """Whether an option is followed by a value."""
    return action.nargs != 0


def is_flag(action: Action) -> bool:
    """Whether an option stands for true or false."""
    switches = (argparse._StoreTrueAction, argparse.BooleanOptionalAction)
    return isinstance(action, switches)
