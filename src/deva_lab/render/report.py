"""The report: one HTML file that stands alone, with the finding, the table and the charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from ..results.curves import Curve, final_loss, loss_range, mean_curve, rate_range
from ..results.summary import Row, Summary
from ..results.telemetry import QUANTITIES
from . import charts
from .findings import Column, columns, details, headline, notes, spec_of, tuned
from .pages import render
from .palette import name
from .wording import count, loss, megabytes, milliseconds, rate

TITLE = "Comparison of optimizers"
PARTS = {"model": "forward and backward", "optimizer": "optimizer", "data": "data"}
WIDE = 18  # letters of a value that needs a line of its own

Bar = tuple[str, list[tuple[str, float]], str]  # name, kind and size of each piece, text


def page(summary: Summary, *, command: str, title: str | None = None) -> str:
    """The page as HTML, with styles, scripts and data inside and nothing to fetch."""
    timed = [row for row in summary.rows if row.model_ms is not None]
    peaks = [row for row in summary.rows if row.peak_bytes]
    return render(
        "report.html",
        title=title or TITLE,
        details=" ".join(details(summary)),
        facts=_facts(summary),
        unit=summary.unit,
        legend=_legend(summary),
        curves=Markup(charts.losses_svg(summary)),
        caption=_caption(summary),
        flops=bool(summary.flops[0]),
        rates=Markup(charts.rates_svg(summary)) if summary.varied else None,
        tuned=_grid(tuned(summary)),
        telemetry=[
            (quantity, Markup(charts.telemetry_svg(summary, quantity)))
            for quantity in QUANTITIES
            if quantity.key in summary.telemetry
        ],
        recorded=[
            (summary.looks[row.label], "")
            for row in summary.rows
            if any(row.label in of for of in summary.telemetry.values())
        ],
        parts_of_a_step=PARTS,
        times=_shares([_time_bar(row) for row in timed]),
        states=_shares([_state_bar(row) for row in summary.rows]),
        peaks=_shares([_bar(row, row.peak_bytes, megabytes(row.peak_bytes)) for row in peaks]),
        command=command,
        settings=_definitions([{**run["settings"], "telemetry": None} for run in summary.results]),
        environment=_definitions([run.get("environment") or {} for run in summary.results]),
        diverged=_diverged(summary),
        data=page_data(summary),
        **_told(summary),
    )


def notebook(summary: Summary) -> str:
    """The finding, the table and the chart of losses, for the output of a cell."""
    curves = Markup(charts.losses_svg(summary)) if summary.rows else None
    return render("notebook.html", curves=curves, **_told(summary))


def page_data(summary: Summary) -> dict[str, Any]:
    """What the script of the page draws from."""
    low, high, logarithmic = loss_range(list(summary.curves.values()))
    spec, grid = spec_of(summary), summary.sensitivity
    return {
        "unit": summary.unit,
        "decimals": None if spec.endswith("e") else int(spec[1]),
        "range": {"low": low, "high": high, "log": logarithmic},
        "rateRange": rate_range([loss for points in grid.values() for _, loss, _ in points]),
        "series": [
            {
                **asdict(summary.looks[row.label]),
                "final": row.final if math.isfinite(row.final) else None,
                "diverged": row.diverged > 0,
                "flops": summary.flops[0].get(row.label, 0.0),
                "mean": _short(summary.curves[row.label]),
                "runs": [_short(mean_curve([run])) for run in summary.chosen[row.label]],
                "rates": [
                    (lr, loss if math.isfinite(loss) else None, spread)
                    for lr, loss, spread in grid[row.label]
                ],
            }
            for row in summary.rows
        ],
    }


def _short(curve: Curve) -> dict[str, list[float]]:
    """A curve with six digits a number: more than a screen has, a third of the bytes."""
    columns = asdict(curve).items()
    return {key: [float(f"{value:.6g}") for value in values] for key, values in columns}


def _told(summary: Summary) -> dict[str, Any]:
    told = {"headline": headline(summary), "notes": notes(summary)}
    return {**told, "table": _grid(columns(summary))}


def _grid(table: Sequence[Column]) -> dict[str, Any]:
    """Heads and rows of a table whose first column has the names of optimizers."""
    heads, cells = zip(*table, strict=True)
    return {
        "heads": heads,
        "rows": [(name(label), row) for label, *row in zip(*cells, strict=True)],
    }


def _facts(summary: Summary) -> str:
    """One line on what was trained: task, data, size, length."""
    if not summary.results:
        return ""
    first, common = summary.results[0], _common([run["settings"] for run in summary.results])
    parts = [str(common[key]) for key in ("task", "size", "data") if common.get(key)]
    parts.append(f"{count(first['parameters'])} parameters")
    if "steps" in common:
        parts.append(f"{common['steps']:,} steps of {first['units']:,} {first['unit']}")
    runs = len(summary.results)
    return " · ".join([*parts, f"{runs} run{'s' * (runs > 1)}"])


def _legend(summary: Summary) -> list[tuple[Any, str]]:
    """How each is drawn, and its final loss."""
    spec = spec_of(summary)
    return [(summary.looks[row.label], loss(row.final, spec)) for row in summary.rows]


def _caption(summary: Summary) -> str:
    gpt = any(run["settings"].get("task") == "gpt" for run in summary.results)
    text = f"Validation loss in nats a {summary.unit.removesuffix('s')}" * gpt or "Validation loss"
    text += ", each optimizer at its own best learning rate" * summary.varied
    several = any(row.seeds > 1 for row in summary.rows)
    text += "; line: mean, band: lowest to highest seed" * several + "."
    flops, counted = summary.flops
    if not flops:
        return text
    how = "as torch counted them" if counted else "estimated as six a weight and token"
    return (
        f"{text} Seconds are those of training, without validation. FLOPs are those of the model, "
        f"forward and backward, {how}; the optimizer’s own are not among them."
    )


def _bar(row: Row, size: float, text: str) -> Bar:
    return name(row.label), [("state", size)], text


def _state_bar(row: Row) -> Bar:
    each = f", {row.state_bytes / row.parameters:.1f} bytes a weight" if row.parameters else ""
    return _bar(row, row.state_bytes, megabytes(row.state_bytes) + each)


def _time_bar(row: Row) -> Bar:
    sizes = [time or 0.0 for time in (row.model_ms, row.optimizer_ms, row.data_ms)]
    pieces = list(zip(PARTS, sizes, strict=True))
    return name(row.label), pieces, " + ".join(map(milliseconds, sizes)) + " ms"


def _shares(bars: Sequence[Bar]) -> list[Bar]:
    """The bars with sizes in per cent of the longest one."""
    longest = max((sum(size for _, size in pieces) for _, pieces, _ in bars), default=0) or 1
    return [
        (who, [(kind, 100 * size / longest) for kind, size in pieces], text)
        for who, pieces, text in bars
    ]


def _common(dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all agree on, in the order of the first; what is not set is left out."""
    first = dicts[0] if dicts else {}
    return {
        key: value
        for key, value in first.items()
        if value is not None and all(each.get(key) == value for each in dicts)
    }


def _definitions(dicts: Sequence[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """Key, value and whether it is long, of what all agree on; long ones come last."""
    found = ((key.replace("_", " "), str(value)) for key, value in _common(dicts).items())
    return sorted(((key, text, len(text) > WIDE) for key, text in found), key=lambda each: each[2])


def _diverged(summary: Summary) -> list[str]:
    texts = []
    for label, groups in summary.by_rate.items():
        for lr, runs in groups.items():
            lost = [run for run in runs if math.isinf(final_loss(run))]
            if lost:
                seeds = ", ".join(str(run["settings"].get("seed", "–")) for run in lost)
                last = max((run["curve"]["step"][-1:] or [0])[0] for run in lost)
                texts.append(f"{name(label)} at lr {rate(lr)}, seed {seeds}: gone by step {last:,}")
    return texts
