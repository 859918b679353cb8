"""Learning rates: which of them an entry is tuned with, and how much one may be off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from ..render import markdown_table, rate
from ..results import final_loss
from ..run.progress import Result
from ..run.settings import RunSettings
from .entries import Entry, Rules

FIRST: Final = 3  # rates that are tried at the outset
Losses = Mapping[float, float]  # learning rate → mean final loss over the tuning seeds


def next_rates(tried: Losses, start: float, budget: int) -> list[float]:
    """The rates to try next; none once the budget is spent, or where three digits say no more.

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
    best = rates.index(best_rate(tried))
    if best == 0:
        return [_rounded(rates[0] / 2)]
    if best == len(rates) - 1:
        return [_rounded(rates[-1] * 2)]
    beside = min(
        (rates[best - 1], rates[best + 1]),
        key=lambda rate: (-_octaves(rate, rates[best]), tried[rate]),
    )
    between = _rounded(math.sqrt(rates[best] * beside))
    return [] if between in tried else [between]


def _octaves(one: float, other: float) -> float:
    """How far two rates are apart, so roughly that their own rounding does not show."""
    return round(abs(math.log2(one / other)), 1)


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def best_rate(tried: Losses) -> float:
    """The rate with the lowest loss; of equal ones the lowest rate."""
    return min(tried, key=lambda rate: (tried[rate], rate))


def at_an_end(tried: Losses) -> bool:
    """Whether the best rate is the lowest or the highest that was tried."""
    return len(tried) > 1 and best_rate(tried) in (min(tried), max(tried))


def pending(entries: Iterable[Entry], results: Sequence[Result], rules: Rules) -> list[RunSettings]:
    """The tuning runs of some entries that are to be carried out next."""
    rates = {e: next_rates(losses(e, results, rules), e.lr, rules.budget) for e in entries}
    return _missing(rates, results, rules)


def losses(entry: Entry, results: Sequence[Result], rules: Rules) -> dict[float, float]:
    """Rate → mean final loss, for the rates that the rule asks for and all tuning seeds have.

    Rates that the rule asks for together count together: what comes next hangs on all of them.
    """
    tried: dict[float, float] = {}
    while rates := next_rates(tried, entry.lr, rules.budget):
        known = _losses_at(rates, entry, results, rules)
        if len(known) < len(rates):
            break
        tried |= known
    return tried


def _losses_at(
    rates: Iterable[float], entry: Entry, results: Sequence[Result], rules: Rules
) -> dict[float, float]:
    """Rate → mean final loss, for those of some rates that all tuning seeds have."""
    by_id = {result["id"]: final_loss(result) for result in results}
    found = {}
    for lr in rates:
        ids = [entry.run(rules, lr, seed).id for seed in rules.tuning_seeds]
        if all(id_ in by_id for id_ in ids):
            found[lr] = fmean(by_id[id_] for id_ in ids)
    return found


def _missing(
    rates: Mapping[Entry, Iterable[float]], results: Sequence[Result], rules: Rules
) -> list[RunSettings]:
    """The runs on the tuning seeds at some rates of each entry that there is no result of."""
    known = {result["id"] for result in results}
    runs = [
        entry.run(rules, lr, seed)
        for entry, some in rates.items()
        for lr in some
        for seed in rules.tuning_seeds
    ]
    return [run for run in runs if run.id not in known]


# How much a rate may be off -----------------------------------------------------------------------

WITHIN: Final = 0.01
FEWEST: Final = 2  # rates that a range can be told from
FARTHEST: Final = 16.0  # times the rate that tuning starts from, up and down


class Range(NamedTuple):
    """Rates within one per cent of the best; an end that is open was not found."""

    low: float
    high: float
    open_low: bool
    open_high: bool

    @property
    def text(self) -> str:
        """The width as a factor, and the ends."""
        more = "≥ " if self.open_low or self.open_high else ""
        low = "≤ " * self.open_low + rate(float(f"{self.low:.2g}"))
        high = "≥ " * self.open_high + rate(float(f"{self.high:.2g}"))
        return f"{more}{self.high / self.low:.1f}× ({low} to {high})"


def good_range(losses: Losses) -> Range | None:
    """The rates about the best one within one per cent of its loss; None if there is no loss.

    Between two rates the loss is a line over the logarithm of the rate.

    >>> good_range({0.005: 3.1, 0.01: 3.0, 0.02: 3.01}).text
    '≥ 2.5× (0.0081 to ≥ 0.02)'
    """
    rates = sorted(losses)
    if not any(map(math.isfinite, losses.values())):
        return None
    best = best_rate(losses)
    low, open_low = _edge([lr for lr in reversed(rates) if lr <= best], losses)
    high, open_high = _edge([lr for lr in rates if lr >= best], losses)
    return Range(low, high, open_low, open_high)


def _edge(rates: Sequence[float], losses: Losses) -> tuple[float, bool]:
    """Where the loss crosses the limit on the way from the best rate, and whether it never does."""
    limit = (1 + WITHIN) * losses[rates[0]]
    for inside, outside in pairwise(rates):
        if losses[outside] > limit:
            rise = losses[outside] - losses[inside]
            share = (limit - losses[inside]) / rise if math.isfinite(rise) else 0.0
            return inside * (outside / inside) ** share, False
    return rates[-1], True


def lowest_point(losses: Losses) -> float | None:
    """Where the parabola through the losses is lowest, over the logarithm of the rate.

    It hangs on all rates that were run, and so less on the noise of one than the best of them.
    None if it opens downwards, or is lowest where nothing was run.

    >>> round(lowest_point({0.005: 3.1, 0.01: 3.0, 0.02: 3.0, 0.04: 3.1}), 4)
    0.0141
    """
    finite = {lr: loss for lr, loss in losses.items() if math.isfinite(loss)}
    if len(finite) < FIRST:
        return None
    bend, slope, _ = np.polyfit(np.log(list(finite)), list(finite.values()), 2)
    point = math.exp(-slope / (2 * bend)) if bend > 0 else math.inf
    return point if min(finite) <= point <= max(finite) else None


def _all_losses(entry: Entry, results: Sequence[Result], rules: Rules) -> dict[float, float]:
    """The losses at every rate that was run, ascending, whoever asked for it."""
    rates = sorted({float(result["settings"]["lr"]) for result in results})
    return _losses_at(rates, entry, results, rules)


def next_runs(
    entries: Iterable[Entry], results: Sequence[Result], rules: Rules
) -> list[RunSettings]:
    """The runs that would find an end that is open: a factor of two beyond what was run."""
    rates = {}
    for entry in entries:
        known = _all_losses(entry, results, rules)
        if found := good_range(known):
            beyond = [min(known) / 2] * found.open_low + [max(known) * 2] * found.open_high
            rates[entry] = [lr for lr in beyond if 1 / FARTHEST <= lr / entry.lr <= FARTHEST]
    return _missing(rates, results, rules)


def robustness(entries: Iterable[Entry], results: Sequence[Result], rules: Rules) -> str:
    """A table: the range of each entry that has been tuned."""
    rows = []
    for entry in entries:
        known = _all_losses(entry, results, rules)
        found = good_range(known)
        if found is not None and len(known) >= FEWEST:
            best = best_rate(known)
            text = f"{known[best]:.4f} at {rate(best)}"
            point = lowest_point(known)
            lowest = rate(float(f"{point:.2g}")) if point else "–"
            rows.append((entry.name, text, lowest, found.text, str(len(known))))
    head = ("entry", "best loss", "parabola lowest at", "rates within 1 % of it", "rates run")
    return markdown_table(head, rows) if rows else ""
