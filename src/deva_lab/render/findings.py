"""A comparison in words and cells, and no more than the numbers carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from ..errors import UsageError
from ..results import Failure, Row, Summary
from ..run.entrants import Entrant
from ..run.settings import TUNED
from . import (
    NONE,
    aligned,
    listed,
    loss,
    loss_format,
    markdown_table,
    megabytes,
    milliseconds,
    percent,
    rate,
)
from .figures import name

LEAST = 0.01  # what two seeds of a language model of a few million weights usually differ by
WIDE = 60  # letters of an error in a table


class Table(NamedTuple):
    """Heads, in one or two lines each, and rows that begin with the label of an optimizer."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


# --- Tables ---------------------------------------------------------------------------------------


def cells(summary: Summary) -> Table:
    """The table, what failed below the rest; a column that would be empty is left out."""
    rows = [_cells_of_row(row, summary) for row in summary.rows]
    rows += [_cells_of_failure(failure) for failure in summary.failures]
    known = dict.fromkeys(["optimizer", *chain.from_iterable(rows)])
    heads = [head for head in known if any(row.get(head, NONE) != NONE for row in rows)]
    return Table(heads or ["optimizer"], [[row.get(head, NONE) for head in heads] for row in rows])


def _cells_of_row(row: Row, summary: Summary) -> dict[str, str]:
    spec, times = spec_of(summary), row.milliseconds
    several = len(summary.rows) > 1  # alone, there is nothing to compare with
    # Numbers line up at the right if all have room for the star of some.
    star = "*" if row.lr_at_edge else " " * any(each.lr_at_edge for each in summary.rows)
    return {
        "optimizer": row.label,
        "final\nloss": loss(row.final, spec, row.spread),
        f"{summary.unit}\nto target": percent(summary.to_target(row, "units") if several else None),
        "time\nto target": percent(summary.to_target(row, "seconds") if several else None),
        "best\nloss": loss(row.best, spec),
        "accuracy": percent(row.accuracy, 1),
        "lr": rate(row.lr) + star,
        "seeds": str(len(row.runs)),
        **{f"{part}\nms": milliseconds(times.get(part)) for part in ("model", "optimizer", "data")},
        "state": megabytes(row.state_bytes),
    }


def _cells_of_failure(failure: Failure) -> dict[str, str]:
    line = next(iter(failure.error.strip().splitlines()), "")
    return {
        "optimizer": failure.label,
        "final\nloss": "failed",
        "lr": "/".join(map(rate, failure.rates)),
        "seeds": str(len(failure.seeds)),
        "error": line if len(line) <= WIDE else f"{line[: WIDE - 1]}…",
    }


def table(summary: Summary) -> str:
    """The comparison as aligned plain text, the notes below."""
    heads, rows = cells(summary)
    words = [index for index, head in enumerate(heads) if head in ("optimizer", "error")]
    return "\n".join([aligned(heads, rows, left=words, ruled=True), "", *notes(summary)]).rstrip()


def markdown(summary: Summary) -> str:
    """The comparison as a Markdown table, the notes below."""
    text = markdown_table(*cells(summary), right=True)
    remarks = "\n".join(f"- {note}".replace("- *", r"- \*") for note in notes(summary))
    return f"{text}\n\n{remarks}".rstrip() + "\n"


def tuned(summary: Summary) -> Table:
    """A table of each optimizer at its usual rate and at its best one, where both were run."""
    spec, rows = spec_of(summary), []
    for row in summary.rows:
        usual = usual_rate(row.label)
        if len(row.by_rate) > 1 and usual in row.by_rate and math.isfinite(row.final):
            final, spread = row.sensitivity[usual]
            gain = loss(final - row.final, spec) if math.isfinite(final) else NONE
            there, best = loss(final, spec, spread), loss(row.final, spec, row.spread)
            rows.append((row.label, rate(usual), there, rate(row.lr), best, gain))
    heads = ("optimizer", "usual\nlr", "loss\nat it", "best\nlr", "loss\nat it")
    return Table((*heads, "gained by\ntuning"), rows)


def spec_of(summary: Summary) -> str:
    """The format of the losses of a comparison."""
    return loss_format([row.final for row in summary.rows], [row.spread for row in summary.rows])


def usual_rate(label: str) -> float | None:
    """The learning rate that an optimizer of the laboratory has unless one is given."""
    try:
        return Entrant.parse(label).default_lr
    except UsageError:
        return None


# --- Notes ----------------------------------------------------------------------------------------


