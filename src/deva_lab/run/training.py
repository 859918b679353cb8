"""The training loop: one run from its settings to its result, and on from any checkpoint."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn

from deva_optim.optimizer import BaseOptimizer
from deva_optim.telemetry import Telemetry

from ..errors import UsageError
from ..loggers import Log
from ..results import newest, outcome, points
from . import checkpoint
from .entrants import Entrant
from .environment import environment
from .progress import Event, Progress, Result
from .ranks import ALONE, Ranks, accumulating, settle_, sharing, spread
from .settings import RunSettings
from .tasks import Batch, Task

T = TypeVar("T")
Watch = Callable[[Event], None]

LOST: Final = 10.0  # a loss so many times the first one is a divergence, as NaN is
TIMED_EVERY: Final = 10  # steps, on an accelerator, which has to be waited for


@dataclass
class Keeping:
    """Where checkpoints go, and when one is due."""

    folder: Path
    every_steps: int | None = None
    every_seconds: float = 60.0
    last: float = field(default_factory=time.monotonic)

    def due(self, progress: Progress) -> bool:
        """Whether it is time: the steps are full, the seconds are over, or the run ends."""
        full = self.every_steps is not None and progress.step % self.every_steps == 0
        over = time.monotonic() - self.last >= self.every_seconds
        if not (full or over or progress.status != "running"):
            return False
        self.last = time.monotonic()
        return True


@contextlib.contextmanager
def in_turn(make: Callable[[int], T], *, start: int, ahead: bool) -> Iterator[Iterator[T]]:
    """What `make(start)`, `make(start + 1)`, … return, one after the other.

    Args:
        make: Makes what belongs to a number.
        start: The first number.
        ahead: Whether each is made on a thread while the one before it is used.

    >>> with in_turn(str, start=5, ahead=True) as texts:
    ...     next(texts), next(texts)
    ('5', '6')
    """
    if not ahead:
        yield map(make, count(start))
        return
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead")

    def ready() -> Iterator[T]:
        waiting = thread.submit(make, start)
        for number in count(start + 1):
            done = waiting.result()
            waiting = thread.submit(make, number)
            yield done

    try:
        yield ready()
    finally:
        thread.shutdown(cancel_futures=True)


def train(
    settings: RunSettings,
    task: Task,
    *,
    keeping: Keeping | None = None,
    resume: bool = False,
    watch: Watch = lambda event: None,
    stopping: Callable[[], bool] = lambda: False,
    command: str = "",
    ranks: Ranks = ALONE,
    say: Callable[[str], None] = lambda text: None,
    log: Log | None = None,
    begun: Callable[[Run], None] = lambda run: None,
) -> Result:
    """The result of a run, as a line of results.jsonl has it.

    Args:
        settings: The run.
        task: What it trains.
        keeping: Where its checkpoints go, and how often; None writes none.
        resume: Go on from the newest checkpoint, if there is one.
        watch: Hears of every step.
        stopping: Asked after every step: whether to save and return with the status "stopped".
        command: What the user typed, for the result.
        ranks: The ranks that train it together, of which this process is one.
        say: Hears what a person should know.
        log: Where its curves go besides.
        begun: Hears of the run once it has a model and an optimizer.
    """
    log = log or Log()
    run = Run(settings, task, ranks, observed=log.wanted)
    begun(run)
    if keeping is not None and resume:
        checkpoint.load(keeping.folder, run, say)
    with log:
        if log.wanted:
            about = {"command": command, "environment": environment(settings.device, ranks)}
            log.begin(settings.id, settings.saved(), about, points(run))
        if run.progress.step == 0:
            run.evaluate()
            log.add(newest(run))
            watch(run.event(evaluated=True))
        start = run.progress.step * settings.accumulate
        ahead = getattr(task, "ahead", True)
        with in_turn(lambda i: ranks.part(task.batch(i)), start=start, ahead=ahead) as batches:
            while run.progress.status == "running":
                run.step(batches)
                evaluated = settings.evaluates(run.progress.step)
                if evaluated:
                    run.evaluate()
                    log.add(newest(run))  # before the checkpoint: no run goes on behind its log
                if run.progress.status == "running" and ranks.any(stopping()):
                    run.progress.status = "stopped"
                if keeping is not None and ranks.any(ranks.leads and keeping.due(run.progress)):
                    checkpoint.save(keeping.folder, run)
                watch(run.event(evaluated=evaluated))
        result = run.result(command)
        stopped = result["status"] == "stopped"  # and goes on another time
        log.end(result["status"], {} if stopped else outcome(result))
    return result


class Run:
    """A model, its optimizer and how far they have come.

    Args:
        settings: The run.
        task: What it trains.
        ranks: The ranks that train it together.
        observed: Whether `telemetry` is to be that of the last step before an evaluation, if the
            optimizer has any.
    """

    def __init__(
        self, settings: RunSettings, task: Task, ranks: Ranks = ALONE, *, observed: bool = False
    ) -> None:
        self.settings, self.task, self.ranks, self.progress = settings, task, ranks, Progress()
        self.model = task.model().to(settings.device)
        self.compute = spread(self.model, ranks)
        if settings.compile:
            self.compute = cast(nn.Module, torch.compile(self.compute))
        entrant = Entrant.parse(settings.optimizer)
        self.optimizer = entrant.build(self.model, settings.lr, sharing(ranks))
        if settings.telemetry and not isinstance(self.optimizer, BaseOptimizer):
            raise UsageError(f"{settings.optimizer} has no telemetry: record that of another one")
        self.observed = observed and isinstance(self.optimizer, BaseOptimizer)
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
        self.set_rates()
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
        self.progress.step += 1
        if recorded:
            self.telemetry = cast(BaseOptimizer, self.optimizer).telemetry()
        if kept:
            matrices = {
                name: {key: _finite(value) for key, value in row.items()}
                for name, row in self.telemetry.items()
            }
            self.progress.telemetry.append({"step": step, "matrices": matrices})
        self.optimizer.zero_grad()
        self.progress.seconds += data + model + optimizer
        if self.timed:
            self.progress.times.add(model=model, optimizer=optimizer, data=data)

    def loss(self, batch: Batch) -> Tensor:
        """What a batch adds to the mean loss of a step."""
        with self.autocast:
            return self.task.loss(self.compute, batch) / self.settings.accumulate

    def set_rates(self) -> None:
        """Give every group the learning rate that the schedule has for this step."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.settings.rate(self.progress.step)

    @property
    def timed(self) -> bool:
        """Whether the times of this step are exact."""
        return self.settings.device == "cpu" or self.progress.step % TIMED_EVERY == 0

    def clock(self) -> float:
        """Seconds; on an accelerator, now and then, those at which its work is done."""
        if self.settings.device != "cpu" and self.timed:
            torch.accelerator.synchronize()
        return time.perf_counter()

    def evaluate(self) -> None:
        """Add a point to the curve, and say whether this was the last."""
        progress, curve = self.progress, self.progress.curve
        steps = progress.step - (curve.step[-1] if curve.step else 0)
        train_loss = self.losses.item() / steps if steps else None
        self.losses.zero_()
        averaged = contextlib.nullcontext
        if any(group.get("ema_rate") is not None for group in self.optimizer.param_groups):
            averaged = getattr(self.optimizer, "averaged", averaged)  # which is then what is judged
        with averaged(), self.autocast:
            found = self.task.validate(self.compute, self.ranks)
        curve.step.append(progress.step)
        curve.units.append(progress.step * self.settings.accumulate * self.task.units)
        curve.seconds.append(round(progress.seconds, 4))
        curve.train_loss.append(_finite(train_loss))
        curve.loss.append(_finite(found["loss"]))
        if "accuracy" in found:
            curve.accuracy.append(found["accuracy"])
        if self.lost():
            progress.status = "diverged"
        elif progress.step == self.settings.steps:
            progress.status = "finished"

    def lost(self) -> bool:
        """Whether the last losses are past hope."""
        losses, train_losses = self.progress.curve.loss, self.progress.curve.train_loss
        first, last = losses[0], losses[-1]
        if first is None or last is None or (len(losses) > 1 and train_losses[-1] is None):
            return True
        return last > LOST * abs(first)

    def event(self, *, evaluated: bool) -> Event:
        """What the run has to tell."""
        progress, curve = self.progress, self.progress.curve
        return Event(
            self.settings.id,
            progress.step,
            progress.status,
            curve.loss[-1] if curve.loss else None,
            progress.seconds,
            evaluated,
        )

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
        return {"settings": self.settings.saved(), "progress": self.progress.saved()}

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
        self.progress = Progress.restored(progress)
        self.losses.copy_(losses)
        torch.set_rng_state(random.cpu())

    def result(self, command: str) -> Result:
        """The run as a line of results.jsonl has it."""
        settings, device = self.settings, self.settings.device
        on_gpu = device.startswith("cuda")
        return line_of(
            settings,
            self.progress,
            command,
            ranks=self.ranks,
            unit=self.task.unit,
            units=self.task.units * settings.accumulate,
            parameters=sum(p.numel() for p in self.model.parameters()),
            state_bytes=max(self.ranks.gathered(state_bytes(self.optimizer))),
            peak_memory_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        )


def line_of(
    settings: RunSettings,
    progress: Progress,
    command: str,
    *,
    ranks: Ranks = ALONE,
    unit: str = "samples",
    units: int = 0,
    parameters: int = 0,
    state_bytes: int = 0,
    peak_memory_bytes: int | None = None,
) -> Result:
    """A line of results.jsonl; a run that has failed early has neither a model nor a unit."""
    curve = asdict(progress.curve)
    if not curve["accuracy"]:
        del curve["accuracy"]
    line = {
        "id": settings.id,
        "label": settings.optimizer,
        "status": progress.status,
        "step": progress.step,
        "settings": settings.saved(),
        "unit": unit,
        "units": units or settings.batch * settings.accumulate,
        "parameters": parameters,
        "state_bytes": state_bytes,
        "curve": curve,
        "milliseconds": progress.times.milliseconds(),
        "mean_milliseconds": progress.times.mean_milliseconds(),
        "peak_memory_bytes": peak_memory_bytes,
        "environment": environment(settings.device, ranks),
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
