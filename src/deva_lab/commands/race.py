"""`deva race`: the fewest tokens to the loss of a tuned Muon, by rules fixed beforehand."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from ..errors import UsageError, unknown
from ..launchers import check_failed, check_jobs
from ..race.entries import COURSES, Entry, chosen, listing
from ..race.page import confirmation, draw_race, publish, recipe, rules_text, summary, text
from ..race.standings import Race, freeze
from ..race.tuning import next_runs, pending, robustness
from ..render.display import Display, display
from ..reproduce.experiment import check_runs
from ..run.progress import Result
from ..run.runner import Orders, Stopping
from ..run.settings import RunSettings
from .options import carrying_out, command_line


def run(options: argparse.Namespace, race: Race | None = None) -> int:
    """Carry out a stage; the exit code is 0, or 128 + the signal if one came."""
    if options.course not in COURSES:
        raise unknown("course of the race", options.course, COURSES)
    folder = options.out or Path("runs/race") / options.course
    race = race or Race(folder, options.results, COURSES[options.course])
    if options.rules:
        print(rules_text(race.rules))
    elif options.entries:
        print(listing(race.course))
    elif options.list:
        print(text(race.standings(), race.course))
    else:
        if options.stage in race.entries:  # what follows are entries, too: all stages of them
            options.stage, options.names = "all", [options.stage, *options.names]
        if options.stage not in STAGES:
            raise unknown("stage of the race", options.stage, STAGES)
        return _stage(options, race)
    return 0


def _stage(options: argparse.Namespace, race: Race) -> int:
    check_jobs(options.jobs)
    if options.results is not None and options.stage != "page":
        raise UsageError("--results is for looking: with --list, or with the stage page")
    entries = chosen("entry of the race", options.names, race.entries)
    shown = display()
    with carrying_out(options, race.folder, shown) as (carry_out, stopping):
        STAGES[options.stage](Stage(options, race, entries, shown, stopping, carry_out))
    if stopping():
        print(f"Stopped. To go on: {command_line(options.words)}")
    return stopping.exit_code


@dataclass
class Stage:
    """What a stage needs to carry out runs and to say what came of them."""

    options: argparse.Namespace
    race: Race
    entries: list[Entry]
    shown: Display
    stopping: Stopping
    carry_out: Callable[..., list[Result]]

    def train(self, runs: Sequence[RunSettings]) -> None:
        """Carry out the runs that there is no result of yet."""
        check_runs(runs)
        orders = Orders(self.race.folder, command_line(self.options.words))
        check_failed(self.carry_out(list(dict.fromkeys(runs)), orders), orders.command)

    def train_on(self, following: Callable[[], Sequence[RunSettings]]) -> None:
        """Carry out runs that follow from the results of those before, until none follows."""
        while not self.stopping() and (runs := following()):
            self.train(runs)

    def need_names(self, example: str) -> None:
        """Raises UsageError if no entry was named."""
        if not self.options.names:
            raise UsageError(f"say which: deva race {self.options.stage} {example}")


def _tune(stage: Stage) -> None:
    race = stage.race
    stage.train_on(lambda: pending(stage.entries, race.results, race.rules))


def _freeze(stage: Stage) -> None:
    race = stage.race
    frozen = freeze(race.frozen, stage.entries, race.entries, race.results, race.rules)
    frozen.write(race.frozen_path)
    rates = ", ".join(f"{entry.name} {frozen.entries[entry.name].lr:g}" for entry in stage.entries)
    stage.shown.say(f"{race.frozen_path}: the target is {frozen.muon}'s; rates: {rates}")


def _final(stage: Stage) -> None:
    race, frozen = stage.race, stage.race.need_frozen()
    entries = dict.fromkeys([race.muon(), *stage.entries])
    if not stage.options.names:
        entries = {entry: None for entry in entries if entry.name in frozen.entries}
    runs = [frozen.runs(entry, race.rules) for entry in entries]
    stage.train([run for seed in zip(*runs, strict=True) for run in seed])  # seed by seed
    rows = race.standings()
    stage.shown.say("\n" + text(rows, race.course))
    if rows:
        stage.shown.say(str(draw_race(rows, race.folder)[0]))


def _all(stage: Stage) -> None:
    muons = [stage.race.entries[name] for name in stage.race.rules.muons]
    stage.entries = list(dict.fromkeys([*muons, *stage.entries]))  # the target needs both
    _tune(stage)
    if not stage.stopping():
        _freeze(stage)
        _final(stage)


def _confirm(stage: Stage) -> None:
    race, frozen, muons = stage.race, stage.race.need_frozen(), stage.race.opponents()
    stage.need_names("ENTRY")
    where = chosen("place to confirm at", stage.options.at or (), race.places)
    for place in where:
        if not stage.stopping():
            entries = dict.fromkeys([*muons, *stage.entries])
            runs = [frozen.runs(entry, race.rules, place) for entry in entries]
            stage.train([run for some in runs for run in some])
    pairs = [pair for pair in product(stage.entries, muons) if pair[0] != pair[1]]
    for pair in pairs:
        table = confirmation(frozen, pair, where, race.results, race.rules)
        stage.shown.say(table or f"{pair[0].name}: nothing has been run to the end yet")


def _robustness(stage: Stage) -> None:
    race = stage.race
    stage.need_names("ENTRY muon adamw")
    stage.train_on(lambda: next_runs(stage.entries, race.results, race.rules))
    table = robustness(stage.entries, race.results, race.rules)
    stage.shown.say(table or "none of them has been tuned: deva race tune")


def _page(stage: Stage) -> None:
    for path in publish(stage.race, stage.options.docs):
        stage.shown.say(str(path))
    stage.shown.say(f"\nFor the page of all courses, race.md:\n\n{summary(stage.options.docs)}")


def _recipe(stage: Stage) -> None:
    stage.need_names("ENTRY")
    for entry in stage.entries:
        stage.shown.say(recipe(entry, stage.race))


STAGES: Final[dict[str, Callable[[Stage], None]]] = {
    "all": _all,
    "tune": _tune,
    "freeze": _freeze,
    "final": _final,
    "confirm": _confirm,
    "robustness": _robustness,
    "page": _page,
    "recipe": _recipe,
}
