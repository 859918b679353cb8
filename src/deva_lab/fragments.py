"""Pieces of the report as HTML. Every text from a result is escaped here."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from .curves import final_loss
from .findings import columns
from .palette import Style, name
from .progress import Result
from .summary import Row, Summary
from .svg import series_style
from .wording import count, loss, loss_format, megabytes, milliseconds, rate

PARTS = {"model": "forward and backward", "optimizer": "optimizer", "data": "data"}
WIDE = 18  # letters of a value that needs a line of its own


def unbroken(text: str) -> str:
    """The text, escaped, in which no line ends within a number."""
    text = text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")
    return escape(re.sub(r"(\de-)(?=\d)", "\\1\u2060", text))


def items(texts: Sequence[str], kind: str) -> str:
    """A list of texts; nothing where there are none."""
    entries = "".join(f"<li>{unbroken(text)}</li>" for text in texts)
    return f'<ul class="{kind}">{entries}</ul>' if texts else ""


def facts(results: Sequence[Result]) -> str:
    """One line on what was trained: task, data, size, length."""
    if not results:
        return ""
    first, common = results[0], _common([result["settings"] for result in results])
    parts = [str(common[key]) for key in ("task", "size", "data") if common.get(key)]
    parts.append(f"{count(first['parameters'])} parameters")
    if "steps" in common:
        parts.append(f"{common['steps']:,} steps of {first['units']:,} {first['unit']}")
    parts.append(f"{len(results)} run{'s' * (len(results) > 1)}")
    return " · ".join(parts)


def table(summary: Summary) -> str:
    """The table of the comparison, best first."""
    (_, names), *shown = columns(summary)
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text, _ in shown)
    body = "".join(
        f'<tr{" class=first" if index == 0 else ""}><th scope="row">{escape(name(label))}</th>'
        + "".join(f"<td>{_faint_spread(cells[index])}</td>" for _, cells in shown)
        + "</tr>"
        for index, label in enumerate(names)
    )
    return (
        f'<table><thead><tr><th scope="col">optimizer</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def legend(rows: Sequence[Row], looks: dict[str, Style]) -> str:
    """The names with their lines; the script makes them switches and writes values into them."""
    spec = loss_format([row.final for row in rows], [row.spread for row in rows])
    entries = "".join(
        f"<li {series_style(looks[row.label])}>"
        '<button type="button" aria-pressed="true" disabled>'
        f"{_swatch(looks[row.label])}<span>{escape(name(row.label))}</span>"
        f'<span class="value">{loss(row.final, spec)}</span></button></li>'
        for row in rows
    )
    return f'<ul class="legend" aria-label="Optimizers shown">{entries}</ul>'


def rates(chart: str, rows: Sequence[Row], looks: dict[str, Style]) -> str:
    """The section around the chart over learning rates."""
    names = "".join(
        f"<li {series_style(looks[row.label])}>{_swatch(looks[row.label])}"
        f"<span>{escape(name(row.label))}</span></li>"
        for row in rows
    )
    return (
        '<section aria-labelledby="heading-rates"><h2 id="heading-rates">Learning rates</h2>'
        f'<figure><div class="plot" data-chart="rates">{chart}</div>'
        f'<ul class="legend still">{names}</ul><figcaption>Final validation '
        "loss at each rate, with the standard deviation over seeds; a cross is a rate at which a "
        "run diverged.</figcaption></figure></section>"
    )


def costs(rows: Sequence[Row]) -> str:
    """Bars of the time of a step, split, and of the memory of the optimizer's state."""
    key = "".join(f'<li><span class="{part}"></span>{text}</li>' for part, text in PARTS.items())
    timed = [row for row in rows if row.model_ms is not None]
    times = f"<h3>Time of a step</h3><ul class=key>{key}</ul>{_times(timed)}" if timed else ""
    states = _bars(
        [
            (row, [("state", row.state_bytes)], f"{megabytes(row.state_bytes)}{_each(row)}")
            for row in rows
        ]
    )
    return f"{times}<h3>State of the optimizer</h3>{states}{_peaks(rows)}"


