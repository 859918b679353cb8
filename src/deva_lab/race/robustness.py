"""How much a learning rate may be off: the range of rates within one per cent of the best loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final

from ..progress import Result
from ..render import markdown_table, rate
from ..results.curves import final_loss
from ..settings import RunSettings
from .entries import Entry
from .rules import Rules

WITHIN: Final = 0.01
FEWEST: Final = 2  # rates that a range can be told from
FARTHEST: Final = 16.0  # times the rate that tuning starts from, up and down


@dataclass(frozen=True)
class Range:
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


def tuned_losses(entry: Entry, results: Sequence[Result], rules: Rules) -> dict[float, float]:
    """Rate → mean final loss on the tuning seeds, ascending, for every rate that was run."""
    by_id = {result["id"]: final_loss(result) for result in results}
    rates = sorted({float(result["settings"]["lr"]) for result in results})
    found = {}
    for lr in rates:
        ids = [entry.run(rules, lr, seed).id for seed in rules.tuning_seeds]
        if all(id_ in by_id for id_ in ids):
            found[lr] = fmean(by_id[id_] for id_ in ids)
    return found


def good_range(losses: Mapping[float, float]) -> Range | None:
    """The rates about the best one within one per cent of its loss; None if there is no loss.

    Between two rates the loss is a line over the logarithm of the rate.

    >>> good_range({0.005: 3.1, 0.01: 3.0, 0.02: 3.01}).text
    '≥ 2.5× (0.0081 to ≥ 0.02)'
    """
    rates = sorted(losses)
    known = [lr for lr in rates if math.isfinite(losses[lr])]
    if not known:
        return None
    best = min(known, key=lambda lr: losses[lr])
    limit = (1 + WITHIN) * losses[best]
    down = [lr for lr in reversed(rates) if lr <= best]
    up = [lr for lr in rates if lr >= best]
    (low, open_low), (high, open_high) = _edge(down, losses, limit), _edge(up, losses, limit)
    return Range(low, high, open_low, open_high)


def _edge(
    rates: Sequence[float], losses: Mapping[float, float], limit: float
) -> tuple[float, bool]:
    """Where the loss crosses the limit on the way from the best rate, and whether it never does."""
    for inside, outside in pairwise(rates):
        if losses[outside] > limit:
            rise = losses[outside] - losses[inside]
            share = (limit - losses[inside]) / rise if math.isfinite(rise) else 0.0
            return inside * (outside / inside) ** share, False
    return rates[-1], True


def next_runs(
    entries: Iterable[Entry], results: Sequence[Result], rules: Rules
) -> list[RunSettings]:
    """The runs that would find an end that is open: a factor of two beyond what was run."""
    known = {result["id"] for result in results}
    runs = []
    for entry in entries:
        losses = tuned_losses(entry, results, rules)
        found = good_range(losses)
        if found is not None:
            beyond = [min(losses) / 2] * found.open_low + [max(losses) * 2] * found.open_high
            near = [lr for lr in beyond if 1 / FARTHEST <= lr / entry.lr <= FARTHEST]
            runs += [entry.run(rules, lr, seed) for lr in near for seed in rules.tuning_seeds]
    return [run for run in runs if run.id not in known]


def robustness(entries: Iterable[Entry], results: Sequence[Result], rules: Rules) -> str:
    """A table: the range of each entry that has been tuned."""
    rows = []
    for entry in entries:
        losses = tuned_losses(entry, results, rules)
        found = good_range(losses)
        if found is not None and len(losses) >= FEWEST:
            best = min(losses, key=lambda lr: losses[lr])
            text = f"{losses[best]:.4f} at {rate(best)}"
            rows.append((entry.name, text, found.text, str(len(losses))))
    head = ("entry", "best loss", "rates within 1 % of it", "rates run")
    return markdown_table(head, rows) if rows else ""
