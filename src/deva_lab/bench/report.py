"""What is shown on the terminal and what is saved."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..render import aligned
from .checks import checks
from .machine import machine
from .results import Result, SetResult
from .settings import Settings
from .shapes import SETS
from .subjects import SUBJECTS
from .timing import quartiles


class Column(NamedTuple):
    """A column of the table; `{baseline}` in its head is the name of the baseline."""

    head: str
    cell: Callable[[Result, SetResult, Settings], str]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.{3 if seconds < 1e-2 else 1}f}"


def _span(values: tuple[float, float], show: Callable[[float], str]) -> str:
    return "–".join(map(show, values))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _ratio(r: Result, found: SetResult, s: Settings) -> str:
    values = found.ratios(r.name, s.baseline)
    return "" if values is None else f"{statistics.median(values):.2f}"


def _ratio_span(r: Result, found: SetResult, s: Settings) -> str:
    values = found.ratios(r.name, s.baseline)
    return "" if values is None else _span(quartiles(values), "{:.2f}".format)


def _products_of_peak(r: Result, found: SetResult, s: Settings) -> str:
    rate = r.products_rate(s.refresh_every)
    return "" if rate is None else _percent(rate / found.peak)


COLUMNS: Final = (
    Column("subject", lambda r, f, s: r.name),
    Column("median ms", lambda r, f, s: _ms(r.timing.median)),
    Column("quartiles", lambda r, f, s: _span(r.timing.quartiles, _ms)),
    Column("mean", lambda r, f, s: _ms(r.timing.mean)),
    Column("worst", lambda r, f, s: _ms(r.timing.worst)),
    Column("first", lambda r, f, s: _ms(r.timing.first)),
    Column("/ {baseline}", _ratio),
    Column("quartiles", _ratio_span),
    Column("state MB", lambda r, f, s: f"{r.state_bytes / 1e6:.2f}"),
    Column("by formula", lambda r, f, s: f"{r.formula_bytes / 1e6:.2f} = {r.formula}"),
    Column("peak", lambda r, f, s: "" if r.temporary is None else f"{r.temporary:.2f}"),
    Column("GFLOP", lambda r, f, s: "" if r.flops is None else f"{r.flops.total / 1e9:.2f}"),
    Column("rate", lambda r, f, s: "" if r.rate is None else _percent(r.rate / f.peak)),
    Column("products", lambda r, f, s: _percent(r.products_share)),
    Column("at", _products_of_peak),
)

LEGEND: Final = """\
ms a step; mean: median over rounds of a round's mean, refreshes included, and what ratios are of
worst: median over rounds of a round's slowest step; first: the very first, which makes the state
peak: temporary memory / weights
rate: FLOP/s / sgemm peak; products: share of the time in matrix products, and their rate"""


def table(found: SetResult, settings: Settings) -> str:
    """The results on one set of shapes, aligned."""
    head = [column.head.format(baseline=settings.baseline) for column in COLUMNS]
    results = found.results.values()
    rows = [[column.cell(result, found, settings) for column in COLUMNS] for result in results]
    notes = [*_left_out(found), *_busy(found), ""]
    shown = aligned(head, rows, left=(0, head.index("by formula")))
    return "\n".join([_heading(found), "", shown, "", LEGEND, *notes])


def _heading(found: SetResult) -> str:
    name, model = found.shapes.name, SETS.get(found.shapes.name)
    about = f" ({model.about})" if model else ""
    return (
        f"{name}{about}: {len(found.shapes.shapes)} parameters, {found.shapes.numel:,} numbers; "
        f"sgemm peak {found.peak / 1e9:.0f} GFLOP/s"
    )


def _left_out(found: SetResult) -> list[str]:
    return [f"left out: {name}, {reason}" for name, reason in found.left_out.items()]


def _busy(found: SetResult) -> list[str]:
    if found.others is None or found.others < 0.05:
        return []
    share = f"other programs took {found.others:.0%} of the CPUs meanwhile"
    return [f"the machine was not quiet: {share}; read times with care"]


def growth_table(found: Sequence[SetResult]) -> str:
    """Mean milliseconds a step by width, a line for each subject."""
    names = dict.fromkeys(name for one in found for name in one.results)
    rows = [
        [
            name,
            *(_ms(one.results[name].timing.mean) if name in one.results else "" for one in found),
        ]
        for name in names
    ]
    return aligned(["mean ms", *(one.shapes.name for one in found)], rows)


def listing() -> str:
    """All shape sets and all subjects."""
    sets = [(name, model.about) for name, model in SETS.items()]
    subjects = [(s.name, s.kind, f"({s.missing})" * bool(s.missing)) for s in SUBJECTS.values()]
    head = "Shape sets (NAME:2 takes two blocks, gpt-WIDTH is one block of any width)"
    tables = aligned((), sets, left=(0, 1)), aligned((), subjects, left=(0, 1, 2))
    return f"{head}\n{tables[0]}\n\nSubjects\n{tables[1]}"


def document(found: Sequence[SetResult], settings: Settings) -> dict[str, Any]:
    """Everything, as plain values: seconds, bytes and FLOPs."""
    return {
        "benchmark": "step",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(settings.device),
        "settings": asdict(settings),
        "sets": [_set(one, settings) for one in found],
    }


def _set(one: SetResult, settings: Settings) -> dict[str, Any]:
    return {
        "name": one.shapes.name,
        "shapes": one.shapes.shapes,
        "numel": one.shapes.numel,
        "peak_flops": one.peak,
        "others": one.others,
        "left_out": one.left_out,
        "results": [_plain(r, one, settings) for r in one.results.values()],
        "checks": [{**asdict(check), "holds": check.holds} for check in checks(one, settings)],
    }


def _plain(r: Result, one: SetResult, settings: Settings) -> dict[str, Any]:
    """A result with what follows from it."""
    measured = ("median", "quartiles", "mean", "worst", "first", "phases")
    return {
        **asdict(r),
        **{name: getattr(r.timing, name) for name in measured},
        "ratios": one.ratios(r.name, settings.baseline),
        "temporary": r.temporary,
        "products_share": r.products_share,
        "products_rate": r.products_rate(settings.refresh_every),
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write it, making the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
