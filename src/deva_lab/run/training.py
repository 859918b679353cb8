"""A run in training: its model, its optimizer, one step after the other, and its result."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import fmean, median
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from deva_optim.optimizer import BaseOptimizer
from deva_optim.telemetry import Telemetry, scalars

from ..errors import UsageError
from ..machine import wait
from .entrants import Entrant
from .environment import environment
from .progress import Event, Point, Progress, Result
from .ranks import ALONE, Ranks, accumulating, settle_, sharing, spread
from .settings import RunSettings
from .tasks import Batch, Task, UserTask

LOST: Final = 10.0  # a loss so many times the first one is a divergence, as NaN is
TIMED: Final = 1000  # the last so many steps have their times kept
TIMED_EVERY: Final = 10  # steps, on an accelerator


class Run:
    """A model, its optimizer and how far they have come.

    Args:
        settings: The run.
        task: What it trains.
        ranks: The ranks that train it together.

    Attributes:
        observed: Whether `telemetry` is to be that of the last step before an evaluation, if the
            optimizer has any.
        timed: Whether the times of the parts of this step are kept; on an accelerator, which has to
            be waited for, those of every tenth.
    """

    observed = False
    timed = False

    def __init__(self, settings: RunSettings, task: Task, ranks: Ranks = ALONE) -> None:
        self.settings, self.task, self.ranks, self.progress = settings, task, ranks, Progress()
        if settings.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(settings.device)
        self.environment = environment(settings.device, ranks)  # of now: a commit may follow
        self.model = task.model().to(settings.device)
        self.compute = spread(self.model, ranks)
        if settings.compile:
            self.compute = cast(nn.Module, torch.compile(self.compute))
        entrant = Entrant.parse(settings.optimizer)
        self.optimizer = entrant.build(self.model, settings.lr, sharing(ranks))
        if settings.telemetry and not isinstance(self.optimizer, BaseOptimizer):
            raise UsageError(f"{settings.optimizer} has no telemetry: record that of another one")
        self.telemetry: Telemetry = {}
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.losses = torch.zeros((), device=settings.device)  # their sum since the evaluation
        self.autocast = (
            contextlib.nullcontext()
            if settings.dtype == "float32"
            else torch.autocast(torch.device(settings.device).type, getattr(torch, settings.dtype))
        )
        settle_(self.model, ranks, lambda: self.loss(ranks.part(task.batch(0))))

    def step(self, batches: Iterator[Batch]) -> None:
        """One step of the optimizer."""
        entered = time.perf_counter()  # before the clock, which may wait for the steps before
        self.timed = self.settings.device == "cpu" or self.progress.step % TIMED_EVERY == 0
        if isinstance(self.task, UserTask):
            self.task.begin(self.progress.step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.settings.rate(self.progress.step)
        data = model = 0.0
        for i in range(1, self.settings.accumulate + 1):
            began = self.clock()
            batch = next(batches)
            taken = self.clock()
            with accumulating(self.compute, last=i == self.settings.accumulate):
                loss = self.loss(batch)
                loss.backward()  # type: ignore[no-untyped-call]
            self.losses += self.ranks.mean(loss.detach())
            data, model = data + taken - began, model + self.clock() - taken
        began = self.clock()
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        step = self.progress.step + 1
        kept = step in self.settings.telemetry
        recorded = kept or (self.observed and self.settings.evaluates(step))
        if isinstance(self.optimizer, BaseOptimizer):
            self.optimizer.telemetry_every = int(recorded)
        self.optimizer.step()
        optimizer = self.clock() - began
        self.progress.seconds += time.perf_counter() - entered
        self.progress.step += 1
        if recorded and isinstance(self.optimizer, BaseOptimizer):
            self.telemetry = self.optimizer.telemetry()
        if kept:
            matrices = {
                name: {key: _finite(value) for key, value in row.items()}
                for name, row in self.telemetry.items()
            }
            self.progress.telemetry.append({"step": step, "matrices": matrices})
        self.optimizer.zero_grad()
        if self.timed:
            times = {"model": model, "optimizer": optimizer, "data": data}
            for name, column in self.progress.times.items():
                column.append(times[name])
                del column[:-TIMED]

    def loss(self, batch: Batch) -> Tensor:
        """What a batch adds to the mean loss of a step."""
        with self.autocast:
            return self.task.loss(self.compute, batch) / self.settings.accumulate

    def clock(self) -> float:
        """Seconds; on an accelerator, in a step that is timed, those at which its work is done."""
        if self.timed:
            wait(self.settings.device)
        return time.perf_counter()

    def evaluate(self) -> None:
        """Add a point to the curve, and say whether this was the last."""
        progress, curve = self.progress, self.progress.curve
        steps, began = progress.step - (curve["step"] or [0])[-1], time.perf_counter()
        train_loss = self.losses.item() / steps if steps else None
        progress.seconds += time.perf_counter() - began  # of what an accelerator had left to do
        self.losses.zero_()
        averaged = contextlib.nullcontext
        if any(group.get("ema_rate") is not None for group in self.optimizer.param_groups):
            averaged = getattr(self.optimizer, "averaged", averaged)  # which is then what is judged
        with averaged(), self.autocast:
            found = self.task.validate(self.compute, self.ranks)
        row = {
            "step": progress.step,
            "units": progress.step * self.settings.accumulate * self.task.units,
            "seconds": round(progress.seconds, 4),
            "train_loss": _finite(train_loss),
            "loss": _finite(found["loss"]),
        }
        row |= {"accuracy": _finite(found["accuracy"])} if "accuracy" in found else {}
        for name, value in row.items():
            curve[name].append(value)
        if self.lost():
            progress.status = "diverged"
        elif progress.step == self.settings.steps:
            progress.status = "finished"

    def lost(self) -> bool:
        """Whether the last losses are past hope."""
        losses, train_losses = self.progress.curve["loss"], self.progress.curve["train_loss"]
        known = [losses[0], losses[-1], *train_losses[1:][-1:]]  # there is none before a first step
        return None in known or bool(losses[-1] > LOST * abs(losses[0]))

    def event(self, *, evaluated: bool) -> Event:
        """What the run has to tell."""
        at, loss = self.progress, (self.progress.curve["loss"] or [None])[-1]
        return Event(self.settings.id, at.step, at.status, loss, at.seconds, evaluated)

    def points(self) -> list[Point]:
        """The curves so far, to be logged; times and telemetry are not kept, and are `newest`'s."""
        return [self._point(index) for index in range(len(self.progress.curve["step"]))]

    def newest(self) -> Point:
        """The last point of the curves, with rates, times and telemetry of the step before it."""
        step, values = self._point(-1)
        if step == 0:
            return Point(step, values)
        for index, group in enumerate(self.optimizer.param_groups):
            if self.rates[index] != self.settings.lr:  # this group has a rate of its own
                values[f"rate/{group.get('role', 'group')}.{index}"] = float(group["lr"])
        times = self.progress.milliseconds(median)
        values |= {f"milliseconds/{name}": x for name, x in times.items()}
        values |= {f"telemetry/{name}": x for name, x in scalars(self.telemetry).items()}
        return Point(step, _known(values))

    def _point(self, index: int) -> Point:
        """A row of the curves, and the learning rate of the step that led there."""
        curve, settings = self.progress.curve, self.settings
        step = curve["step"][index]
        values = {
            "loss/training": curve["train_loss"][index],
            "loss/validation": curve["loss"][index],
            "accuracy/validation": curve["accuracy"][index] if curve["accuracy"] else None,
            "seconds": curve["seconds"][index],
            self.task.unit: curve["units"][index],
            "rate/base": settings.lr * settings.rate(step - 1) if step else None,
        }
        return Point(step, _known(values))

    def state(self) -> dict[str, Any]:
        """All that a run needs to go on, to the bit."""
        return {
            **self.record(),
            "losses": self.losses,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }

    def record(self) -> dict[str, Any]:
        """What of it is no tensor."""
        return {"settings": self.settings.saved(), "progress": asdict(self.progress)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.check(state["settings"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.take_up(state["progress"], state["losses"], state["random"])

    def check(self, settings: dict[str, Any]) -> None:
        """Raises UsageError if these are not the settings of this run."""
        theirs, ours = (json.dumps(x, sort_keys=True) for x in (settings, self.settings.saved()))
        if theirs != ours:
            raise UsageError(f"the checkpoint of {self.settings.id} is of another run: {settings}")

    def take_up(self, progress: dict[str, Any], losses: Tensor, random: Tensor) -> None:
        """Go on from there; model and optimizer have been restored."""
        self.progress = Progress(**progress)
        if self.progress.status == "stopped":
            self.progress.status = "running"
        self.losses.copy_(losses)
        torch.set_rng_state(random.cpu())

    def result(self, command: str) -> Result:
        """The run as a line of results.jsonl has it."""
        device = self.settings.device
        on_gpu = device.startswith("cuda")
        return line_of(self.settings, self.progress, command, self.environment) | {
            "unit": self.task.unit,
            "units": self.task.units * self.settings.accumulate,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "state_bytes": max(self.ranks.gathered(state_bytes(self.optimizer))),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
        }


def line_of(
    settings: RunSettings, progress: Progress, command: str, environment: dict[str, Any]
) -> Result:
    """A line of results.jsonl, of a run that has failed before it had a model."""
    line = {
        "id": settings.id,
        "label": settings.optimizer,
        "status": progress.status,
        "step": progress.step,
        "settings": settings.saved(),
        "unit": "samples",
        "units": settings.batch * settings.accumulate,
        "parameters": 0,
        "state_bytes": 0,
        "curve": {name: x for name, x in progress.curve.items() if x or name != "accuracy"},
        "milliseconds": progress.milliseconds(median),
        "mean_milliseconds": progress.milliseconds(fmean),  # with what some steps do, as refreshes
        "peak_memory_bytes": None,
        "environment": environment,
        "command": command,
    }
    return line | ({"telemetry": progress.telemetry} if settings.telemetry else {})


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """The bytes of all tensors that an optimizer keeps on this rank."""
    values = (value for state in optimizer.state.values() for value in state.values())
    tensors = (x.to_local() if hasattr(x, "to_local") else x for x in values)
    return sum(x.nbytes for x in tensors if isinstance(x, Tensor) and not x.is_meta)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: x for name, x in values.items() if x is not None and math.isfinite(x)}
