"""The user's own task: four functions that say what is trained, as docs/your-model.md has them."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import UsageError
from ..files import write_text
from ..vision import evaluating, mixed
from .environment import seed_all, seeded
from .ranks import ALONE, Ranks
from .settings import Preset, RunSettings

FUNCTIONS: Final = MappingProxyType(
    {
        "model": "model(), which returns a new model",
        "batch": "batch(step), which returns the batch of a step",
        "loss": "loss(model, batch), which returns the mean loss of a batch",
        "validate": "validate(model), which returns the loss on other data",
    }
)
GIVEN: Final = ("seed", "batch_size")  # what __init__ and the functions get if they ask for it
STEPS: Final = 300
BATCH: Final = 32


class UserTask:
    """A user's task as the laboratory has its own.

    Args:
        offered: The functions, as the attributes of a module or of an object.
        name: What errors call it.
        seed, batch_size: What the functions are given if they have such an argument.
        device: Where batches go.
    """

    def __init__(
        self, offered: Any, *, name: str, seed: int, batch_size: int, device: str = "cpu"
    ) -> None:
        self.offered, self.name, self.device = offered, name, device
        self.seed, self.given = seed, {"seed": seed, "batch_size": batch_size}
        self.unit: str = getattr(offered, "unit", "samples")
        self.ahead: bool = getattr(offered, "ahead", False)

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
        """A new model in training mode; random numbers start from the seed, also for what follows.

        So dropout, too, is the same in every run of a seed.
        """
        seed_all(self.seed)
        model = self._call("model")
        if not isinstance(model, nn.Module):
            raise TypeError(f"model of {self.name} must return a torch.nn.Module, got {model!r}")
        return model.train()

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
        return function(*arguments, **_asked_for(function, self.given))


def make(settings: RunSettings) -> UserTask:
    """The task of a run; what the user's code raises is passed on."""
    given = {"seed": settings.seed, "batch_size": settings.batch}
    offered = _made(settings.task_place, given)
    return UserTask(offered, name=settings.task, device=settings.device, **given)


def model_of(task: str) -> nn.Module:
    """The model of a task that a user has named, with the seed 0.

    Raises:
        UsageError: If there is no such task, or something is missing in it.
    """
    source = find(task)
    usual = preset(source, None)
    given = {"seed": 0, "batch_size": usual.batch}
    offered = _made(source.place, given)
    return UserTask(offered, name=source.name, device="cpu", **given).model()


def preset(source: Source, batch: int | None) -> Preset:
    """The steps and the batch that a task has unless told; a `batch` is told.

    Raises:
        UsageError: If something is missing in the task, or it would not heed the batch.
    """
    thing = try_to_load(source)
    check(source.name, thing)
    asking = [f for f in (thing, *_functions(thing)) if "batch_size" in _parameters(f)]
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
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
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


def _made(place: str, given: dict[str, int]) -> Any:
    """What has the functions of a task: a module, or an object that is made for a run."""
    thing = load(place)
    is_made = inspect.isclass(thing) or inspect.isfunction(thing)
    if not is_made:
        return thing
    with seeded(given["seed"]):
        return thing(**_asked_for(thing, given))


def _functions(thing: Any) -> list[Callable[..., Any]]:
    return [getattr(thing, name) for name in FUNCTIONS if hasattr(thing, name)]


def _parameters(function: Any) -> MappingProxyType[str, inspect.Parameter]:
    return inspect.signature(function).parameters if callable(function) else MappingProxyType({})


def _asked_for(function: Any, given: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in given.items() if name in _parameters(function)}


# ----


CLASS: Final = "Task"  # what a module's task is called unless the user names another
_IN_MODULE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_IN_FILE: Final = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?", re.DOTALL)

_objects: dict[str, Any] = {}  # place → what `of_object` was given
_numbers = count(1)


