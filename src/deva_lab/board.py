"""Runs in TensorBoard."""

from __future__ import annotations

from pathlib import Path

from .errors import MissingExtra
from .progress import Event
from .training import Watch


def check_tensorboard() -> None:
    """Raises UsageError if TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("tensorboard", extra="tensorboard") from error


def logged(watch: Watch, folder: Path) -> Watch:
    """A watch that also writes the evaluations to a folder that TensorBoard reads."""
    check_tensorboard()
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = SummaryWriter(str(folder))

    def watch_and_write(event: Event) -> None:
        if event.evaluated and event.loss is not None:
            writer.add_scalar("loss/validation", event.loss, event.step)
            writer.add_scalar("seconds", event.seconds, event.step)
        if event.status != "running":
            writer.close()
        watch(event)

    return watch_and_write
