"""What can be trained: a model, batches that depend on the seed alone, and a validation loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from torch import Tensor, nn

from . import language, quadratic, vision
from .errors import UsageError, unknown
from .ranks import ALONE, Ranks
from .settings import RunSettings

Batch = tuple[Tensor, ...]
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


class Preset(NamedTuple):
    """What a size has unless the user says otherwise."""

    steps: int
    batch: int
    vocabulary: int | str = 0


class Kind(NamedTuple):
    """A kind of task."""

    about: str
    data: str  # the data that it has unless the user says otherwise
    presets: Mapping[str, Preset]  # by size
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


TASKS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "gpt": Kind(
            "a GPT of the paper's family on text",
            "python",
            {
                "tiny": Preset(steps=200, batch=16, vocabulary=256),
                "small": Preset(steps=200, batch=8, vocabulary=512),
                "small-wide": Preset(steps=200, batch=8, vocabulary=512),
                "small-deep": Preset(steps=200, batch=8, vocabulary=512),
                "medium": Preset(steps=2000, batch=16, vocabulary=4096),
                "large": Preset(steps=5000, batch=32, vocabulary="gpt2"),
                "paper": Preset(steps=28_483, batch=48, vocabulary="gpt2"),
            },
            _check_text,
            _make_text,
        ),
        "resnet": Kind(
            "ResNet-20 on images",
            vision.DEFAULT_DATA,
            {size: Preset(steps=400, batch=128) for size in vision.SIZES["resnet"]},
            _check_images,
            _make_images,
            whole_batch=True,
        ),
        "vit": Kind(
            "a vision transformer on images",
            vision.DEFAULT_DATA,
            {size: Preset(steps=400, batch=128) for size in vision.SIZES["vit"]},
            _check_images,
            _make_images,
        ),
        "mlp": Kind(
            "a multilayer perceptron on images",
            vision.DEFAULT_DATA,
            {size: Preset(steps=400, batch=128) for size in vision.SIZES["mlp"]},
            _check_images,
            _make_images,
        ),
        "quadratic": Kind(
            "the paper's trace quadratic, a 9 × 9 matrix with noisy gradients",
            "none",
            {size: Preset(steps=1000, batch=1) for size in quadratic.SIZES},
            _check_quadratic,
            _make_quadratic,
        ),
    }
)


def kind_of(task: str) -> Kind:
    """The kind of a task by name."""
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    return TASKS[task]


def preset_of(task: str, size: str) -> Preset:
    """What a size of a task has unless the user says otherwise."""
    presets = kind_of(task).presets
    if size not in presets:
        raise unknown(f"size of {task}", size, presets)
    return presets[size]


def check_task(settings: RunSettings) -> None:
    """Raises UsageError for what would fail later: a missing file, an unknown name."""
    preset_of(settings.task, settings.size)
    kind_of(settings.task).check(settings)


def make_task(settings: RunSettings, report: Report) -> Task:
    """The task of a run; `report` hears what takes long."""
    return kind_of(settings.task).make(settings, report)
