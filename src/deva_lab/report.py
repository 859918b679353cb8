"""The report: one HTML file that stands alone, with the finding, the table and the charts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from . import fragments
from .curves import loss_range, mean_curve, rate_range
from .findings import details, headline, notes, spec_of
from .palette import Style
from .summary import Point, Summary
from .svg import Axis, Line, line_chart

TITLE = "Comparison of optimizers"


def render(summary: Summary, *, command: str, title: str | None = None) -> str:
    """The page as HTML, with styles, scripts and data inside and nothing to fetch."""
    rows = summary.rows
    return Template(part("report.html")).substitute(
        title=escape(title or TITLE),
        css=part("report.css"),
        theme=part("theme.js"),
        js=part("report.js"),
        headline=fragments.unbroken(headline(summary)),
        details=f"<p>{fragments.unbroken(' '.join(details(summary)))}</p>",
        facts=escape(fragments.facts(summary.results)),
        table=fragments.table(summary),
        notes=fragments.items(notes(summary), "notes"),
        unit=escape(summary.unit),
        legend=fragments.legend(rows, summary.looks),
        curves=_still_curves(summary),
        caption=escape(_caption(summary)),
        rates=_rates(summary),
        costs=fragments.costs(rows),
        made=fragments.made(summary, command),
        data=script_json(page_data(summary)),
    )


def part(name: str) -> str:
    """A file that pages are made of."""
    return files("deva_lab").joinpath("page").joinpath(name).read_text("utf-8")


def script_json(value: object) -> str:
    r"""JSON that ends no script element and starts no comment, whatever text is in it.

    >>> script_json("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(summary: Summary) -> dict[str, Any]:
    """What the script of the page draws from."""
    grid, curves, looks = summary.sensitivity, summary.curves, summary.looks
    low, high, logarithmic = loss_range(list(curves.values()))
    spec = spec_of(summary)
    return {
        "unit": summary.unit,
        "decimals": None if spec.endswith("e") else int(spec[1]),
        "range": {"low": low, "high": high, "log": logarithmic},
        "rateRange": rate_range([loss for points in grid.values() for _, loss, _ in points]),
        "series": [
            {
                **asdict(looks[row.label]),
                "final": row.final if math.isfinite(row.final) else None,
                "diverged": row.diverged > 0,
                "mean": _short(asdict(curves[row.label])),
                "runs": [_short(asdict(mean_curve([run]))) for run in summary.chosen[row.label]],
                "rates": [
                    (lr, loss if math.isfinite(loss) else None, spread)
                    for lr, loss, spread in grid[row.label]
                ],
            }
            for row in summary.rows
        ],
    }


def _short(curve: dict[str, list[float]]) -> dict[str, list[float]]:
    """A curve with six digits a number: more than a screen has, a third of the bytes."""
    return {key: [float(f"{value:.6g}") for value in values] for key, values in curve.items()}


def _still_curves(summary: Summary) -> str:
    curves, looks, unit = summary.curves, summary.looks, summary.unit
    low, high, logarithmic = loss_range(list(curves.values()))
    longest = max((max(curve.units, default=0) for curve in curves.values()), default=0)
    lines = [
        Line(looks[label], curve.units, curve.loss, curve.low, curve.high)
        for label, curve in curves.items()
    ]
    across = Axis(unit, 0, longest or 1)
    up = Axis("loss", low, high, logarithmic)
    return line_chart(lines, across, up, f"Validation loss against {unit}")


def _caption(summary: Summary) -> str:
    gpt = any(run["settings"].get("task") == "gpt" for run in summary.results)
    one = summary.unit.removesuffix("s")
    text = f"Validation loss in nats a {one}" if gpt else "Validation loss"
    text += ", each optimizer at its own best learning rate" * summary.varied
    several = any(row.seeds > 1 for row in summary.rows)
    return text + "; line: mean, band: lowest to highest seed" * several + "."


def _rates(summary: Summary) -> str:
    """The section on learning rates; nothing where each optimizer had one."""
    grid, rows, looks = summary.sensitivity, summary.rows, summary.looks
    if not summary.varied:
        return ""
    tried = sorted({lr for points in grid.values() for lr, _, _ in points})
    low, high = rate_range([loss for points in grid.values() for _, loss, _ in points])
    lines = [_rate_line(grid[row.label], looks[row.label]) for row in rows]
    across = Axis("learning rate", tried[0] / 1.15, tried[-1] * 1.15, True, tried)
    name = "Final validation loss against the learning rate"
    return fragments.rates(line_chart(lines, across, Axis("loss", low, high), name), rows, looks)


def _rate_line(points: Sequence[Point], look: Style) -> Line:
    shown = [(lr, loss) for lr, loss, _ in points if math.isfinite(loss)]
    lost = [lr for lr, loss, _ in points if math.isinf(loss)]
    return Line(look, [lr for lr, _ in shown], [loss for _, loss in shown], crosses=lost)


def notebook(summary: Summary) -> str:
    """The finding, the table and the chart of losses, for the output of a cell."""
    rows = fragments.table(summary), fragments.items(notes(summary), "notes")
    chart = _still_curves(summary) if summary.rows else ""
    return f"<p><strong>{fragments.unbroken(headline(summary))}</strong></p>{''.join(rows)}{chart}"
