"""Several runs, one after the other or side by side, each told of as it goes on."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_byte
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Final

import torch

from .errors import LostWorker, warn
from .failures import OURS, failed_event, failed_result, write_traceback
from .keeping import Keeping
from .loggers import Log
from .progress import Event, Result
from .ranks import ALONE, Ranks
from .settings import RunSettings
from .tasks import Report, make_task
from .training import Run, Watch, train

TOLD_EVERY: Final = 0.2  # seconds between two events of a run, evaluations aside


@dataclass(frozen=True)
class Orders:
    """What holds for all runs."""

    folder: Path  # each run has its checkpoints in folder/runs/id
    command: str
    save_every: float = 60.0  # seconds
    log: tuple[str, ...] = ()  # names of loggers


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
    say: Report = warn,
) -> Result:
    """The result of a run, gone on with if it has a checkpoint.

    An error is a result as well, with the status "failed" and the text of the error; its traceback
    is kept in the folder of the run. What is raised is the laboratory's own, or comes over ranks,
    which have to end together.
    """
    folder, made = orders.folder / "runs" / settings.id, list[Run]()
    try:
        return train(
            settings,
            make_task(settings, report=lambda text: None),
            keeping=Keeping(folder, every_seconds=orders.save_every),
            resume=True,
            watch=watch,
            stopping=stopping,
            command=orders.command,
            ranks=ranks,
            say=say,
            log=Log(orders.log, orders.folder, speaks=ranks.leads),
            begun=made.append,
        )
    except (Exception, SystemExit) as error:
        if isinstance(error, OURS) or ranks.mode is not None:
            raise
        run = made[0] if made else None
        write_traceback(folder, error)
        watch(failed_event(settings, run))
        return failed_result(settings, run, error, orders.command)


def default_jobs(runs: int, device: str) -> int:
    """How many runs to have side by side: as many as there are cores; one on an accelerator."""
    return min(runs, cores()) if device == "cpu" else 1


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- Side by side --------------------------------------------------------------------------------

GO_ON: Final = 0
STOP: Final = 1  # save, and say how far it came
LEAVE: Final = 2  # save, and end: nobody listens any more

_told: Queue[Event]  # in a worker: where its events go …
_asked: c_byte  # … what it is asked for, without a lock that a killed one could keep …
_busy = threading.Lock()  # … and whether it is carrying out a run


def _side_by_side(
    runs: Sequence[RunSettings],
    orders: Orders,
    jobs: int,
    watch: Watch,
    stopping: Callable[[], bool],
) -> Iterator[Result]:
    context = multiprocessing.get_context("spawn")
    told: Queue[Event] = context.Queue()
    asked = context.RawValue(c_byte, GO_ON)
    threads = max(1, cores() // jobs)
    with ProcessPoolExecutor(jobs, context, _prepare, (told, asked, threads)) as pool:
        waiting: set[Future[Result]] = {pool.submit(_work, run, orders) for run in runs}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=TOLD_EVERY, return_when=FIRST_COMPLETED)
                _pass_on(told, watch)
                yield from (future.result() for future in done)
                if stopping() and asked.value == GO_ON:
                    asked.value = STOP
                    waiting = {future for future in waiting if not future.cancel()}
        except BaseException as error:
            asked.value = LEAVE  # the pool waits for its workers, whatever has happened
            for future in waiting:
                future.cancel()
            if isinstance(error, BrokenProcessPool):
                raise LostWorker(
                    "a process that trained beside others was killed, by the system if memory was "
                    f"short; what is in {orders.folder} is whole: go on as after Ctrl-C"
                ) from error
            raise


def _prepare(told: Queue[Event], asked: c_byte, threads: int) -> None:
    """Make a worker ready; signals are the business of the process that started it."""
    import signal

    global _told, _asked
    _told, _asked = told, asked
    threading.Thread(target=_leave_in_time, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(threads)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _leave_in_time(parent: int) -> None:
    """End a worker that nobody listens to, after its run has saved; by itself it would wait on."""
    while _asked.value != LEAVE and os.getppid() == parent:
        time.sleep(TOLD_EVERY)
    with _busy:
        os._exit(1)


def _work(settings: RunSettings, orders: Orders) -> Result:
    parent = os.getppid()

    def stopping() -> bool:
        return _asked.value != GO_ON or os.getppid() != parent

    with _busy:
        return run_one(settings, orders, watch=_tell, stopping=stopping)


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
