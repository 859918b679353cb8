"""What can be trained: a model, batches that depend on the seed alone, and a validation loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from .. import language, quadratic, vision
from ..errors import UsageError
from . import user_tasks
from .ranks import ALONE, Ranks
from .settings import RunSettings, preset_of

Batch: TypeAlias = Any  # the laboratory's own are tuples of tensors
Report = Callable[[str], None]


class Task(Protocol):
    """What a run trains."""

    @property
    def unit(self) -> str:
        """What a batch is counted in: "tokens", "images" or "samples"."""

    @property
    def units(self) -> int:
        """How many of them a batch has."""

    def model(self) -> nn.Module:
        """The model, initialised from the seed alone."""

    def batch(self, step: int) -> Batch:
        """The batch of a step, a function of the seed and of the step."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""

    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        """The "loss" on data that is not trained on, and what else there is to know.

        Each rank looks at its part of every chunk of the data, and all know the outcome.
        """


def check_task(settings: RunSettings) -> None:
    """Raises UsageError for what would fail later: a missing file, an unknown name."""
    if settings.task_place:
        return  # all was seen when the task of the user was planned
    preset_of(settings.task, settings.size)
    if settings.task == "gpt":
        language.check(settings.data, settings.vocabulary)
    elif settings.task != "quadratic":
        vision.check_image_task(settings.task, settings.size, settings.data)
    elif settings.data != "none":
        raise UsageError(f"the quadratic has no data, got --data {settings.data}: leave it out")


def make_task(settings: RunSettings, report: Report) -> Task:
    """The task of a run; `report` hears what takes long."""
    if settings.task_place:
        return user_tasks.make(settings)
    if settings.task == "gpt":
        return language.TextTask.load(settings, report=report)
    if settings.task == "quadratic":
        return quadratic.Quadratic(settings.size, seed=settings.seed, batch=settings.batch)
    return vision.image_task(
        settings.task,
        size=settings.size,
        data=settings.data,
        seed=settings.seed,
        batch=settings.batch,
        report=report,
    )
