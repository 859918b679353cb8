"""From results to what people look at: the table, the curves and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import charts, report, summary
from .files import write_text
from .progress import Result


def publish(
    results: Sequence[Result],
    folder: Path,
    *,
    baseline: str | None = None,
    command: str | None = None,
) -> str:
    """The table and the path of the page, both curves and page being in the folder."""
    results = list(results)
    charts.draw_curves(results, folder)
    page = folder / "report.html"
    command = command or results[-1]["command"]
    write_text(page, report.render(results, command=command, baseline=baseline))
    return f"{summary.table(summary.summarise(results, baseline))}\n\n{page}"
