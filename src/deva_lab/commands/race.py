"""`deva race`: the fewest tokens to the loss of a tuned Muon, by rules fixed beforehand."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from ..carry_out import carry_out, check_failed, check_jobs
from ..errors import UsageError, unknown
from ..launchers import launching
from ..race.chart import draw_race
from ..race.confirm import confirmation, confirmation_runs, places
from ..race.entries import chosen, listing
from ..race.frozen import freeze
from ..race.leaderboard import text
from ..race.page import publish
from ..race.recipe import recipe
from ..race.robustness import next_runs, robustness
from ..race.rules import rules_text
from ..race.state import Race
from ..race.tuning import pending
from ..render.display import Display, display
from ..reproduce.experiment import check_runs
from ..runner import Launch, Orders
from ..settings import RunSettings
from ..stopping import Stopping
from .options import command_line


def run(options: argparse.Namespace, race: Race | None = None) -> int:
    """Carry out a stage; the exit code is 0, or 128 + the signal if one came."""
    race = race or Race(options.out, options.results)
    if options.rules:
        print(rules_text(race.rules))
    elif options.entries:
        print(listing(race.rules, race.entries))
    elif options.list:
        print(text(race.standings(), race.rules))
    elif options.stage not in STAGES:
        raise unknown("stage of the race", options.stage, STAGES)
    else:
        return _stage(options, race)
    return 0


def _stage(options: argparse.Namespace, race: Race) -> int:
    check_jobs(options.jobs)
    if options.results is not None and options.stage != "page":
        raise UsageError("--results is for looking: with --list, or with the stage page")
    with launching(options, race.folder) as launch, Stopping() as stopping:
        STAGES[options.stage](Stage(options, race, display(), stopping, launch))
    if stopping():
        print(f"Stopped. To go on: {command_line(options.words)}")
    return stopping.exit_code


class Stage:
    """What a stage needs to carry out runs and to say what came of them."""

    def __init__(
        self,
        options: argparse.Namespace,
        race: Race,
        shown: Display,
        stopping: Stopping,
        launch: Launch,
    ) -> None:
        self.options, self.race, self.shown, self.stopping = options, race, shown, stopping
        self.launch = launch
        self.chosen = chosen(options.names, race.entries)

    def train(self, runs: Sequence[RunSettings]) -> None:
        """Carry out the runs that there is no result of yet."""
        check_runs(runs)
        orders = Orders(self.race.folder, command_line(self.options.words))
        failed = carry_out(
            list(dict.fromkeys(runs)),
            orders,
            jobs=self.options.jobs,
            shown=self.shown,
            stopping=self.stopping,
            launch=self.launch,
        )
        check_failed(failed, orders.command)

    def train_on(self, following: Callable[[], Sequence[RunSettings]]) -> None:
        """Carry out runs that follow from the results of those before, until none follows."""
        while not self.stopping() and (runs := following()):
            self.train(runs)


def _tune(stage: Stage) -> None:
    race = stage.race

    def following() -> list[RunSettings]:
        waiting = pending(stage.chosen, race.results, race.rules)
        return [run for runs in waiting.values() for run in runs]

    stage.train_on(following)


def _freeze(stage: Stage) -> None:
    race = stage.race
    frozen = freeze(race.frozen, stage.chosen, race.entries, race.results, race.rules)
    frozen.write(race.frozen_path)
    rates = ", ".join(f"{entry.name} {frozen.entries[entry.name].lr:g}" for entry in stage.chosen)
    stage.shown.say(f"{race.frozen_path}: the target is {frozen.muon}'s; rates: {rates}")


def _final(stage: Stage) -> None:
    race, frozen = stage.race, stage.race.need_frozen()
    entries = list(dict.fromkeys([race.muon(), *stage.chosen]))
    if not stage.options.names:
        entries = [entry for entry in entries if entry.name in frozen.entries]
    rates = {entry: frozen.check(entry, race.rules).lr for entry in entries}
    stage.train(
        [
            entry.run(race.rules, rates[entry], seed)
            for seed in race.rules.final_seeds
            for entry in entries
        ]
    )
    _board(stage)


def _all(stage: Stage) -> None:
    muons = chosen(stage.race.rules.muons, stage.race.entries)
    stage.chosen = list(dict.fromkeys([*muons, *stage.chosen]))  # the target needs both
    _tune(stage)
    if not stage.stopping():
        _freeze(stage)
        _final(stage)


def _board(stage: Stage) -> None:
    race = stage.race
    rows = race.standings()
    stage.shown.say("\n" + text(rows, race.rules))
    if rows:
        stage.shown.say(str(draw_race(rows, race.need_frozen().muon, race.folder)[0]))


def _confirm(stage: Stage) -> None:
    race, frozen, muon = stage.race, stage.race.need_frozen(), stage.race.muon()
    if not stage.options.names:
        raise UsageError("say which entry: deva race confirm ENTRY")
    where = places(stage.options.at, race.places)
    for place in where.values():
        if not stage.stopping():
            pair = dict.fromkeys([muon, *stage.chosen])
            runs = [confirmation_runs(frozen, entry, place, race.rules) for entry in pair]
            stage.train([run for some in runs for run in some])
    for entry in stage.chosen:
        table = confirmation(frozen, (entry, muon), where, race.results, race.rules)
        stage.shown.say(table or f"{entry.name}: nothing has been run to the end yet")


def _robustness(stage: Stage) -> None:
    race = stage.race
    if not stage.options.names:
        raise UsageError("say which entries: deva race robustness ENTRY muon adamw")
    stage.train_on(lambda: next_runs(stage.chosen, race.results, race.rules))
    table = robustness(stage.chosen, race.results, race.rules)
    stage.shown.say(table or "none of them has been tuned: deva race tune")


def _page(stage: Stage) -> None:
    for path in publish(stage.race, stage.options.docs):
        stage.shown.say(str(path))


def _recipe(stage: Stage) -> None:
    if not stage.options.names:
        raise UsageError("say which entry: deva race recipe ENTRY")
    for entry in stage.chosen:
        stage.shown.say(recipe(entry, stage.race.frozen, stage.race.rules))


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
