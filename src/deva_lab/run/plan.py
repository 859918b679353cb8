"""From what the user asks for to the runs that answer it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.tokenizers import parse_vocabulary
from ..errors import UsageError, unknown
from ..files import write_text
from .entrants import Entrant, label_of
from .settings import DTYPES, DType, RunSettings, kind_of, preset_of
from .tasks import check_task, user_preset
from .user_source import find, is_user_task

EVALUATIONS = 10  # of a run, unless the user says how often
_GIVEN = (
    *("size", "data", "vocabulary", "steps", "batch", "accumulate", "warmup", "decay", "clip"),
    *("device", "dtype", "compile"),
)  # what a run has as the request does, unless that leaves it open
_COUNT = "a whole number, at least 1"
_SHARES = ("warmup", "decay", "clip")
_BOUNDS = {
    **dict.fromkeys(
        ("steps", "batch", "accumulate", "evaluate_every"), (1, math.inf, "at least 1")
    ),
    **dict.fromkeys(_SHARES[:2], (0, 1, "a share of the steps, from 0 to 1")),
    "clip": (0, math.inf, "0 (do not clip) or more"),
}


@dataclass(frozen=True)
class Request:
    """What `deva compare` and `deva train` are asked for; None leaves it to the task's preset."""

    optimizers: tuple[Entrant, ...]
    task: str = "gpt"
    size: str | None = None
    data: str | None = None
    vocabulary: int | str | None = None
    rates: tuple[str, ...] = ()  # as in "0.003", or "x2": twice the usual one of each
    seeds: tuple[int, ...] = (0,)
    steps: int | None = None
    batch: int | None = None
    accumulate: int = 1
    warmup: float = 0.0
    decay: float = 0.4
    clip: float = 0.0
    evaluate_every: int | None = None
    device: str = "cpu"
    dtype: DType = "float32"
    compile: bool = False
    telemetry: int | None = None  # steps after which it is kept each time; None keeps none


def plan(request: Request) -> list[RunSettings]:
    """The runs of a request: every optimizer at every rate with every seed, seeds outermost.

    Raises:
        UsageError: If something does not exist or does not fit, before anything is trained.
    """
    seeds = [_whole("seeds", seed, "whole numbers from 0 on") for seed in request.seeds]
    if not seeds or min(seeds) < 0:
        raise UsageError(f"seeds must be one or more numbers from 0 on, got {request.seeds}")
    base = common(request)
    check_task(base)
    runs = [
        base.changed(
            optimizer=entrant.label,
            lr=lr,
            seed=seed,
            telemetry=_recorded(entrant, base.steps, request.telemetry),
        )
        for seed in seeds
        for entrant in request.optimizers
        for lr in rates_of(entrant, request.rates)
    ]
    return list(dict.fromkeys(runs))


def _recorded(entrant: Entrant, steps: int, every: int | None) -> tuple[int, ...]:
    """The steps whose telemetry is kept; none of an optimizer that has no telemetry."""
    if every is not None and every < 1:
        raise UsageError(f"--telemetry is a number of steps, at least 1, got {every}")
    return tuple(range(every, steps + 1, every)) if every and entrant.has_telemetry else ()


def as_begun(
    runs: Sequence[RunSettings], folder: Path, say: Callable[[str], None]
) -> list[RunSettings]:
    """The runs of a comparison, under the digest that a user's task had when it was begun."""
    if not runs[0].task_place:
        return list(runs)
    now = begun = find(runs[0].task_place)
    if now.file:
        copy = folder / now.file  # of the text, as it was
        if not copy.is_file():
            write_text(copy, now.text)
        begun = now._replace(text=copy.read_text("utf-8"))
    if begun.digest != now.digest:
        say(
            f"{now.name} has changed since this comparison was begun, when it was as in "
            f"{folder / now.file}. What is finished is kept; to start anew, give another --out."
        )
    return [run.changed(task_digest=begun.digest) for run in runs]


def common(request: Request) -> RunSettings:
    """What all runs of a request share, with the first optimizer and seed."""
    usual = (_of_user if is_user_task(request.task) else _of_ours)(request)
    given = {name: getattr(request, name) for name in _GIVEN}
    if request.vocabulary is not None:
        given["vocabulary"] = parse_vocabulary(request.vocabulary)
    known = {**usual, **{name: value for name, value in given.items() if value is not None}}
    # The same run has the same name, whether a number was given as 1, as 1.0 or as one of NumPy.
    known |= {name: float(known[name]) for name in _SHARES}
    every = request.evaluate_every
    for name in ("steps", "batch", "accumulate"):
        known[name] = _whole(f"--{name}", known[name], _COUNT)
    usual_every = max(1, known["steps"] // EVALUATIONS)
    known["evaluate_every"] = (
        usual_every if every is None else _whole("--evaluate-every", every, _COUNT)
    )
    if known["dtype"] not in DTYPES:
        raise unknown("dtype", str(known["dtype"]), DTYPES)
    entrant = request.optimizers[0]
    settings = RunSettings(
        **known,
        optimizer=entrant.label,
        lr=rates_of(entrant, request.rates)[0],
        seed=request.seeds[0],
    )
    check_numbers(settings)
    return settings


def _of_ours(request: Request) -> dict[str, Any]:
    """What a task of the laboratory has unless told."""
    kind = kind_of(request.task)
    size = request.size or kind.size
    preset = preset_of(request.task, size)._asdict()
    return {"task": request.task, "size": size, "data": kind.data, **preset}


def _of_user(request: Request) -> dict[str, Any]:
    """The same of a user's task."""
    source = find(request.task)
    for name in ("size", "data", "vocabulary"):
        if getattr(request, name) is not None:
            raise UsageError(
                f"--{name} is for tasks of the laboratory: {source.name} says itself what it "
                "trains, and on what"
            )
    place = {"task": source.name, "task_digest": source.digest, "task_place": source.place}
    return {**place, "size": "", "data": "", **user_preset(source, request.batch)._asdict()}


def rates_of(entrant: Entrant, rates: Sequence[str]) -> list[float]:
    """The learning rates to run an optimizer at: its own, else those given, else its usual one.

    >>> rates_of(Entrant.parse("lion"), ["0.003", "x2"])
    [0.003, 0.002]
    """
    found = [_rate(text, entrant.default_lr) for text in rates]
    return found if found and entrant.lr is None else [entrant.default_lr]


def _rate(text: str, usual: float) -> float:
    """The learning rate that a text names; "x2" is twice the usual one."""
    relative = text.lower().startswith("x")
    try:
        value = float(text[1:] if relative else text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"--lr must be positive numbers such as 0.003 or x2, got {text!r}")
    return value * usual if relative else value


def _whole(name: str, value: Any, said: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be {said}, got {value!r}") from None


def check_numbers(settings: RunSettings) -> None:
    """Raises UsageError for a number that makes no sense."""
    for name, (low, high, said) in _BOUNDS.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            raise UsageError(f"--{name.replace('_', '-')} must be {said}, got {value}")


def check_baseline(baseline: str | None, runs: Sequence[RunSettings]) -> None:
    """Raises UsageError if no run is that of the baseline."""
    labels = dict.fromkeys(settings.optimizer for settings in runs)
    if baseline is not None and label_of(baseline) not in labels:
        raise UsageError(f"--baseline {baseline} is none of {', '.join(labels)}")