def notes(summary: Summary) -> list[str]:
    """What a reader must know: target, whence the settings, rates, noise, what did not end."""
    rows, target, texts = summary.rows, summary.target, []
    if target and not target.diverged and len(rows) > 1:
        who = name(target.label)
        texts.append(
            f"Target: the final loss of {who}, {loss(target.final, spec_of(summary))}; "
            f"{summary.unit} and time to it are in per cent of what {who} took in all."
        )
    if len(rows) > 1 and all(list(row.by_rate) == [TUNED.get(row.label)] for row in rows):
        texts.append(
            "Each optimizer has the settings and the learning rate that the race found best for it "
            "(docs/race.md); nothing was tuned on this task."
        )
    texts += noise(summary)
    if edge := [name(row.label) for row in rows if row.lr_at_edge]:
        texts.append(f"* The best rate of {listed(edge)} is at an end of the grid: widen it.")
    for row in rows:
        if row.diverged:
            lost = f"{row.diverged} of {len(row.runs)} runs diverged at lr {rate(row.lr)}"
            best = ", its best rate" * (len(row.by_rate) > 1)
            texts.append(f"{name(row.label)}: {lost}{best}.")
    for each in summary.failures:
        rates, seeds = listed(map(rate, each.rates)), listed(map(str, each.seeds))
        where = f"{name(each.label)} at lr {rates}, seed {seeds}"
        texts.append(f"{where} failed: {each.error.strip()}")
    if summary.stopped:
        texts.append(f"Left out, because stopped before their end: {summary.stopped} runs.")
    return texts


def noise(summary: Summary) -> list[str]:
    """A sentence on which differences of final losses are chance; none where nothing ended."""
    spec = spec_of(summary)
    if summary.noise is not None:
        spread, chance = summary.noise
        return [
            f"Noise: from seed to seed a final loss varies by ± {spread:{spec}}, so a difference "
            f"of two means below about {chance:{spec}} may be chance."
        ]
    if spec.endswith("e") or not any(math.isfinite(row.final) for row in summary.rows):
        return []
    return [
        f"One seed each: the spread is not known, and a difference below about {LEAST} should not "
        "be believed."
    ]


# --- Sentences ------------------------------------------------------------------------------------


def headline(summary: Summary) -> str:
    """One sentence: what the best optimizer did, compared with the baseline."""
    rows, target = summary.rows, summary.target
    ended = [row for row in rows if math.isfinite(row.final)]
    if not ended:
        failed = "Every run failed." if summary.failures else "There are no results."
        return "Every optimizer diverged." if rows else failed
    best, *others = ended
    who, spec = name(best.label), spec_of(summary)
    if len(rows) == 1:
        return f"{who} ended at a validation loss of {loss(best.final, spec, best.spread)}."
    if target is None or target.diverged:
        how = "failed" if target is None else "diverged"
        return f"{name(summary.baseline)} {how}; {who} ended lowest."
    if best is target and not others:
        return f"Only {who} did not diverge."
    other = others[0] if best is target else target
    if not summary.apart(best, other):
        return (
            f"{who} and {name(other.label)} ended as close to each other "
            "as seeds alone may bring them: no difference is shown."
        )
    if best is target:
        return f"No optimizer ended below {who}."
    share = summary.to_target(best, "units")
    if share is None:
        return f"{who} ended {loss(target.final - best.final, spec)} below {name(target.label)}."
    reached = f"{who} reached {name(target.label)}’s final loss"
    return f"{reached} with {percent(share)} of its {summary.unit}."


def details(summary: Summary) -> list[str]:
    """The sentences below the headline: final losses, time, the second, rates at an edge."""
    ended = [row for row in summary.rows if math.isfinite(row.final)]
    if not ended or len(summary.rows) == 1:
        return []
    best, *others = ended
    target = summary.target if summary.target in others else None
    ends = {row: loss(row.final, spec_of(summary), row.spread) for row in ended}
    first = f"{name(best.label)} ended at a validation loss of {ends[best]}"
    sentences = [f"{first}, {name(target.label)} at {ends[target]}." if target else f"{first}."]
    share = summary.to_target(best, "seconds")
    if target and share is not None and summary.apart(best, target):
        took = f"of what {name(target.label)} took"
        sentences.append(f"In training time that is {percent(share)} {took}.")
    if others and others[0] is not target:
        chance = ", which may be chance: the order of the two is open."
        verdict = ", behind by more than chance." if summary.apart(best, others[0]) else chance
        second = f"{name(others[0].label)} came second with {ends[others[0]]}"
        sentences.append(second + ("." if summary.noise is None else verdict))
    if edge := [f"{name(row.label)} ({rate(row.lr)})" for row in ended if row.lr_at_edge]:
        sentences.append(
            f"The best learning rate is at an end of the grid for {listed(edge)}: widen it."
        )
    return sentences
