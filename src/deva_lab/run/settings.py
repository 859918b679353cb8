"""Everything that a run depends on, and what there is to choose from, by name.

Nothing here needs torch, so that the command can say what there is at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, get_args

from ..errors import UsageError, unknown

DType = Literal["float32", "bfloat16"]
DTYPES: Final[tuple[DType, ...]] = get_args(DType)
Mode = Literal["ddp", "fsdp", "hsdp"]  # how a model is spread over ranks
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
NAME_LETTERS: Final = 120  # of an optimizer in the name of a file, which has at most 255
LOGGERS: Final = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class RunSettings:
    """One run, saved with its result. What is not here does not change its numbers."""

    task: str
    size: str
    data: str
    optimizer: str  # the entrant, without its rate: "deva", "muon:nesterov=true"
    lr: float
    seed: int
    steps: int
    batch: int  # sequences, images or samples in a batch
    vocabulary: int | str = 0  # of text: the size of a byte-level BPE, or "gpt2"
    accumulate: int = 1  # batches in a step
    warmup: float = 0.0  # the share of the steps in which the rate rises from zero
    decay: float = 0.4  # the share of the steps, the last ones, in which it falls to zero
    clip: float = 0.0  # the greatest norm of the gradient; 0 does not clip
    evaluate_every: int = 50
    device: str = "cpu"
    dtype: DType = "float32"
    compile: bool = False
    telemetry: tuple[int, ...] = ()  # the steps after which the optimizer's telemetry is kept
    task_digest: str = ""  # of a user's task, as it was when the comparison began
    task_place: str = ""  # where a user's task is found here; another place is no other run

    @property
    def id(self) -> str:
        """A name for files: what one looks for first, then a hash of everything."""
        plain = "".join(c if c.isalnum() or c in "-.=" else "_" for c in self.optimizer)
        data = json.dumps(self.saved(), sort_keys=True).encode()
        digest = hashlib.blake2b(data, digest_size=4).hexdigest()
        return f"{plain[:NAME_LETTERS]}-lr{self.lr:g}-seed{self.seed}-{digest}"

    def rate(self, step: int) -> float:
        """What multiplies the learning rate in a step."""
        from deva_optim.schedules import Trapezoid  # not at the top: it imports torch

        return Trapezoid(self.steps, self.warmup, self.decay)(step)

    def evaluates(self, step: int) -> bool:
        """Whether the validation loss is taken after so many steps."""
        return step % self.evaluate_every == 0 or step == self.steps

    def saved(self) -> dict[str, Any]:
        """The record as JSON has it, without a place and with neither telemetry nor digest if none.

        So the names of runs without them are those that they had before there were any.
        """
        record = asdict(self)
        del record["task_place"]
        for name in ("telemetry", "task_digest"):
            if not record[name]:
                del record[name]
        return record

    def changed(self, **changes: Any) -> RunSettings:
        """The record with some fields replaced."""
        return replace(self, **changes)


# --- Tasks and their sizes -----------------------------------------------------------------------


class Preset(NamedTuple):
    """What a size has unless the user says otherwise."""

    steps: int
    batch: int
    vocabulary: int | str = 0


class TaskKind(NamedTuple):
    """A kind of task, a row of tasks.json."""

    about: str
    data: str  # unless the user says otherwise
    size: str  # unless the user says otherwise
    presets: Mapping[str, Preset]  # by size
    models: Mapping[str, Any]  # size → how large its model is
    whole_batch: bool = False  # whether its model must see a batch as a whole, for its norms


def _kind(sizes: Mapping[str, dict[str, Any]], **about: Any) -> TaskKind:
    models = {size: row.pop("model") for size, row in sizes.items()}
    return TaskKind(
        presets={size: Preset(**x) for size, x in sizes.items()}, models=models, **about
    )


def _table(name: str) -> Any:
    return json.loads(files(__package__).joinpath(name).read_text("utf-8"))


TASKS: Final[Mapping[str, TaskKind]] = {
    name: _kind(**row) for name, row in _table("tasks.json").items()
}


def kind_of(task: str) -> TaskKind:
    """The kind of a task by name."""
    if task not in TASKS:
        known = unknown("task", task, TASKS)
        raise UsageError(f"{known}; a task of your own is a file, --task my_task.py")
    return TASKS[task]


def preset_of(task: str, size: str) -> Preset:
    """What a size of a task has unless the user says otherwise."""
    presets = kind_of(task).presets
    if size not in presets:
        raise unknown(f"size of {task}", size, presets)
    return presets[size]


# --- Rates ---------------------------------------------------------------------------------------

# What the race has found best for each of four optimizers: its settings, as `deva compare` takes
# them, and its learning rate. docs/race.md says how they were found, and how many settings of each
# were tried. `deva` has the rate of `firm-fall` on the sprint; `muon:…` is `muon-quick`, and
# `soap:…` is `soap-light`.
TUNED: Final[Mapping[str, float]] = {
    "deva": 0.0141,
    "muon:momentum=0.8,nesterov=true": 0.0141,
    "soap:betas=0.9/0.95/0.95": 0.005,
    "adamw": 0.005,
}

# Name → class, rate unless one is given, and options. The rates of deva and adamw are
# the best of docs/race.md, those of deva-sinf, muon and soap the best of the grid of
# docs/evidence.md; the others have not been tuned and are where one would begin.
OPTIMIZERS: Final[Mapping[str, tuple[str, float, Mapping[str, Any]]]] = _table("optimizers.json")
