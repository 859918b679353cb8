"""The finding of a comparison in words, and no more than the numbers carry."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .palette import name
from .tables import Row
from .wording import listed, loss, loss_format, percent, rate


def headline(rows: Sequence[Row]) -> str:
    """One sentence: what the best optimizer did, compared with the baseline."""
    ended = [row for row in rows if math.isfinite(row.final)]
    if not ended:
        return _none_ended(rows) if rows else "There are no results."
    best, *others = ended
    baseline = next(row for row in rows if row.baseline)
    if len(rows) == 1:
        return f"{name(best.label)} ended at a validation loss of {_loss(best, rows)}."
    if baseline not in ended:
        lost = "diverged" if baseline.diverged else "failed"
        return f"{name(baseline.label)} {lost}; {name(best.label)} ended lowest."
    if best.baseline:
        return _baseline_is_best(best, others)
    return _against(best, baseline, rows)


def details(rows: Sequence[Row]) -> list[str]:
    """The sentences below the headline: final losses, time, the second, what is not known."""
    ended = [row for row in rows if math.isfinite(row.final)]
    if not ended or len(rows) == 1:
        return [_seeds(ended)] if ended else []
    best, *others = ended
    baseline = next(row for row in rows if row.baseline)
    sentences = [
        f"{name(best.label)} ended at a validation loss of {_loss(best, rows)}"
        + (f", {name(baseline.label)} at {_loss(baseline, rows)}." if baseline in others else ".")
    ]
    if baseline in others and best.seconds_to_target is not None and _apart(best, baseline):
        sentences.append(
            f"In training time that is {percent(best.seconds_to_target)} "
            f"of what {name(baseline.label)} took."
        )
    if others and others[0] is not baseline:
        sentences.append(_second(best, others[0], rows))
    sentences.append(_seeds(ended))
    sentences += _edges(ended)
    return [sentence for sentence in sentences if sentence]


def noise(one: Row, other: Row) -> float | None:
    """The larger spread of two rows; None where neither has one."""
    return max((row.spread for row in (one, other) if row.spread is not None), default=None)


def _none_ended(rows: Sequence[Row]) -> str:
    diverged, failed = any(row.diverged for row in rows), any(row.failures for row in rows)
    lost = [word for word, any_ in (("diverged", diverged), ("failed", failed)) if any_]
    return f"Every optimizer {' or '.join(lost)}."


def _against(best: Row, baseline: Row, rows: Sequence[Row]) -> str:
    if not _apart(best, baseline):
        return _no_difference(best, baseline)
    if best.units_to_target is None:
        gap = loss(baseline.final - best.final, _spec(rows))
        return f"{name(best.label)} ended {gap} below {name(baseline.label)}."
    return (
        f"{name(best.label)} reached {name(baseline.label)}’s final loss "
        f"with {percent(best.units_to_target)} of its {best.unit}."
    )


def _baseline_is_best(best: Row, others: Sequence[Row]) -> str:
    if not others:
        return f"Only {name(best.label)} came to its end."
    if not _apart(best, others[0]):
        return _no_difference(best, others[0])
    return f"No optimizer ended below {name(best.label)}."


def _apart(best: Row, other: Row) -> bool:
    """Whether two differ by more than the larger spread; unknown, with one seed, counts as so."""
    spread = noise(best, other)
    return spread is None or other.final - best.final > spread


def _no_difference(best: Row, other: Row) -> str:
    return (
        f"{name(best.label)} and {name(other.label)} ended closer to each other "
        "than the spread over seeds: no difference is shown."
    )


def _second(best: Row, second: Row, rows: Sequence[Row]) -> str:
    text = f"{name(second.label)} came second with {_loss(second, rows)}"
    if noise(best, second) is None:
        return f"{text}."
    if not _apart(best, second):
        return f"{text}, within the spread over seeds: the order of the two is open."
    return f"{text}, behind by more than the spread over seeds."


def _seeds(rows: Sequence[Row]) -> str:
    if len(rows) == 1 and rows[0].seeds == 1:
        return "One seed, so the spread is not known."
    if all(row.seeds == 1 for row in rows):
        return "One seed each, so the spread is not known and a small difference may be chance."
    return ""


def _edges(rows: Sequence[Row]) -> list[str]:
    edge = [f"{name(row.label)} ({rate(row.lr)})" for row in rows if row.lr_at_edge]
    if not edge:
        return []
    return [f"The best learning rate is at an end of the grid for {listed(edge)}: widen it."]


def _spec(rows: Sequence[Row]) -> str:
    return loss_format([row.final for row in rows], [row.spread for row in rows])


def _loss(row: Row, rows: Sequence[Row]) -> str:
    spread = "" if row.spread is None else f" ± {row.spread:{_spec(rows)}}"
    return f"{loss(row.final, _spec(rows))}{spread}"