class Source(NamedTuple):
    """A user's task as it was found.

    Attributes:
        name: What tables call it: "my_task.py", "package.module:Task".
        place: Where another process finds it: the same with the path of the file.
        text: What it is written in, as far as that is known.
        file: The name of the file with the text; "" if it is in none.
    """

    name: str
    place: str
    text: str
    file: str = ""

    @property
    def digest(self) -> str:
        """A digest of the text."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()


def is_user_task(task: str) -> bool:
    """Whether `--task` names a task of the user's, and none of the laboratory's.

    >>> [is_user_task(name) for name in ("gpt", "my_task.py", "package.module:Task")]
    [False, True, True]
    """
    return task in _objects or bool(_IN_FILE.fullmatch(task) or _IN_MODULE.fullmatch(task))


def find(task: str) -> Source:
    """The task that a user has named; nothing of it is imported.

    Raises:
        UsageError: If there is no such file or module.
    """
    if task in _objects:
        return Source(task, task, _source_text(_objects[task]))
    if match := _IN_FILE.fullmatch(task):
        path = Path(match[1]).expanduser()
        if not path.is_file():
            raise UsageError(
                f"there is no task at {path}: `deva init-task` writes a file to start from, and "
                "the folder of a comparison has a copy of its own"
            )
        suffix = f":{match[2]}" if match[2] else ""
        place = f"{path.resolve()}{suffix}"
        return Source(path.name + suffix, place, path.read_text("utf-8"), path.name)
    path = _module_file(task)
    return Source(task, task, path.read_text("utf-8"), path.name)


def of_object(task: Any) -> str:
    """The name by which this process, and no other, finds an object or a class."""
    cls = task if inspect.isclass(task) else type(task)
    place = f"{cls.__name__} {next(_numbers)}"
    _objects[place] = task
    return place


def is_object(place: str) -> bool:
    """Whether a task is an object of this process, which no other can import."""
    return place in _objects


def load(place: str) -> Any:
    """The module, class or object of a task, imported once for each text that it has had.

    What it draws at random while it is imported is the same in every process.
    """
    if place in _objects:
        return _objects[place]
    source = find(place)
    with seeded(0):
        if match := _IN_FILE.fullmatch(place):
            module, name = _import_file(match[1], source.digest), match[2]
        else:
            _look_in(os.getcwd())
            before, _, name = place.partition(":")
            module = importlib.import_module(before)
    if name is None:
        return getattr(module, CLASS, module)
    if not hasattr(module, name):
        raise UsageError(f"--task {place}: there is no {name} in {module.__name__}")
    return getattr(module, name)


def try_to_load(source: Source) -> Any:
    """The same, at the start of a command.

    Raises:
        UsageError: If the import fails, with what is wrong and the line.
    """
    try:
        return load(source.place)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        said = traceback.format_exception_only(error)[-1].strip()
        path = (_IN_FILE.fullmatch(source.place) or [None, None])[1]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [x.lineno for x in frames if x.filename == path]
        lines += [error.lineno] if isinstance(error, SyntaxError) else []
        where = f" (line {lines[-1]})" if lines else ""
        raise UsageError(f"--task {source.name} cannot be imported: {said}{where}") from error


def as_begun(source: Source, folder: Path) -> Source:
    """The task as it was when the comparison in a folder began, which keeps a copy of its text."""
    if not source.file:
        return source
    copy = folder / source.file
    if not copy.is_file():
        write_text(copy, source.text)
    return source._replace(text=copy.read_text("utf-8"))


def _module_file(task: str) -> Path:
    module = task.partition(":")[0]
    _look_in(os.getcwd())
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise UsageError(
            f"--task {task}: there is no module {module} that can be imported from here; a file is "
            "named by its path, my_task.py"
        )
    return Path(spec.origin)


@cache
def _import_file(path: str, digest: str) -> ModuleType:
    _look_in(str(Path(path).parent))
    name = f"user_task_{Path(path).stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _look_in(folder: str) -> None:
    """Let imports find what lies beside a task."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _source_text(task: Any) -> str:
    try:
        return inspect.getsource(task if inspect.isclass(task) else type(task))
    except (OSError, TypeError):
        return repr(task)
