"""A row a finished optimizer, and rows as text: aligned for a terminal, Markdown for a document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .palette import name
from .tuned import TUNED
from .wording import (
    NONE,
    listed,
    loss,
    loss_format,
    megabytes,
    milliseconds,
    percent,
    rate,
)


@dataclass(frozen=True)
class Row:
    """What one optimizer did at the learning rate with its lowest mean final loss."""

    label: str
    lr: float
    seeds: int  # runs at that rate
    final: float  # mean validation loss at the end; infinite where a run diverged
    spread: float | None  # sample standard deviation of it; None for one seed
    best: float  # lowest loss along the way, mean over seeds
    accuracy: float | None  # at the end, mean
    units_to_target: float | None  # to the baseline's final loss, as a fraction of its units
    seconds_to_target: float | None  # likewise of its seconds
    model_ms: float | None  # medians of a step: forward and backward,
    optimizer_ms: float | None  # the optimizer's step,
    data_ms: float | None  # making the batch
    state_bytes: int
    parameters: int
    diverged: int  # runs at that rate that diverged
    rates: int  # learning rates tried
    lr_at_edge: bool  # the best rate is the least or the greatest of several
    baseline: bool
    unit: str  # what the units are: tokens, images
    failures: tuple[str, ...] = ()  # a sentence for each of its runs, at any rate, that failed


def columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Heading, in one or two lines, and cells of a column; one that would be empty is left out."""
    spec = loss_format([row.final for row in rows], [row.spread for row in rows])
    unit = rows[0].unit if rows else "units"
    several = [row for row in rows if len(rows) > 1]  # alone, there is nothing to compare with
    table = [
        ("final\nloss", [_final(row, spec) for row in rows]),
        (f"{unit}\nto target", [percent(row.units_to_target) for row in several]),
        ("time\nto target", [percent(row.seconds_to_target) for row in several]),
        ("best\nloss", [_best(row, spec) for row in rows]),
        ("accuracy", [_accuracy(row) for row in rows]),
        ("lr", [rate(row.lr) + ("*" if row.lr_at_edge else "") for row in rows]),
        ("seeds", [str(row.seeds) for row in rows]),
        ("model\nms", [milliseconds(row.model_ms) for row in rows]),
        ("optimizer\nms", [milliseconds(row.optimizer_ms) for row in rows]),
        ("data\nms", [milliseconds(row.data_ms) for row in rows]),
        ("state", [megabytes(row.state_bytes) for row in rows]),
    ]
    return [(head, cells) for head, cells in table if any(cell != NONE for cell in cells)]


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know: the target, whence the settings, rates at an edge, divergence."""
    spec = loss_format([row.final for row in rows], [row.spread for row in rows])
    texts = [
        f"Target: the final loss of {name(row.label)}, {loss(row.final, spec)}; "
        f"{row.unit} and time to it are in per cent of what {name(row.label)} took in all."
        for row in rows
        if row.baseline and math.isfinite(row.final) and len(rows) > 1
    ]
    if len(rows) > 1 and all(row.rates == 1 and row.lr == TUNED.get(row.label) for row in rows):
        texts.append(
            "Each optimizer has the settings and the learning rate that the race found best for it "
            "(docs/race.md); nothing was tuned on this task."
        )
    if edge := [name(row.label) for row in rows if row.lr_at_edge]:
        texts.append(f"* The best rate of {listed(edge)} is at an end of the grid: widen it.")
    texts += [f"{name(row.label)} {failure}" for row in rows for failure in row.failures]
    return texts + [
        f"{name(row.label)}: {row.diverged} of {row.seeds} runs diverged at lr {rate(row.lr)}"
        f"{', its best rate' if row.rates > 1 else ''}."
        for row in rows
        if row.diverged
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned plain text, the notes below."""
    left = ["", "optimizer", *(row.label for row in rows)]
    parts = [[text.ljust(max(map(len, left))) for text in left]]
    for head, cells in columns(rows):
        column = ["", *head.split("\n"), *_even(cells)][-len(left) :]
        parts.append([text.rjust(max(map(len, column))) for text in column])
    lines = ["  ".join(line).rstrip() for line in zip(*parts, strict=True)]
    lines.insert(2, "─" * max(map(len, lines)))
    return "\n".join([*lines, "", *notes(rows)]).rstrip()


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, the notes below."""
    shown = columns(rows)
    lines = [
        ["optimizer", *(head.replace("\n", " ") for head, _ in shown)],
        ["---", *("--:" for _ in shown)],
        *(
            [row.label.replace("|", r"\|"), *(cells[index] for _, cells in shown)]
            for index, row in enumerate(rows)
        ),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    remarks = "\n".join(f"- {note}".replace("- *", r"- \*") for note in notes(rows))
    return f"{text}\n\n{remarks}".rstrip() + "\n"


def final_text(row: Row, spec: str) -> str:
    """The final loss, or what became of the run."""
    failed = math.isinf(row.final) and not row.diverged
    return "failed" if failed else loss(row.final, spec)


def _final(row: Row, spec: str) -> str:
    text = final_text(row, spec)
    return text if row.spread is None else f"{text} ± {row.spread:{spec}}"


def _best(row: Row, spec: str) -> str:
    return loss(row.best, spec) if math.isfinite(row.best) else final_text(row, spec)


def _accuracy(row: Row) -> str:
    return NONE if row.accuracy is None else f"{100 * row.accuracy:.1f} %"


def _even(cells: list[str]) -> list[str]:
    """Cells that line up at the right although only some end in a star."""
    starred = any(cell.endswith("*") for cell in cells)
    return [cell if cell.endswith("*") or not starred else f"{cell} " for cell in cells]
