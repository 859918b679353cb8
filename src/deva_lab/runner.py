"""Several runs, one after the other or side by side, each told of as it goes on."""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Final

import torch

from .keeping import Keeping
from .progress import Event, Result
from .ranks import ALONE, Ranks
from .settings import RunSettings
from .tasks import Report, make_task
from .training import Watch, train

TOLD_EVERY: Final = 0.2  # seconds between two events of a run, evaluations aside


@dataclass(frozen=True)
class Orders:
    """What holds for all runs."""

    folder: Path  # each run has its checkpoints in folder/runs/id
    command: str
    save_every: float = 60.0  # seconds
    tensorboard: bool = False


def run_all(
    runs: Sequence[RunSettings],
    orders: Orders,
    *,
    jobs: int,
    watch: Watch,
    stopping: Callable[[], bool],
) -> Iterator[Result]:
    """The result of each run as it ends; those that `stopping` cut short have said so."""
    if jobs == 1:
        for settings in runs:
            yield run_one(settings, orders, watch=watch, stopping=stopping)
            if stopping():
                return
    else:
        yield from _side_by_side(runs, orders, jobs, watch, stopping)


def run_one(
    settings: RunSettings,
    orders: Orders,
    *,
    watch: Watch,
    stopping: Callable[[], bool],
    ranks: Ranks = ALONE,
    say: Report = lambda text: None,
) -> Result:
    """The result of a run, gone on with if it has a checkpoint."""
    task = make_task(settings, report=lambda text: None)
    keeping = Keeping(orders.folder / "runs" / settings.id, every_seconds=orders.save_every)
    if orders.tensorboard and ranks.leads:
        from .board import logged

        watch = logged(watch, orders.folder / "tensorboard" / settings.id)
    return train(
        settings,
        task,
        keeping=keeping,
        resume=True,
        watch=watch,
        stopping=stopping,
        command=orders.command,
        ranks=ranks,
        say=say,
    )


def default_jobs(runs: int, device: str) -> int:
    """How many runs to have side by side: as many as there are cores; one on an accelerator."""
    return min(runs, cores()) if device == "cpu" else 1


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- Side by side --------------------------------------------------------------------------------

_told: Queue[Event]  # in a worker: where its events go …
_stop: Flag  # … and whether it is asked to stop


def _side_by_side(
    runs: Sequence[RunSettings],
    orders: Orders,
    jobs: int,
    watch: Watch,
    stopping: Callable[[], bool],
) -> Iterator[Result]:
    context = multiprocessing.get_context("spawn")
    told: Queue[Event] = context.Queue()
    stop = context.Event()
    threads = max(1, cores() // jobs)
    with ProcessPoolExecutor(jobs, context, _prepare, (told, stop, threads)) as pool:
        waiting: set[Future[Result]] = {pool.submit(_work, run, orders) for run in runs}
        while waiting:
            done, waiting = wait(waiting, timeout=TOLD_EVERY, return_when=FIRST_COMPLETED)
            _pass_on(told, watch)
            yield from (future.result() for future in done)
            if stopping() and not stop.is_set():
                stop.set()
                waiting = {future for future in waiting if not future.cancel()}


def _prepare(told: Queue[Event], stop: Flag, threads: int) -> None:
    """Make a worker ready; signals are the business of the process that started it."""
    import signal

    global _told, _stop
    _told, _stop = told, stop
    torch.set_num_threads(threads)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _work(settings: RunSettings, orders: Orders) -> Result:
    parent = os.getppid()
    return run_one(
        settings,
        orders,
        watch=_tell,
        stopping=lambda: _stop.is_set() or os.getppid() != parent,
    )


_last_told = 0.0


def _tell(event: Event) -> None:
    """Send an event on, unless one has just been sent that says nearly the same."""
    global _last_told
    if event.evaluated or time.monotonic() - _last_told >= TOLD_EVERY:
        _told.put(event)
        _last_told = time.monotonic()


def _pass_on(told: Queue[Event], watch: Watch) -> None:
    while True:
        try:
            watch(told.get_nowait())
        except queue.Empty:
            return
