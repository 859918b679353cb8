"""The requirements on the cost of a step, numbered as they were set, and whether they hold."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .results import ONE, Result, SetResult
from .settings import Settings

# Products are asked about where they are what a method does.
_PRODUCT_METHODS = ("muon", "deva-short", "deva-both", "soap")


@dataclass(frozen=True)
class Check:
    """A number, the bound that was set for it, and whether it holds: judged as it is shown."""

    number: int
    text: str
    value: float
    sense: Literal["≤", "≥", "="]
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of the bound."""
        compare = {"≤": operator.le, "≥": operator.ge, "=": operator.eq}[self.sense]
        return bool(compare(round(self.value, 3), self.bound))

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        shown = f"{self.value:8.3f} {self.sense} {self.bound:<6g}"
        return f"{self.number}. {self.text:<58}{shown}{verdict}"


def checks(found: SetResult, settings: Settings) -> list[Check]:
    """Every requirement that these results can answer."""
    if found.shapes.against:
        return list(_tiny_batch(found))
    return [
        *_time_ratios(found),
        *_worst_steps(found),
        *_efficiency(found, settings),
        *_memory(found),
    ]


def _time_ratios(found: SetResult) -> Iterator[Check]:
    for number, name, baseline, bound in (
        (1, "muon", "plain-muon", 0.75),
        (1, "muon", "torch-muon", 0.25),
        (2, "deva-short", "muon", 1.5),
        (3, "deva-both", "muon", 2.4),
        (4, "soap", "pytorch_optimizer-soap", 0.8),
        (4, "soap", "heavyball-soap", 0.8),
        (5, "adamw", "torch-adamw", 1.3),
        (5, "deva-linf", "torch-adamw", 1.5),
    ):
        values = found.ratios(name, baseline)
        if values is not None:
            text = f"time of {name} / {baseline}"
            yield Check(number, text, statistics.median(values), "≤", bound)


def _worst_steps(found: SetResult) -> Iterator[Check]:
    for result in _ours(found):
        if result.refreshes:
            value = result.timing.worst / result.timing.median
            yield Check(6, f"worst step of {result.name} / its median", value, "≤", 2.0)


def _efficiency(found: SetResult, settings: Settings) -> Iterator[Check]:
    for result in _ours(found):
        share, rate = result.products_share, result.products_rate(settings.refresh_every)
        if result.name not in _PRODUCT_METHODS or share is None or rate is None:
            continue
        yield Check(7, f"share of {result.name}'s time in matrix products", share, "≥", 0.6)
        if found.shapes.name == "gpt-768":
            text = f"rate of {result.name}'s products / sgemm peak"
            yield Check(7, text, rate / found.peak, "≥", 0.7)


def _tiny_batch(found: SetResult) -> Iterator[Check]:
    for result in _ours(found):
        values = found.ratios(result.name, result.name + ONE)
        if values is not None:
            text = f"time of {result.name}, a hundred matrices / one"
            yield Check(8, text, statistics.median(values), "≤", 3.0)


def _memory(found: SetResult) -> Iterator[Check]:
    for result in _ours(found):
        if result.temporary is not None:
            text = f"peak temporary memory of {result.name} / weights"
            yield Check(9, text, result.temporary, "≤", 1.0)
    wrong = [abs(r.state_bytes - r.formula_bytes) for r in _ours(found)]
    if wrong:
        yield Check(9, "bytes of state beside the formula, at the most", max(wrong), "=", 0)
    wide, small = (found.results.get(name) for name in ("deva-both", "deva-both-bf16"))
    if wide is not None and small is not None:
        saved = (wide.state_bytes - small.state_bytes) / (2 * wide.weight_bytes)
        yield Check(9, "M and V of deva-both in bfloat16 / float32", 1 - saved, "=", 0.5)


def _ours(found: SetResult) -> list[Result]:
    """Our results on the shapes of the set itself."""
    return [r for r in found.results.values() if r.kind == "ours" and not r.name.endswith(ONE)]
