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
from .curves import Curve, loss_range, mean_curve, rate_range
from .findings import details, headline
from .palette import Style, styles
from .progress import Result
from .summary import best_runs, sensitivity, summarise
from .svg import Axis, Line, line_chart
from .tables import Row, notes
from .wording import loss_format

TITLE = "Comparison of optimizers"


def render(
    results: Sequence[Result],
    *,
    command: str,
    title: str | None = None,
    baseline: str | None = None,
) -> str:
    """The page as HTML, with styles, scripts and data inside and nothing to fetch."""
    rows = summarise(results, baseline)
    looks = styles(row.label for row in rows)
    chosen = best_runs(results)
    unit = rows[0].unit if rows else "units"
    return Template(part("report.html")).substitute(
        title=escape(title or TITLE),
        css=part("report.css"),
        theme=part("theme.js"),
        js=part("report.js"),
        headline=fragments.unbroken(headline(rows)),
        details=f"<p>{fragments.unbroken(' '.join(details(rows)))}</p>",
        facts=escape(fragments.facts(results)),
        table=fragments.table(rows),
        notes=fragments.items(notes(rows), "notes"),
        unit=escape(unit),
        legend=fragments.legend(rows, looks),
        curves=_still_curves(rows, chosen, looks, unit),
        caption=escape(_caption(results, rows)),
        rates=_rates(results, rows, looks),
        costs=fragments.costs(rows, chosen),
        made=fragments.made(results, command),
        data=script_json(page_data(results, rows, looks)),
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


def page_data(
    results: Sequence[Result], rows: Sequence[Row], looks: dict[str, Style]
) -> dict[str, Any]:
    """What the script of the page draws from."""
    chosen = best_runs(results)
    grid = sensitivity(results)
    curves = {row.label: mean_curve(chosen[row.label]) for row in rows}
    low, high, logarithmic = loss_range(list(curves.values()))
    spec = loss_format([row.final for row in rows], [row.spread for row in rows])
    return {
        "unit": rows[0].unit if rows else "units",
        "decimals": None if spec.endswith("e") else int(spec[1]),
        "range": {"low": low, "high": high, "log": logarithmic},
        "rateRange": rate_range([loss for points in grid.values() for _, loss, _ in points]),
        "series": [
            {
                **asdict(looks[row.label]),
                "final": row.final if math.isfinite(row.final) else None,
                "diverged": math.isinf(row.final),
                "mean": _short(asdict(curves[row.label])),
                "runs": [_short(asdict(mean_curve([run]))) for run in chosen[row.label]],
                "rates": [
                    (lr, loss if math.isfinite(loss) else None, spread)
                    for lr, loss, spread in grid[row.label]
                ],
            }
            for row in rows
        ],
    }


def _short(curve: dict[str, list[float]]) -> dict[str, list[float]]:
    """A curve with six digits a number: more than a screen has, a third of the bytes."""
    return {key: [float(f"{value:.6g}") for value in values] for key, values in curve.items()}


def _still_curves(
    rows: Sequence[Row], chosen: dict[str, list[Result]], looks: dict[str, Style], unit: str
) -> str:
    curves: dict[str, Curve] = {row.label: mean_curve(chosen[row.label]) for row in rows}
    low, high, logarithmic = loss_range(list(curves.values()))
    longest = max((max(curve.units, default=0) for curve in curves.values()), default=0)
    lines = [
        Line(looks[label], curve.units, curve.loss, curve.low, curve.high)
        for label, curve in curves.items()
    ]
    across = Axis(unit, 0, longest or 1)
    up = Axis("loss", low, high, logarithmic)
    return line_chart(lines, across, up, f"Validation loss against {unit}")


def _caption(results: Sequence[Result], rows: Sequence[Row]) -> str:
    gpt = any(result["settings"].get("task") == "gpt" for result in results)
    unit = rows[0].unit if rows else "units"
    text = f"Validation loss in nats a {unit.removesuffix('s')}" if gpt else "Validation loss"
    text += ", each optimizer at its own best learning rate" * any(row.rates > 1 for row in rows)
    text += "; line: mean, band: lowest to highest seed" * any(row.seeds > 1 for row in rows)
    return f"{text}."


def _rates(results: Sequence[Result], rows: Sequence[Row], looks: dict[str, Style]) -> str:
    """The section on learning rates; nothing where each optimizer had one."""
    grid = sensitivity(results)
    if not any(row.rates > 1 for row in rows):
        return ""
    tried = sorted({lr for points in grid.values() for lr, _, _ in points})
    low, high = rate_range([loss for points in grid.values() for _, loss, _ in points])
    lines = [_rate_line(grid[row.label], looks[row.label]) for row in rows]
    across = Axis("learning rate", tried[0] / 1.15, tried[-1] * 1.15, True, tried)
    name = "Final validation loss against the learning rate"
    return fragments.rates(line_chart(lines, across, Axis("loss", low, high), name), rows, looks)


def _rate_line(points: Sequence[tuple[float, float, float | None]], look: Style) -> Line:
    shown = [(lr, loss) for lr, loss, _ in points if math.isfinite(loss)]
    lost = [lr for lr, loss, _ in points if math.isinf(loss)]
    return Line(look, [lr for lr, _ in shown], [loss for _, loss in shown], crosses=lost)
