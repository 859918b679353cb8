"""A race in a folder: its runs, what was frozen before the final ones, and who stands where."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from ..errors import UsageError
from ..files import read_record, write_record
from ..reproduce.measures import (
    Measured,
    at_one_speed,
    final,
    milliseconds,
    over_seeds,
)
from ..results import RESULTS, mean_curve, reach, read_results
from ..run.environment import environment
from ..run.progress import Result, is_failed
from ..run.settings import RunSettings
from .entries import COURSES, PLACES, Course, Entries, Entry, Place, Rules
from .tuning import best_rate, losses

FROZEN: Final = "race.json"
ELSEWHERE: Final = 4  # seeds at a place that is not of the race

# What is frozen: the rate of each entry, and whose loss to reach ----------------------------------


@dataclass(frozen=True)
class FrozenEntry:
    """An entry as it was when it was frozen."""

    optimizer: str
    length: float
    lr: float
    tuning_losses: dict[str, float]  # by learning rate
    date: str
    commit: str
    late: bool  # whether a final run of any entry was there already
    decay: float | None = None


@dataclass
class Frozen:
    """What race.json holds."""

    muon: str  # the entry whose final loss is the target
    rules: dict[str, Any]
    entries: dict[str, FrozenEntry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Frozen | None:
        """What a file holds, or None if there is no such file.

        Raises:
            UsageError: If it is damaged.
        """
        if not path.is_file():
            return None
        saved = read_record(path, begins=("muon",))
        if saved is None:
            raise UsageError(
                f"{path} is damaged: take a copy of it from where the race was published, or "
                "remove it and freeze again, which marks as late what is frozen after final runs"
            )
        entries = {name: FrozenEntry(**entry) for name, entry in saved["entries"].items()}
        return cls(saved["muon"], saved["rules"], entries)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_record(path, asdict(self))

    def check(self, entry: Entry, rules: Rules) -> FrozenEntry:
        """The entry as it was frozen.

        Raises:
            UsageError: If it was not, or if it or the rules have changed since.
        """
        if self.rules != _terms(rules):
            raise UsageError(
                "the rules of the race have changed since it was frozen: start another one in "
                "another folder (--out)"
            )
        if entry.name not in self.entries:
            raise UsageError(
                f"{entry.name} is not frozen, and the final seeds are for frozen entries alone: "
                f"deva race tune {entry.name}, then deva race freeze {entry.name}"
            )
        kept = self.entries[entry.name]
        before, now = _in_words(kept), _in_words(entry)
        if before != now:
            raise UsageError(
                f"{entry.name} was frozen as {before} and is now {now}: give it another name"
            )
        return kept

    def runs(self, entry: Entry, rules: Rules, place: Place | None = None) -> list[RunSettings]:
        """The runs of an entry at its frozen rate: on the final seeds, at a place on the first."""
        kept = self.check(entry, rules)
        seeds = rules.final_seeds[:ELSEWHERE] if place else rules.final_seeds
        runs = [entry.run(rules, kept.lr, seed) for seed in seeds]
        return [place.changed(run, entry.length) for run in runs] if place else runs


def _in_words(entry: Entry | FrozenEntry) -> str:
    """What makes two entries the same one."""
    text = f"{entry.optimizer} on {entry.length:g} of the steps"
    return text if entry.decay is None else f"{text}, its rate falling over {entry.decay:g} of them"


def _terms(rules: Rules) -> dict[str, Any]:
    """The rules as JSON has them."""
    terms = {**asdict(rules), "base": rules.base.saved()}
    read: dict[str, Any] = json.loads(json.dumps(terms))
    return read


def freeze(
    frozen: Frozen | None,
    entries: Sequence[Entry],
    table: Entries,
    results: Sequence[Result],
    rules: Rules,
) -> Frozen:
    """What is frozen, with these entries added; those that were keep what they have.

    Raises:
        UsageError: If an entry has not been tuned in full, or differs from what was frozen.
    """
    if frozen is None:
        muons = {name: _tuned(table[name], results, rules) for name in rules.muons}
        better = min(muons, key=lambda name: min(muons[name].values()))
        frozen = Frozen(better, _terms(rules))
    late = any(result["settings"]["seed"] in rules.final_seeds for result in results)
    for entry in entries:
        if entry.name in frozen.entries:
            frozen.check(entry, rules)
            continue
        tried = _tuned(entry, results, rules)
        frozen.entries[entry.name] = FrozenEntry(
            optimizer=entry.optimizer,
            length=entry.length,
            lr=best_rate(tried),
            tuning_losses={f"{lr:g}": loss for lr, loss in sorted(tried.items())},
            date=time.strftime("%Y-%m-%d %H:%M:%S"),
            commit=environment(rules.base.device)["commit"],
            late=late,
            decay=entry.decay,
        )
    return frozen


def _tuned(entry: Entry, results: Sequence[Result], rules: Rules) -> dict[float, float]:
    tried = losses(entry, results, rules)
    if len(tried) < rules.budget:
        raise UsageError(
            f"{entry.name} has been tuned with {len(tried)} of {rules.budget} learning rates: "
            f"deva race tune {entry.name}"
        )
    return tried


# Standings: tokens and time to the target, final losses, and what carries an order ----------------


@dataclass(frozen=True)
class Standing:
    """How an entry did on the final seeds.

    Attributes:
        score: Tokens to the target over the tokens that Muon took; None if it was not reached.
        scores: The same seed by seed; infinite where a seed's own curve does not reach it.
        time: Seconds of training to it, likewise.
        fair: Tokens to the end of the Muon that has DeVA's levers, over those that it took.
        step, optimizer: Milliseconds of a whole step, and of the optimizer's part.
        sets_target: Whether it is the Muon whose final loss is the target.
    """

    entry: Entry
    frozen: FrozenEntry
    runs: tuple[Result, ...]
    final: Measured
    score: float | None
    scores: Measured
    time: float | None
    step: float
    optimizer: float
    sets_target: bool
    fair: float | None = None


def standings(
    frozen: Frozen, entries: Entries, results: Sequence[Result], rules: Rules, fair: str = ""
) -> list[Standing]:
    """The entries whose final seeds have all been run, the best first; none before Muon's have.

    `fair` names the Muon that has the levers of DeVA, if there is one.
    """
    known = [entry for name, entry in entries.items() if name in frozen.entries]
    found = {entry: results_of(frozen.runs(entry, rules), results) for entry in known}
    done = {entry: runs for entry, runs in found.items() if runs}
    if entries[frozen.muon] not in done:
        return []
    even = iter(at_one_speed([run for runs in done.values() for run in runs]))
    done = {entry: list(islice(even, len(runs))) for entry, runs in done.items()}
    muon = done[entries[frozen.muon]]
    rows = [standing(entry, frozen, runs, muon) for entry, runs in done.items()]
    if fair and (other := done.get(entries[fair])):
        end = final(other).mean
        rows = [replace(row, fair=_share(row.runs, other, end, "units")) for row in rows]
    return sorted(
        rows, key=lambda row: (math.inf if row.score is None else row.score, row.final.mean)
    )


def results_of(runs: Sequence[RunSettings], results: Sequence[Result]) -> list[Result]:
    """The results of some runs, in their order; none if any of them is missing."""
    by_id = {result["id"]: result for result in results}
    there = all(run.id in by_id for run in runs)
    return [by_id[run.id] for run in runs] if there else []


def standing(
    entry: Entry, frozen: Frozen, runs: Sequence[Result], muon: Sequence[Result]
) -> Standing:
    """How an entry stands against Muon's runs."""
    target = final(muon).mean
    own = (_share([run], muon, target, "units") for run in runs)
    return Standing(
        entry=entry,
        frozen=frozen.entries[entry.name],
        runs=tuple(runs),
        final=final(runs),
        score=_share(runs, muon, target, "units"),
        scores=over_seeds(runs, (math.inf if share is None else share for share in own)),
        time=_share(runs, muon, target, "seconds"),
        step=milliseconds(runs).mean,
        optimizer=milliseconds(runs, "optimizer").mean,
        sets_target=entry.name == frozen.muon,
    )


