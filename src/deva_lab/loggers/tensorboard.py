"""Runs in TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import MissingExtra
from ..results import Outcome, Values
from .subject import Subject


def check() -> None:
    """Raises MissingExtra if it is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("tensorboard", extra="tensorboard") from error


class TensorBoard:
    """A run in a folder that TensorBoard reads."""

    def __init__(self, subject: Subject) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = subject.folder / "tensorboard" / subject.id
        self.last = _last_step(folder) if folder.is_dir() else -1
        self._writer = SummaryWriter(str(folder))
        if self.last < 0:
            about = {"settings": subject.settings, **subject.about, "comparison": subject.group}
            for name, value in about.items():
                self._writer.add_text(name, _code(value), 0)

    def add(self, step: int, values: Values) -> None:
        """Write a point."""
        for name, value in sorted(values.items(), key=lambda item: item[0] == "seconds"):
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, status: str, outcome: Outcome) -> None:
        """Write how it ended."""
        if outcome:
            self._writer.add_text("result", _code(outcome), int(outcome["result/step"]))
        self._writer.close()


def _last_step(folder: Path) -> int:
    """The last step that a folder has a point of; −1 if it has none."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0, "tensors": 1})  # all of the scalars
    events.Reload()
    known = "seconds" in events.Tags()["scalars"]
    return max((event.step for event in events.Scalars("seconds")), default=-1) if known else -1


def _code(value: Any) -> str:
    """JSON, indented as Markdown shows it as it stands."""
    return "\n".join(f"    {line}" for line in json.dumps(value, indent=1).splitlines())
