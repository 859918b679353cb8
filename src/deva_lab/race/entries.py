"""What takes part in the race, and by which rules: the same task, budget and seeds for all.

race.json has the entries, the courses and the places where entries are confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from ..errors import unknown
from ..render import aligned
from ..run.entrants import Entrant
from ..run.settings import RunSettings

T = TypeVar("T")
_TABLES: Final = json.loads((files(__package__) / "race.json").read_text("utf-8"))

# The rules ----------------------------------------------------------------------------------------

RUN: Final = RunSettings(
    task="gpt",
    size="small",
    data="fineweb-sample",
    vocabulary=512,
    optimizer="",
    lr=0.0,
    seed=0,
    steps=600,
    batch=8,
    decay=0.4,
    evaluate_every=25,
)
"""A run of the first round and of the sprint, but for its optimizer, rate and seed."""


@dataclass(frozen=True)
class Rules:
    """The task and the terms.

    Attributes:
        base: The run of every entry but for its optimizer, rate, seed and length.
        tuning_seeds: What learning rates are chosen by.
        final_seeds: What entries are judged by; no choice may depend on them.
        budget: How many learning rates an entry is tuned with, each on all tuning seeds.
        muons: The entries of which the best one, by tuning, sets the target.
    """

    base: RunSettings
    tuning_seeds: tuple[int, ...] = (0,)
    final_seeds: tuple[int, ...] = (101, 102, 103)
    budget: int = 4
    muons: tuple[str, ...] = ("muon-light", "muon-quick")


# The entries --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """An entry of the race.

    Attributes:
        name: What `deva race` calls it.
        optimizer: The optimizer with its settings, as `deva compare` has it, without a rate.
        lr: The rate that its tuning starts from.
        about: What it is, in a line.
        kind: A baseline, a candidate, or an ablation, which shows what one ingredient does.
        of: For an ablation the entry that it differs from in one thing.
        length: The steps of its schedule as a share of the race's.
        decay: The share of its steps in which the rate falls to zero; None is the race's.
    """

    name: str
    optimizer: str
    lr: float
    about: str
    kind: Literal["baseline", "candidate", "ablation"] = "candidate"
    of: str = ""
    length: float = 1.0
    decay: float | None = None

    def run(self, rules: Rules, lr: float, seed: int) -> RunSettings:
        """The run of this entry at a rate with a seed."""
        steps = round(self.length * rules.base.steps)
        label = Entrant.parse(self.optimizer).label
        decay = rules.base.decay if self.decay is None else self.decay
        return rules.base.changed(optimizer=label, lr=lr, seed=seed, steps=steps, decay=decay)


Entries = Mapping[str, Entry]


ENTRIES: Final[Entries] = MappingProxyType(
    {name: Entry(name, **row) for name, row in _TABLES["entries"].items()}
)
"""Every entry of both rounds by name, in the order of the table."""


def chosen(what: str, names: Iterable[str], known: Mapping[str, T]) -> list[T]:
    """Entries or places by their names, each once; all of them where there are no names.

    Raises:
        UsageError: If there is none of a name; `what` is what it would be.
    """
    wanted = list(dict.fromkeys(names)) or list(known)
    for name in wanted:
        if name not in known:
            raise unknown(what, name, known)
    return [known[name] for name in wanted]


def listing(course: Course) -> str:
    """The entries of a course as aligned text: name, kind, settings, what it is."""
    rows = [(e.name, e.kind, e.optimizer, e.about) for e in course.entries.values()]
    each, all_ = course.rules.budget, course.rules.budget * len(rows)
    budget = f"{each} learning rates each, {all_} tuning runs a seed"
    return "\n".join([aligned((), rows, left=range(4)), "", budget])


# The courses --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """A task with its rules, and who runs there against whom.

    Attributes:
        name: What `--course` calls it.
        about: What it is, in a line.
        rules: The task and the terms; `rules.muons` set the target.
        entries: What takes part.
        goal: The share of Muon's tokens that was aimed at.
        fair: The entry that is Muon with every lever that DeVA is given; "" if there is none.
        fair_goal: The share of its tokens that was aimed at.
    """

    name: str
    about: str
    rules: Rules
    entries: Entries
    goal: float
    fair: str = ""
    fair_goal: float = 1.0


def _course(
    name: str,
    *,
    run: dict[str, Any],
    start: float,
    budget: int,
    final_seeds: list[int],
    muons: list[str],
    entries: list[str],
    **more: Any,
) -> Course:
    """A row of race.json.

    `run` is how a run differs from `RUN`. Tuning starts from `start` times the rate of an entry.
    The final seeds of the second round are ones that nothing has seen before.
    """
    rules = Rules(RUN.changed(**run), (0,), tuple(final_seeds), budget, tuple(muons))
    known = {entry: replace(ENTRIES[entry], lr=start * ENTRIES[entry].lr) for entry in entries}
    return Course(name, rules=rules, entries=MappingProxyType(known), **more)


COURSES: Final[Mapping[str, Course]] = MappingProxyType(
    {name: _course(name, **row) for name, row in _TABLES["courses"].items()}
)
RACE: Final = COURSES["first"].rules

# Where an entry is confirmed: other text, sizes, batches and models, nothing tuned again ----------


class Place(NamedTuple):
    """What a place is, and how a run there differs from the race's."""

    about: str
    changes: Mapping[str, Any]

    def changed(self, run: RunSettings, length: float) -> RunSettings:
        """A run there; of the steps that the place has, an entry takes its own share."""
        changes = dict(self.changes)
        if "steps" in changes:
            changes["steps"] = round(length * changes["steps"])
        return run.changed(**changes)


PLACES: Final[Mapping[str, Place]] = MappingProxyType(
    {name: Place(**row) for name, row in _TABLES["places"].items()}
)