def _share(
    runs: Sequence[Result], muon: Sequence[Result], target: float, axis: str
) -> float | None:
    """Where the mean curve of some runs reaches the target, as a share of what Muon's runs took.

    A run that diverged never does. An entry that ends a shorter schedule at or below the target
    has reached it there at the latest, and its curve is its own, so one rule serves both.
    """
    if not math.isfinite(target) or any(run["status"] != "finished" for run in runs):
        return None
    curve, reference = mean_curve(runs), mean_curve(muon)
    place = reach(getattr(curve, axis), curve.loss, target)
    taken = getattr(reference, axis)[-1]
    return None if place is None or not taken else place / float(taken)


def runner_up(rows: Sequence[Standing]) -> Standing | None:
    """The best entry behind the first that has another optimizer, not another length alone."""
    first, *others = rows
    return next((row for row in others if row.entry.optimizer != first.entry.optimizer), None)


class Paired(NamedTuple):
    """What a paired t-test says of differences, seed by seed.

    Attributes:
        gap: Their mean.
        t: Their mean over its standard error; infinite where all are the same and not zero.
        p: How often |t| would be as large if there were no difference (two-sided).
        pairs: How many there are.
    """

    gap: float
    t: float
    p: float
    pairs: int

    def __str__(self) -> str:
        """The result in a few words."""
        chance = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"paired t = {self.t:.1f} over {self.pairs} seeds, {chance}"


