"""Which learning rates an entry is tuned with: the same number for every entry, by one rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

from ..progress import Result
from ..results.curves import final_loss
from ..settings import RunSettings
from .entries import Entry
from .rules import Rules

FIRST: Final = 3  # rates that are tried at the outset
Losses = Mapping[float, float]  # learning rate → mean final loss over the tuning seeds


def next_rates(tried: Losses, start: float, budget: int) -> list[float]:
    """The rates to try next; none once the budget is spent.

    Three rates a factor of two apart come first. Then one at a time: beyond an end that is best,
    else into the middle of the wider gap beside the best, of equal ones towards the lower loss.

    >>> next_rates({}, 0.01, 5)
    [0.005, 0.01, 0.02]
    >>> next_rates({0.005: 3.3, 0.01: 3.2, 0.02: 3.1}, 0.01, 5)
    [0.04]
    >>> next_rates({0.005: 3.3, 0.01: 3.1, 0.02: 3.2}, 0.01, 5)
    [0.0141]
    >>> next_rates({0.005: 3.3, 0.01: 3.1, 0.0141: 3.15, 0.02: 3.2}, 0.01, 5)
    [0.00707]
    """
    if len(tried) >= budget:
        return []
    if not tried:
        return [_rounded(start * 2.0**i) for i in range(-(FIRST // 2), FIRST // 2 + 1)][:budget]
    rates = sorted(tried)
    best = rates.index(min(rates, key=lambda rate: (tried[rate], rate)))
    if best == 0:
        return [_rounded(rates[0] / 2)]
    if best == len(rates) - 1:
        return [_rounded(rates[-1] * 2)]
    beside = min(
        (rates[best - 1], rates[best + 1]),
        key=lambda rate: (-_octaves(rate, rates[best]), tried[rate]),
    )
    return [_rounded(math.sqrt(rates[best] * beside))]


def pending(
    entries: Iterable[Entry], results: Sequence[Result], rules: Rules
) -> dict[str, list[RunSettings]]:
    """Entry → the tuning runs that are to be carried out next, for those that have any."""
    found = {}
    for entry in entries:
        known = {result["id"] for result in results}
        runs = [
            run
            for lr in rates_of(entry, results, rules)
            for run in _runs(entry, lr, rules)
            if run.id not in known
        ]
        if runs:
            found[entry.name] = runs
    return found


def rates_of(entry: Entry, results: Sequence[Result], rules: Rules) -> list[float]:
    """The rates that an entry has been tuned with so far, and those that come next."""
    tried = losses(entry, results, rules)
    return [*tried, *next_rates(tried, entry.lr, rules.budget)]


def losses(entry: Entry, results: Sequence[Result], rules: Rules) -> dict[float, float]:
    """Rate → mean final loss, for the rates that the rule asks for and all tuning seeds have.

    Rates that the rule asks for together count together: what comes next hangs on all of them.
    """
    by_id = {result["id"]: final_loss(result) for result in results}
    tried: dict[float, float] = {}
    while rates := next_rates(tried, entry.lr, rules.budget):
        ids = {lr: [run.id for run in _runs(entry, lr, rules)] for lr in rates}
        if not all(id_ in by_id for some in ids.values() for id_ in some):
            return tried
        tried |= {lr: fmean(by_id[id_] for id_ in some) for lr, some in ids.items()}
    return tried


def best_rate(tried: Losses) -> float:
    """The rate with the lowest loss; of equal ones the lowest rate."""
    return min(tried, key=lambda rate: (tried[rate], rate))


def at_an_end(tried: Losses) -> bool:
    """Whether the best rate is the lowest or the highest that was tried."""
    return len(tried) > 1 and best_rate(tried) in (min(tried), max(tried))


def _runs(entry: Entry, lr: float, rules: Rules) -> list[RunSettings]:
    return [entry.run(rules, lr, seed) for seed in rules.tuning_seeds]


def _octaves(one: float, other: float) -> float:
    """How far two rates are apart, so roughly that their own rounding does not show."""
    return round(abs(math.log2(one / other)), 1)


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
