"""What a person sees while runs go on: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..run.progress import Event
from ..run.settings import RunSettings


class Display:
    """Where runs are told of: a line an evaluation.

    Args:
        out: What the lines are written to; None, for ranks of which another one speaks, shows none.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out
        self.runs: dict[str, RunSettings] = {}

    def say(self, text: str) -> None:
        """Show a line."""
        if self.out is not None:
            print(text, file=self.out, flush=True)

    def begin(self, runs: Sequence[RunSettings], done: int) -> None:
        """Get ready for these runs, besides those that are done already."""
        self.runs = {run.id: run for run in runs}
        if done:
            self.say(f"{done} runs are done already, {len(runs)} to go")

    def event(self, event: Event) -> None:
        """Show how far a run has come."""
        if event.evaluated or event.status == "stopped":
            self.say(line(self.runs[event.id], event))

    def end(self) -> None:
        """Leave things tidy."""


def display() -> Display:
    """The live display on a terminal, plain lines where there is none."""
    return Live() if sys.stdout.isatty() else Display(sys.stdout)


def line(run: RunSettings, event: Event) -> str:
    """An event as a line of text."""
    steps = f"step {event.step:>{len(str(run.steps))}}/{run.steps}"
    told = "" if event.status == "running" else f"  {event.status}"
    return f"{name(run):<50} {steps}  {_so_far(event)}{told}"


def name(run: RunSettings) -> str:
    """What tells a run from others."""
    return f"{run.optimizer}  lr {run.lr:g}  seed {run.seed}"


def _so_far(event: Event) -> str:
    return f"loss {loss_text(event.loss)}  {duration(event.seconds)}"


def loss_text(loss: float | None) -> str:
    """A loss in a few digits."""
    return "–" if loss is None else f"{loss:.4f}" if abs(loss) < 1000 else f"{loss:.3e}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(9.44), duration(59.97), duration(75), duration(3725)
    ('9.4 s', '1 min 00 s', '1 min 15 s', '1 h 02 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


class Live(Display):
    """A bar for each run that goes on and one for all; a run that has ended is a line above."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[str, TaskID] = {}
        self.gone: dict[str, int] = {}  # steps of each run that need not be waited for
        self.ended = 0
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(compact=True),
            refresh_per_second=4,
        )

    def say(self, text: str) -> None:
        """Print it above the bars."""
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, runs: Sequence[RunSettings], done: int) -> None:
        """Start to draw."""
        super().begin(runs, done)
        self.ended = 0
        self.all = self.progress.add_task("all", total=sum(run.steps for run in runs), told="")
        self.progress.start()

    def event(self, event: Event) -> None:
        """Show it."""
        run, progress = self.runs[event.id], self.progress
        if event.id not in self.tasks:
            self.tasks[event.id] = progress.add_task(name(run), total=run.steps, told="")
        progress.update(self.tasks[event.id], completed=event.step, told=_so_far(event))
        self.gone[event.id] = event.step
        if event.status != "running":
            progress.remove_task(self.tasks.pop(event.id))
            self.gone[event.id] = run.steps  # one that diverged has no more to go
            self.ended += 1
            self.say(line(run, event))
        told = f"{self.ended} of {len(self.runs)} runs"
        progress.update(self.all, completed=sum(self.gone.values()), told=told)

    def end(self) -> None:
        """Draw for the last time."""
        self.progress.stop()
        for task in self.progress.task_ids:
            self.progress.remove_task(task)
        self.tasks, self.gone = {}, {}