def paired(one: Measured, other: Measured) -> Paired | None:
    """By how much the other is above the one; None with fewer than two seeds, or a lost one.

    >>> found = paired(Measured({0: 3.0, 1: 3.0, 2: 3.0}), Measured({0: 4.0, 1: 5.0, 2: 6.0}))
    >>> round(found.t, 3), round(found.p, 3)
    (3.464, 0.074)
    """
    seeds = [seed for seed in one.values if seed in other.values]
    differences = [other.values[seed] - one.values[seed] for seed in seeds]
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return None
    gap = fmean(differences)
    if len(set(differences)) == 1:
        return Paired(gap, math.copysign(math.inf, gap), 0.0, len(differences)) if gap else None
    from scipy.stats import ttest_1samp  # takes a second to import

    found = ttest_1samp(differences, 0.0)
    return Paired(gap, float(found.statistic), float(found.pvalue), len(differences))


def interval(measured: Measured) -> tuple[float, float] | None:
    """The 95 % interval of a mean over seeds; None with fewer than two of them, or a lost one.

    >>> low, high = interval(Measured({0: 0.9, 1: 0.8, 2: 0.85}))
    >>> round(low, 3), round(high, 3)
    (0.726, 0.974)
    """
    values = list(measured.values.values())
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    from scipy.stats import ttest_1samp

    found = ttest_1samp(values, 0.0).confidence_interval(0.95)
    return float(found.low), float(found.high)


def against(one: Standing, other: Standing) -> Paired | None:
    """The paired test of the final losses; None where schedules differ in length."""
    same = one.entry.length == other.entry.length
    return paired(one.final, other.final) if same else None


# The folder ---------------------------------------------------------------------------------------


@dataclass
class Race:
    """A race in a folder; `results` and `frozen` are read when they are asked for.

    Attributes:
        folder: Where its runs go.
        published: A file of results to look at in place of the folder's; what was frozen lies
            beside it under the same name.
        course: Its task, its rules and who takes part.
    """

    folder: Path
    published: Path | None = None
    course: Course = field(default_factory=lambda: COURSES["sprint"])
    places: Mapping[str, Place] = field(default_factory=lambda: PLACES)

    @property
    def rules(self) -> Rules:
        """The task and the terms."""
        return self.course.rules

    @property
    def entries(self) -> Entries:
        """What takes part."""
        return self.course.entries

    def __post_init__(self) -> None:
        if self.published is not None and not self.published.is_file():
            raise UsageError(f"--results {self.published}: there is no such file")

    @property
    def results(self) -> list[Result]:
        """All runs so far that have come to an end, the lost ones too."""
        path = self.published or self.folder / RESULTS
        results = read_results(path) if path.exists() else []
        return [result for result in results if not is_failed(result)]

    @property
    def frozen_path(self) -> Path:
        """Where race.json is, or what was published of it."""
        return self.published.with_suffix(".json") if self.published else self.folder / FROZEN

    @property
    def frozen(self) -> Frozen | None:
        """What is frozen, if anything is."""
        return Frozen.read(self.frozen_path)

    def need_frozen(self) -> Frozen:
        """What is frozen.

        Raises:
            UsageError: If nothing is.
        """
        frozen = self.frozen
        if frozen is None:
            raise UsageError(
                f"nothing is frozen in {self.frozen_path.parent}: deva race tune, then deva race "
                "freeze, and then the final seeds"
            )
        return frozen

    def standings(self) -> list[Standing]:
        """The entries whose final seeds have been run, the best first."""
        frozen = self.frozen
        if frozen is None:
            return []
        return standings(frozen, self.entries, self.results, self.rules, self.course.fair)

    def muon(self) -> Entry:
        """The entry that sets the target."""
        return self.entries[self.need_frozen().muon]

    def opponents(self) -> list[Entry]:
        """The entry that sets the target and, where it is frozen, the fair Muon."""
        fair = self.course.fair
        there = [fair] if fair in self.need_frozen().entries else []
        return [self.muon(), *[self.entries[name] for name in there]]
