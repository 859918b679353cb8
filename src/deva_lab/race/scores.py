"""How the entries stand: tokens and time to the target, final losses, and what carries an order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ..progress import Result
from ..reproduce.measures import (
    Measured,
    at_one_speed,
    curve_of,
    final,
    milliseconds,
    over_seeds,
)
from ..results.curves import reach
from .entries import Entries, Entry
from .frozen import Frozen, FrozenEntry
from .paired import Paired, paired
from .rules import Rules


@dataclass(frozen=True)
class Standing:
    """How an entry did on the final seeds.

    Attributes:
        score: Tokens to the target over the tokens that Muon took; None if it was not reached.
        scores: The same seed by seed; infinite where a seed's own curve does not reach it.
        time: Seconds of training to it, likewise.
        step: Milliseconds of a whole step, and of the optimizer's part.
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


def final_runs(
    frozen: Frozen, entry: Entry, results: Sequence[Result], rules: Rules
) -> list[Result]:
    """The results of an entry on the final seeds, in their order; those that there are."""
    kept = frozen.check(entry, rules)
    by_id = {result["id"]: result for result in results}
    ids = [entry.run(rules, kept.lr, seed).id for seed in rules.final_seeds]
    return [by_id[id_] for id_ in ids if id_ in by_id]


def standings(
    frozen: Frozen, entries: Entries, results: Sequence[Result], rules: Rules
) -> list[Standing]:
    """The entries whose final seeds have all been run, the best first; none before Muon's have."""
    done = {
        name: runs
        for name, entry in entries.items()
        if name in frozen.entries
        and len(runs := final_runs(frozen, entry, results, rules)) == len(rules.final_seeds)
    }
    if frozen.muon not in done:
        return []
    found = steady(done)
    rows = [
        standing(entries[name], frozen.entries[name], runs, found[frozen.muon])
        for name, runs in found.items()
    ]
    return sorted(
        rows, key=lambda row: (math.inf if row.score is None else row.score, row.final.mean)
    )


def steady(groups: Mapping[str, Sequence[Result]]) -> dict[str, list[Result]]:
    """The runs of every group with their times brought to one speed of the machine."""
    runs = iter(at_one_speed([run for group in groups.values() for run in group]))
    return {name: list(islice(runs, len(group))) for name, group in groups.items()}


def standing(
    entry: Entry, frozen: FrozenEntry, runs: Sequence[Result], muon: Sequence[Result]
) -> Standing:
    """How an entry stands against Muon's runs."""
    target = final(muon).mean
    return Standing(
        entry=entry,
        frozen=frozen,
        runs=tuple(runs),
        final=final(runs),
        score=share_of(runs, muon, target, "units"),
        scores=over_seeds(
            runs, (share_of([run], muon, target, "units") or math.inf for run in runs)
        ),
        time=share_of(runs, muon, target, "seconds"),
        step=milliseconds(runs).mean,
        optimizer=milliseconds(runs, "optimizer").mean,
    )


def share_of(
    runs: Sequence[Result], muon: Sequence[Result], target: float, axis: str
) -> float | None:
    """Where the mean curve of some runs reaches the target, as a share of what Muon's runs took.

    A run that diverged never does. An entry that ends a shorter schedule at or below the target
    has reached it there at the latest, and its curve is its own, so one rule serves both.
    """
    if not math.isfinite(target) or any(run["status"] != "finished" for run in runs):
        return None
    curve, reference = curve_of(runs), curve_of(muon)
    place = reach(getattr(curve, axis), curve.loss, target)
    taken = getattr(reference, axis)[-1]
    return None if place is None or not taken else place / float(taken)


def against(one: Standing, other: Standing) -> Paired | None:
    """The paired test of the final losses: by how much the other ends above the one.

    None where their schedules differ in length, as for ends that are not finite.
    """
    same = one.entry.length == other.entry.length
    return _paired(one.final, other.final) if same else None


def tokens_against(one: Standing, other: Standing) -> Paired | None:
    """The paired test of the scores: how much more of Muon's tokens the other takes."""
    return _paired(one.scores, other.scores)


def _paired(one: Measured, other: Measured) -> Paired | None:
    seeds = [seed for seed in one.values if seed in other.values]
    return paired([other.values[seed] - one.values[seed] for seed in seeds])


def runner_up(rows: Sequence[Standing]) -> Standing | None:
    """The best entry behind the first that has another optimizer, not another length alone."""
    first, *others = rows
    return next((row for row in others if row.entry.optimizer != first.entry.optimizer), None)
