"""The comparison of optimizers: runs that ended, as a table, a figure and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import write_text
from ..progress import Result
from ..results.summary import Summary
from . import charts, findings, report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Comparison(Summary):
    """Runs of several optimizers on one task, each optimizer judged at its own best learning rate.

    Everything is computed once, when it is made. A run that failed is a row of the table with its
    error, and is in no chart. In a notebook a comparison shows itself as its table and its figure.

    Args:
        results: The runs, as lines of results.jsonl have them.
        baseline: The label whose final loss is the target; None for AdamW, or else the first.
        command: What was typed, for the page; None for that of the last run.
        title: The title of the page.

    Raises:
        UsageError: If there is no run with the label of the baseline.
    """

    def __init__(
        self,
        results: Sequence[Result],
        *,
        baseline: str | None = None,
        command: str | None = None,
        title: str | None = None,
    ) -> None:
        super().__init__(results, baseline)
        last = next((str(run.get("command") or "") for run in reversed(results)), "")
        self.command = last if command is None else command
        self.title = title

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The table as aligned text, best first, with notes below."""
        return findings.table(self)

    def markdown(self) -> str:
        """The table as Markdown."""
        return findings.markdown(self)

    def plot(self) -> Figure:
        """The loss along the way, and over the learning rate where it varied."""
        return charts.figure_of(self)

    def report(self, path: str | Path = "report.html") -> Path:
        """The path of the page, which has been written: one file that stands alone."""
        path = Path(path)
        write_text(path, self.page())
        return path

    def page(self) -> str:
        """The page as HTML."""
        return report.page(self, command=self.command, title=self.title)

    def publish(self, folder: Path) -> str:
        """The table and the path of the page, which is in the folder with the curves beside it."""
        charts.write_figure(self, folder)
        return f"{self.table()}\n\n{self.report(folder / 'report.html')}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return report.notebook(self)