def made(summary: Summary, command: str) -> str:
    """The command, the settings, the versions and the machine, and the runs that diverged."""
    results = summary.results
    settings = _common([result["settings"] for result in results])
    environment = _common([result.get("environment") or {} for result in results])
    blocks = [f"<pre><code>{escape(command)}</code></pre>" if command else ""]
    for title, values in (("Settings", settings), ("Versions and machine", environment)):
        if values:
            blocks.append(f"<h3>{title}</h3>{_definitions(values)}")
    if lost := _diverged(summary):
        blocks.append(f"<h3>Runs that diverged</h3>{items(lost, 'notes')}")
    return "".join(blocks)


def _faint_spread(cell: str) -> str:
    value, mark, spread = cell.partition(" ± ")
    return f'{escape(value)} <span class="of">± {escape(spread)}</span>' if mark else escape(cell)


def _swatch(look: Style) -> str:
    dash = " ".join(map(str, look.dash))
    return (
        '<svg class="swatch" viewBox="0 0 24 12" aria-hidden="true"><line x1="0" x2="24" y1="6" '
        f'y2="6" stroke-width="{look.width + 0.4}" stroke-dasharray="{dash}"/></svg>'
    )


def _each(row: Row) -> str:
    return f", {row.state_bytes / row.parameters:.1f} bytes a weight" if row.parameters else ""


def _times(rows: Sequence[Row]) -> str:
    bars = []
    for row in rows:
        times = [
            (part, time or 0.0)
            for part, time in zip(PARTS, (row.model_ms, row.optimizer_ms, row.data_ms), strict=True)
        ]
        whole = " + ".join(milliseconds(time) for _, time in times)
        bars.append((row, times, f"{whole} ms"))
    return _bars(bars)


def _peaks(rows: Sequence[Row]) -> str:
    if not any(row.peak_bytes for row in rows):
        return ""
    bars = [(row, [("state", float(row.peak_bytes))], megabytes(row.peak_bytes)) for row in rows]
    return f"<h3>Peak memory of the device</h3>{_bars(bars)}"


def _bars(bars: Sequence[tuple[Row, list[tuple[str, float]], str]]) -> str:
    longest = max((sum(size for _, size in parts) for _, parts, _ in bars), default=0) or 1
    return f'<div class="bars">{"".join(_bar(*bar, longest) for bar in bars)}</div>'


def _bar(row: Row, parts: list[tuple[str, float]], text: str, longest: float) -> str:
    pieces = "".join(
        f'<span class="{kind}" style="width:{100 * size / longest:.2f}%"></span>'
        for kind, size in parts
    )
    return (
        f'<div class="one"><span class="who">{escape(name(row.label))}</span>'
        f'<span class="bar" aria-hidden="true">{pieces}</span>'
        f'<span class="much">{escape(text)}</span></div>'
    )


def _common(dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all agree on, in the order of the first; what is not set is left out."""
    first = dicts[0] if dicts else {}
    return {
        key: value
        for key, value in first.items()
        if value is not None and all(each.get(key) == value for each in dicts)
    }


def _definitions(values: dict[str, Any]) -> str:
    texts = {str(key).replace("_", " "): str(value) for key, value in values.items()}
    entries = "".join(
        f"<div{' class=wide' if len(text) > WIDE else ''}>"
        f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd></div>"
        for key, text in sorted(texts.items(), key=lambda item: len(item[1]) > WIDE)
    )
    return f"<dl>{entries}</dl>"


def _diverged(summary: Summary) -> list[str]:
    texts = []
    for label, groups in summary.by_rate.items():
        for lr, runs in groups.items():
            lost = [run for run in runs if math.isinf(final_loss(run))]
            if not lost:
                continue
            seeds = ", ".join(str(run["settings"].get("seed", "–")) for run in lost)
            last = max((run["curve"]["step"][-1:] or [0])[0] for run in lost)
            texts.append(f"{name(label)} at lr {rate(lr)}, seed {seeds}: gone by step {last:,}")
    return texts
