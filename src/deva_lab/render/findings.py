"""A comparison in words and cells, and no more than the numbers carry."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..entrants import Entrant
from ..errors import UsageError
from ..results.summary import Failure, Row, Summary
from ..tuned import TUNED
from .palette import name
from .tables import aligned, markdown_table
from .wording import (
    NONE,
    listed,
    loss,
    loss_format,
    megabytes,
    milliseconds,
    percent,
    rate,
    with_spread,
)

Column = tuple[str, list[str]]  # heading, in one or two lines, and cells

LEAST = 0.01  # what two seeds of a language model of a few million weights usually differ by
WIDE = 60  # letters of an error in a table


# --- The table ------------------------------------------------------------------------------------


def columns(summary: Summary) -> list[Column]:
    """The columns of the table, first the names; one that would be empty is left out."""
    rows, failures, spec = summary.rows, summary.failures, spec_of(summary)
    several = [row for row in rows if len(rows) > 1]  # alone, there is nothing to compare with
    none = [NONE] * len(failures)
    table = [
        ("final\nloss", [_loss(row, spec) for row in rows] + ["failed"] * len(failures)),
        (f"{summary.unit}\nto target", [percent(row.units_to_target) for row in several] + none),
        ("time\nto target", [percent(row.seconds_to_target) for row in several] + none),
        ("best\nloss", [loss(row.best, spec) for row in rows] + none),
        ("accuracy", [percent(row.accuracy, 1) for row in rows] + none),
        ("lr", _even([rate(row.lr) + "*" * row.lr_at_edge for row in rows] + _rates(failures))),
        ("seeds", [str(row.seeds) for row in rows] + [str(len(each.seeds)) for each in failures]),
        ("model\nms", [milliseconds(row.model_ms) for row in rows] + none),
        ("optimizer\nms", [milliseconds(row.optimizer_ms) for row in rows] + none),
        ("data\nms", [milliseconds(row.data_ms) for row in rows] + none),
        ("state", [megabytes(row.state_bytes) for row in rows] + none),
        ("error", [NONE] * len(rows) + [_short(each.error) for each in failures]),
    ]
    names = [row.label for row in rows] + [each.label for each in failures]
    shown = [(head, cells) for head, cells in table if any(cell != NONE for cell in cells)]
    return [("optimizer", names), *shown]


def table(summary: Summary) -> str:
    """The comparison as aligned plain text, the notes below."""
    heads, cells = zip(*columns(summary), strict=True)
    words = [index for index, head in enumerate(heads) if head in ("optimizer", "error")]
    text = aligned(heads, list(zip(*cells, strict=True)), left=words, ruled=True)
    return "\n".join([text, "", *notes(summary)]).rstrip()


def markdown(summary: Summary) -> str:
    """The comparison as a Markdown table, the notes below."""
    heads, cells = zip(*columns(summary), strict=True)
    text = markdown_table(heads, list(zip(*cells, strict=True)), right=True)
    remarks = "\n".join(f"- {note}".replace("- *", r"- \*") for note in notes(summary))
    return f"{text}\n\n{remarks}".rstrip() + "\n"


def spec_of(summary: Summary) -> str:
    """The format of the losses of a comparison."""
    return loss_format([row.final for row in summary.rows], [row.spread for row in summary.rows])


def _loss(row: Row, spec: str) -> str:
    return with_spread(row.final, row.spread, spec)


def _rates(failures: Sequence[Failure]) -> list[str]:
    return ["/".join(map(rate, each.rates)) for each in failures]


def _even(cells: list[str]) -> list[str]:
    """Cells that line up at the right although only some end in a star."""
    starred = any(cell.endswith("*") for cell in cells)
    return [cell if cell.endswith("*") or not starred else f"{cell} " for cell in cells]


def _short(error: str) -> str:
    line = next(iter(error.strip().splitlines()), "")
    return line if len(line) <= WIDE else f"{line[: WIDE - 1]}…"


def tuned(summary: Summary) -> list[Column]:
    """A table of each optimizer at its usual rate and at its best one, where both were run."""
    spec, rows = spec_of(summary), []
    for row in summary.rows:
        losses = {lr: (final, spread) for lr, final, spread in summary.sensitivity[row.label]}
        usual = usual_rate(row.label)
        if row.rates > 1 and usual in losses and math.isfinite(row.final):
            final, spread = losses[usual]
            gain = loss(final - row.final, spec) if math.isfinite(final) else NONE
            rows.append((row, rate(usual), with_spread(final, spread, spec), gain))
    return [
        ("optimizer", [row.label for row, *_ in rows]),
        ("usual\nlr", [usual for _, usual, _, _ in rows]),
        ("loss\nat it", [final for _, _, final, _ in rows]),
        ("best\nlr", [rate(row.lr) for row, *_ in rows]),
        ("loss\nat it", [_loss(row, spec) for row, *_ in rows]),
        ("gained by\ntuning", [gain for *_, gain in rows]),
    ]


def usual_rate(label: str) -> float | None:
    """The learning rate that an optimizer of the laboratory has unless one is given."""
    try:
        return Entrant.parse(label).default_lr
    except UsageError:
        return None


# --- Notes ----------------------------------------------------------------------------------------


def notes(summary: Summary) -> list[str]:
    """What a reader must know: target, whence the settings, rates, noise, what did not end."""
    rows, spec = summary.rows, spec_of(summary)
    texts = [
        f"Target: the final loss of {name(row.label)}, {loss(row.final, spec)}; "
        f"{summary.unit} and time to it are in per cent of what {name(row.label)} took in all."
        for row in rows
        if row.baseline and row.diverged == 0 and len(rows) > 1
    ]
    if len(rows) > 1 and all(row.rates == 1 and row.lr == TUNED.get(row.label) for row in rows):
        texts.append(
            "Each optimizer has the settings and the learning rate that the race found best for it "
            "(docs/race.md); nothing was tuned on this task."
        )
    texts += noise(summary)
    if edge := [name(row.label) for row in rows if row.lr_at_edge]:
        texts.append(f"* The best rate of {listed(edge)} is at an end of the grid: widen it.")
    texts += [
        f"{name(row.label)}: {row.diverged} of {row.seeds} runs diverged at lr {rate(row.lr)}"
        f"{', its best rate' if row.rates > 1 else ''}."
        for row in rows
        if row.diverged
    ]
    texts += [
        f"{name(each.label)} at lr {listed(map(rate, each.rates))}, seed "
        f"{listed(map(str, each.seeds))} failed: {each.error.strip()}"
        for each in summary.failures
    ]
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
    rows = summary.rows
    ended = [row for row in rows if math.isfinite(row.final)]
    if not ended:
        failed = "Every run failed." if summary.failures else "There are no results."
        return "Every optimizer diverged." if rows else failed
    best, *others = ended
    baseline = next((row for row in rows if row.baseline), None)
    if len(rows) == 1:
        return f"{name(best.label)} ended at a validation loss of {_loss(best, spec_of(summary))}."
    if baseline is None or baseline.diverged:
        how = "failed" if baseline is None else "diverged"
        return f"{name(summary.baseline or '')} {how}; {name(best.label)} ended lowest."
    if best.baseline and not others:
        return f"Only {name(best.label)} did not diverge."
    other = others[0] if best.baseline else baseline
    if not summary.apart(best, other):
        return (
            f"{name(best.label)} and {name(other.label)} ended as close to each other "
            "as seeds alone may bring them: no difference is shown."
        )
    if best.baseline:
        return f"No optimizer ended below {name(best.label)}."
    return _against(best, baseline, summary)


def details(summary: Summary) -> list[str]:
    """The sentences below the headline: final losses, time, the second, rates at an edge."""
    spec = spec_of(summary)
    ended = [row for row in summary.rows if math.isfinite(row.final)]
    if not ended or len(summary.rows) == 1:
        return []
    best, *others = ended
    baseline = next((row for row in others if row.baseline), None)
    ends = f"{name(best.label)} ended at a validation loss of {_loss(best, spec)}"
    sentences = [
        f"{ends}, {name(baseline.label)} at {_loss(baseline, spec)}." if baseline else ends + "."
    ]
    if baseline and best.seconds_to_target is not None and summary.apart(best, baseline):
        sentences.append(
            f"In training time that is {percent(best.seconds_to_target)} "
            f"of what {name(baseline.label)} took."
        )
    if others and others[0] is not baseline:
        sentences.append(_second(best, others[0], summary))
    if edge := [f"{name(row.label)} ({rate(row.lr)})" for row in ended if row.lr_at_edge]:
        grid = f"The best learning rate is at an end of the grid for {listed(edge)}: widen it."
        sentences.append(grid)
    return sentences


def _against(best: Row, baseline: Row, summary: Summary) -> str:
    if best.units_to_target is None:
        gap = loss(baseline.final - best.final, spec_of(summary))
        return f"{name(best.label)} ended {gap} below {name(baseline.label)}."
    return (
        f"{name(best.label)} reached {name(baseline.label)}’s final loss "
        f"with {percent(best.units_to_target)} of its {summary.unit}."
    )


def _second(best: Row, second: Row, summary: Summary) -> str:
    text = f"{name(second.label)} came second with {_loss(second, spec_of(summary))}"
    if summary.noise is None:
        return f"{text}."
    if not summary.apart(best, second):
        return f"{text}, which may be chance: the order of the two is open."
    return f"{text}, behind by more than chance."
