"""A race whose runs are made up: losses that fall along lines, to ends that are known."""

import math
from dataclasses import replace

from deva_lab.race.entries import RACE, Course, Entry, Rules
from deva_lab.race.standings import Frozen, freeze
from deva_lab.race.tuning import pending
from lab import made_results

MUONS = ("muon", "muon-nesterov")
RULES = Rules(RACE.base.changed(steps=100, evaluate_every=50), budget=4, muons=MUONS)
TABLE = {
    "muon": Entry("muon", "muon", 0.01, "Muon", "baseline"),
    "muon-nesterov": Entry("muon-nesterov", "muon:nesterov=true", 0.01, "Nesterov", "baseline"),
    "deva": Entry("deva", "deva", 0.01, "DeVA"),
    "short": Entry("short", "deva", 0.01, "DeVA, shorter", length=0.8),
    "worse": Entry("worse", "deva:sides=short", 0.01, "an ablation", "ablation", "deva"),
}
COURSE = Course("made", "made up", RULES, TABLE, goal=0.9)
FAIR = replace(COURSE, fair="muon", fair_goal=0.85)
ENDS = {"muon": 3.3, "muon-nesterov": 3.2, "deva": 3.1, "short": 3.19, "worse": 3.4}


def result_of(run, end: float, status: str = "finished") -> dict:
    """A run whose loss falls along a line, from 5 at the start to its end."""
    points = 5
    steps = [run.steps * i // (points - 1) for i in range(points)]
    fall = [5 + (end - 5) * i / (points - 1) for i in range(points)]
    losses = fall if status == "finished" else [*fall[:-1], None]
    return made_results.result_of(run, steps, status=status, loss=losses)


def tuned(entry: Entry) -> list[dict]:
    """The tuning runs of an entry, the best rate being 0.0141."""
    results: list[dict] = []
    while runs := pending([entry], results, RULES):
        for run in runs:
            off = abs(math.log2(run.lr / 0.0141))
            results.append(result_of(run, ENDS[entry.name] + 0.1 * off))
    return results


def finals(entry: Entry, lr: float, end: float | None = None) -> list[dict]:
    end = ENDS[entry.name] if end is None else end
    wide = 0.01 + 0.001 * list(TABLE).index(entry.name)
    noise = {101: 0.0, 102: wide, 103: -wide}
    return [result_of(entry.run(RULES, lr, seed), end + noise[seed]) for seed in RULES.final_seeds]


def all_tuned() -> list[dict]:
    return [result for entry in TABLE.values() for result in tuned(entry)]


def raced() -> tuple[Frozen, list[dict]]:
    results = all_tuned()
    frozen = freeze(None, list(TABLE.values()), TABLE, results, RULES)
    ends = [finals(entry, frozen.entries[name].lr) for name, entry in TABLE.items()]
    return frozen, [*results, *(result for some in ends for result in some)]
