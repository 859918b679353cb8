"""From results to what people look at: the table, the curves and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .comparison import Comparison
from .progress import Result


def publish(
    results: Sequence[Result],
    folder: Path,
    *,
    baseline: str | None = None,
    command: str | None = None,
) -> str:
    """The table and the path of the page, both curves and page being in the folder."""
    comparison = Comparison(results, baseline=baseline, command=command)
    page = comparison.write(folder)
    return f"{comparison.table()}\n\n{page}"
