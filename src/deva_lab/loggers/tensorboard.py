"""Runs in TensorBoard."""

from __future__ import annotations

import json
from typing import Any

from ..errors import MissingExtra
from ..points import Outcome, Values
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
        begun = folder.is_dir()
        self.last = subject.step if begun and subject.step else -1
        # Readers drop what a killed run wrote from here on: it comes again.
        self._writer = SummaryWriter(str(folder), purge_step=self.last + 1 if begun else None)
        if self.last < 0:
            about = {"settings": subject.settings, **subject.about, "comparison": subject.group}
            for name, value in about.items():
                self._writer.add_text(name, _code(value), 0)

    def add(self, step: int, values: Values) -> None:
        """Write a point."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, status: str, outcome: Outcome) -> None:
        """Write how it ended."""
        if outcome:
            self._writer.add_text("result", _code(outcome), int(outcome["result/step"]))
        self._writer.close()


def _code(value: Any) -> str:
    """JSON, indented as Markdown shows it as it stands."""
    return "\n".join(f"    {line}" for line in json.dumps(value, indent=1).splitlines())
