"""What a person sees while runs go on: a bar and a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from .errors import MissingExtra
from .progress import Event
from .settings import RunSettings

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS: Final = 16  # of the live table at most


class Display(Protocol):
    """Where runs are told of."""

    def say(self, text: str) -> None:
        """Show a line."""

    def begin(self, runs: Sequence[RunSettings], done: int) -> None:
        """Get ready for these runs, besides those that are done already."""

    def event(self, event: Event) -> None:
        """Show how far a run has come."""

    def end(self) -> None:
        """Leave things tidy."""


def display() -> Display:
    """The live display on a terminal, plain lines where there is none."""
    return Live() if sys.stdout.isatty() else Lines(sys.stdout)


class Lines:
    """A line an evaluation."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.runs: dict[str, RunSettings] = {}

    def say(self, text: str) -> None:
        """Print it."""
        print(text, file=self.out, flush=True)

    def begin(self, runs: Sequence[RunSettings], done: int) -> None:
        """Remember the runs."""
        self.runs = {run.id: run for run in runs}
        if done:
            self.say(f"{done} runs are done already, {len(runs)} to go")

    def event(self, event: Event) -> None:
        """Print the evaluations."""
        if event.evaluated or event.status == "stopped":
            self.say(line(self.runs[event.id], event))

    def end(self) -> None:
        """Nothing to tidy."""


class Silent:
    """Nothing: another rank tells of the run."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def begin(self, runs: Sequence[RunSettings], done: int) -> None:
        """Show nothing."""

    def event(self, event: Event) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Nothing to tidy."""


def line(run: RunSettings, event: Event) -> str:
    """An event as a line of text."""
    steps = f"step {event.step:>{len(str(run.steps))}}/{run.steps}"
    told = "" if event.status == "running" else f"  {event.status}"
    name = f"{run.optimizer}  lr {run.lr:g}  seed {run.seed}"
    return f"{name:<50} {steps}  loss {loss_text(event.loss)}  {duration(event.seconds)}{told}"


def loss_text(loss: float | None) -> str:
    """A loss in a few digits."""
    return "–" if loss is None else f"{loss:.4f}" if abs(loss) < 1000 else f"{loss:.3e}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(9.44), duration(75), duration(3725)
    ('9.4 s', '1 min 15 s', '1 h 02 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


class Live:
    """A bar over all steps and a row a run, kept up to date in place."""

    def __init__(self) -> None:
        try:
            from rich.live import Live as RichLive
        except ModuleNotFoundError as error:
            raise MissingExtra("rich", extra="lab") from error
        self.runs: dict[str, RunSettings] = {}
        self.last: dict[str, Event] = {}
        self.started = time.monotonic()
        self.live = RichLive(get_renderable=self._drawn, refresh_per_second=4)

    def say(self, text: str) -> None:
        """Print it above the table."""
        self.live.console.print(text, highlight=False, markup=False)

    def begin(self, runs: Sequence[RunSettings], done: int) -> None:
        """Start to draw."""
        self.runs = {run.id: run for run in runs}
        self.started = time.monotonic()
        if done:
            self.say(f"{done} runs are done already, {len(runs)} to go")
        self.live.start()

    def event(self, event: Event) -> None:
        """Take it in; the next drawing shows it."""
        self.last[event.id] = event

    def end(self) -> None:
        """Draw for the last time."""
        self.live.stop()

    def _drawn(self) -> RenderableType:
        from rich.console import Group

        return Group(self._table(), self._bar())

    def _table(self) -> RenderableType:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("optimizer")
        for name in ("lr", "seed", "step", "validation loss", "time"):
            table.add_column(name, justify="right")
        table.add_column("")
        for id_ in self._shown():
            run, event = self.runs[id_], self.last[id_]
            table.add_row(
                run.optimizer,
                f"{run.lr:g}",
                str(run.seed),
                f"{event.step}/{run.steps}",
                loss_text(event.loss),
                duration(event.seconds),
                "" if event.status == "running" else event.status,
            )
        return table

    def _shown(self) -> list[str]:
        """What is running, and the best of what has ended."""
        running = [i for i, event in self.last.items() if event.status == "running"]
        ended = [i for i, event in self.last.items() if event.status != "running"]
        ended.sort(key=lambda i: (self.last[i].loss is None, self.last[i].loss))
        return running + ended[: max(1, ROWS - len(running))]

    def _bar(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        total = sum(run.steps for run in self.runs.values())
        # A run that diverged or failed has no more steps to go.
        gone = sum(
            self.runs[i].steps if event.status in ("diverged", "failed") else event.step
            for i, event in self.last.items()
        )
        elapsed = time.monotonic() - self.started
        left = f", {duration(elapsed * (total - gone) / gone)} to go" if gone else ""
        ended = sum(event.status != "running" for event in self.last.values())
        row = Table.grid(padding=(0, 2))
        row.add_row(
            ProgressBar(total=total, completed=gone, width=40),
            f"{ended} of {len(self.runs)} runs, {duration(elapsed)}{left}",
        )
        return row
