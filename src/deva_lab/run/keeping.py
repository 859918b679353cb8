"""When a checkpoint is due, and where it goes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from .progress import Progress


@dataclass
class Keeping:
    """Where checkpoints go, and when one is due."""

    folder: Path
    every_steps: int | None = None
    every_seconds: float = 60.0
    last: float = 0.0

    def __post_init__(self) -> None:
        self.last = time.monotonic()

    def due(self, progress: Progress) -> bool:
        """Whether it is time: the steps are full, the seconds are over, or the run ends."""
        full = self.every_steps is not None and progress.step % self.every_steps == 0
        over = time.monotonic() - self.last >= self.every_seconds
        if not (full or over or progress.status != "running"):
            return False
        self.last = time.monotonic()
        return True
