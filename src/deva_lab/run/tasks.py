"""What can be trained: a model, batches that depend on the seed alone, and a validation loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from torch import Tensor, nn

from .. import language, quadratic, vision
from ..errors import UsageError, unknown
from . import user_tasks
from .presets import preset_of
from .ranks import ALONE, Ranks
from .settings import RunSettings

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


class Kind(NamedTuple):
    """What is done for a kind of task; `presets.py` says what it is and which sizes it has."""

    check: Callable[[RunSettings], None]
    make: Callable[[RunSettings, Report], Task]
    whole_batch: bool = False  # whether its model must see a batch as a whole, for its norms


def _check_text(settings: RunSettings) -> None:
    language.check(settings.data, settings.vocabulary)


def _make_text(settings: RunSettings, report: Report) -> Task:
    return language.TextTask.load(settings, report=report)


def _check_images(settings: RunSettings) -> None:
    vision.check_image_task(settings.task, settings.size, settings.data)


def _make_images(settings: RunSettings, report: Report) -> Task:
    return vision.image_task(
        settings.task,
        size=settings.size,
        data=settings.data,
        seed=settings.seed,
        batch=settings.batch,
        report=report,
    )


def _check_quadratic(settings: RunSettings) -> None:
    if settings.data != "none":
        raise UsageError(f"the quadratic has no data, got --data {settings.data}: leave it out")


def _make_quadratic(settings: RunSettings, report: Report) -> Task:
    return quadratic.Quadratic(settings.size, seed=settings.seed, batch=settings.batch)


def _check_user(settings: RunSettings) -> None:
    """All was seen when the task was planned."""


def _make_user(settings: RunSettings, report: Report) -> Task:
    return user_tasks.make(settings)


_USER: Final = Kind(_check_user, _make_user)
_IMAGES: Final = Kind(_check_images, _make_images)
TASKS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "gpt": Kind(_check_text, _make_text),
        "resnet": Kind(_check_images, _make_images, whole_batch=True),
        "vit": _IMAGES,
        "mlp": _IMAGES,
        "quadratic": Kind(_check_quadratic, _make_quadratic),
    }
)


def kind_of(settings: RunSettings) -> Kind:
    """The kind of the task of a run."""
    if settings.task_place:
        return _USER
    if settings.task not in TASKS:
        raise unknown("task", settings.task, TASKS)
    return TASKS[settings.task]


def check_task(settings: RunSettings) -> None:
    """Raises UsageError for what would fail later: a missing file, an unknown name."""
    if not settings.task_place:
        preset_of(settings.task, settings.size)
    kind_of(settings).check(settings)


def make_task(settings: RunSettings, report: Report) -> Task:
    """The task of a run; `report` hears what takes long."""
    return kind_of(settings).make(settings, report)
