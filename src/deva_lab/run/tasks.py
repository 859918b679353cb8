"""What can be trained: a model, batches that depend on the seed alone, and a validation loss.

There are tasks of the laboratory, and those of users, whose four functions docs/your-model.md has.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .. import language, quadratic, vision
from ..data import Report
from ..data.corpus import check_corpus, load_corpus
from ..data.images import load_images
from ..errors import UsageError
from ..vision import evaluating, mixed
from .environment import seed_all, seeded
from .ranks import ALONE, Ranks
from .settings import Preset, RunSettings, preset_of
from .user_source import Source, find, load

Batch: TypeAlias = Any  # the laboratory's own are tuples of tensors


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
        check_corpus(settings.data, settings.vocabulary)
    elif settings.task != "quadratic":
        vision.check_image_task(settings.task, settings.size, settings.data)
    elif settings.data != "none":
        raise UsageError(f"the quadratic has no data, got --data {settings.data}: leave it out")


def make_task(settings: RunSettings, report: Report) -> Task:
    """The task of a run; `report` hears what takes long."""
    if settings.task_place:
        return UserTask(
            settings.task_place,
            name=settings.task,
            seed=settings.seed,
            batch_size=settings.batch,
            device=settings.device,
        )
    size, seed, batch = settings.size, settings.seed, settings.batch
    if settings.task == "gpt":
        corpus = load_corpus(settings.data, vocabulary=settings.vocabulary, report=report)
        return language.TextTask(corpus, size, seed=seed, batch=batch)
    if settings.task == "quadratic":
        return quadratic.Quadratic(size, seed=seed, batch=batch)
    images = load_images(settings.data, report=report)
    return vision.ImageTask(settings.task, size, images, seed=seed, batch=batch)


# --- The user's own task -------------------------------------------------------------------------

FUNCTIONS: Final = {
    "model": "model(), which returns a new model",
    "batch": "batch(step), which returns the batch of a step",
    "loss": "loss(model, batch), which returns the mean loss of a batch",
    "validate": "validate(model), which returns the loss on other data",
}
GIVEN: Final = ("seed", "batch_size")  # what __init__ and the functions get if they ask for it
STEPS: Final = 300
BATCH: Final = 32


class UserTask:
    """A user's task as the laboratory has its own.

    Args:
        place: Where it is found.
        name: What errors call it.
        seed, batch_size: What its functions are given if they have such an argument.
        device: Where batches go.
    """

    def __init__(
        self, place: str, *, name: str, seed: int, batch_size: int, device: str = "cpu"
    ) -> None:
        self.name, self.device, self.seed = name, device, seed
        self.given = {"seed": seed, "batch_size": batch_size}
        self.offered = load(place)  # what has the functions, or makes it for a run
        if inspect.isclass(self.offered) or inspect.isfunction(self.offered):
            with seeded(seed):
                self.offered = self.offered(**self._asked_for(self.offered))
        self.unit: str = getattr(self.offered, "unit", "samples")
        self.ahead: bool = getattr(self.offered, "ahead", False)

    @cached_property
    def units(self) -> int:
        """What the task says, else the rows, or all tokens, of the first tensor of a batch."""
        said = getattr(self.offered, "units", None)
        if said is not None:
            return int(self._call("units") if callable(said) else said)
        leaves = tree_leaves(dict(b) if isinstance(b := self.batch(0), Mapping) else b)
        tensors = [x for x in leaves if isinstance(x, Tensor) and x.dim()]
        if not tensors:
            return 1
        return tensors[0].numel() if self.unit == "tokens" else len(tensors[0])

    def model(self) -> nn.Module:
        """A new model in training mode, initialised from the seed."""
        seed_all(self.seed)
        model = self._call("model")
        if not isinstance(model, nn.Module):
            raise TypeError(f"model of {self.name} must return a torch.nn.Module, got {model!r}")
        return model.train()

    def begin(self, step: int) -> None:
        """Let what `loss` draws at random follow from the seed and the step, as dropout does.

        So it is the same for all optimizers, and in a run that goes on from a checkpoint.
        """
        seed_all(mixed(self.seed, "step", step))

    def batch(self, step: int) -> Any:
        """The batch of a step, on the device; random numbers depend on the seed and the step."""
        if self.ahead:  # on a thread beside the training, whose random numbers must not be touched
            return to_device(self._call("batch", step), self.device)
        with seeded(mixed(self.seed, "batch", step), self.device):
            return to_device(self._call("batch", step), self.device)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        loss = self._call("loss", model, batch)
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss of {self.name} must return a tensor, got {loss!r}")
        return loss

    @torch.no_grad()
    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        """What the user measures, in evaluation mode, with the same random numbers every time."""
        with evaluating(model), seeded(0, self.device):
            found = self._call("validate", model)
        values = found if isinstance(found, dict) else {"loss": found}
        try:
            return {"loss": float(values["loss"])} | {k: float(x) for k, x in values.items()}
        except (KeyError, TypeError, ValueError):
            raise TypeError(
                f"validate of {self.name} must return a number, or a dict of numbers with a "
                f"'loss' among them, got {found!r}"
            ) from None

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.offered, name)
        return function(*arguments, **self._asked_for(function))

    def _asked_for(self, function: Any) -> dict[str, int]:
        return {name: x for name, x in self.given.items() if name in _parameters(function)}


def model_of(task: str) -> nn.Module:
    """The model of a task that a user has named, with the seed 0.

    Raises:
        UsageError: If there is no such task, or something is missing in it.
    """
    source = find(task)
    batch = user_preset(source, None).batch
    return UserTask(source.place, name=source.name, seed=0, batch_size=batch).model()


def user_preset(source: Source, batch: int | None) -> Preset:
    """The steps and the batch that a task has unless told; a `batch` is told.

    Raises:
        UsageError: If something is missing in the task, or it would not heed the batch.
    """
    thing = load(source.place)
    check(source.name, thing)
    functions = (getattr(thing, name, None) for name in FUNCTIONS)
    asking = [f for f in (thing, *functions) if "batch_size" in _parameters(f)]
    if batch is not None and not asking:
        raise UsageError(
            f"--batch {batch}: {source.name} does not ask for it: give its function batch, or its "
            "__init__, an argument batch_size"
        )
    defaults = (_parameters(f)["batch_size"].default for f in asking)
    known = [x for x in defaults if isinstance(x, int)]
    usual = getattr(thing, "batch_size", known[0] if known else BATCH if asking else 1)
    return Preset(steps=getattr(thing, "steps", STEPS), batch=usual)


def check(name: str, thing: Any) -> None:
    """Raises UsageError for what is missing in a task, and for what it asks that nobody gives."""
    if not inspect.isfunction(thing):  # what a function returns is seen when it is called
        for function, about in FUNCTIONS.items():
            if not hasattr(thing, function):
                raise UsageError(f"--task {name} has no function {about}")
            if isinstance(getattr(thing, function), nn.Module):
                raise UsageError(
                    f"--task {name}: {function} is a module, but every run needs a new one: make "
                    "it a function that returns the module"
                )
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return
    for parameter in _parameters(thing).values():
        starred = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        required = parameter.default is parameter.empty and not starred
        if required and parameter.name not in GIVEN:
            raise UsageError(
                f"--task {name} asks for {parameter.name!r}, and is given {' and '.join(GIVEN)} "
                "alone: give it a default"
            )


def to_device(batch: Any, where: nn.Module | torch.device | str) -> Any:
    """A batch with its tensors, in whatever tuples, lists and dicts, on a model's or any device.

    >>> to_device({"x": torch.zeros(1), "name": "first"}, "cpu")
    {'x': tensor([0.]), 'name': 'first'}
    """
    device = next(where.parameters()).device if isinstance(where, nn.Module) else where
    return tree_map(lambda x: x.to(device) if hasattr(x, "to") else x, batch)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters if callable(function) else {}
