"""Runs into one folder, one after the other or side by side, each told of as it goes on."""

from __future__ import annotations

import multiprocessing
import os
import queue
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import Array, c_byte, c_long
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import torch

from ..errors import FailedRuns, LostRank, LostWorker, UsageError, warn
from ..files import append_line, write_text
from ..launchers.exchange import end_left
from ..loggers import Log
from ..render.display import Display
from ..results import read_results
from .progress import TRACEBACK, Event, Progress, Result, failure_text, is_failed
from .ranks import ALONE, Ranks
from .settings import RunSettings
from .tasks import Report, make_task
from .training import Keeping, Run, Watch, line_of, train

RESULTS: Final = "results.jsonl"
Launch: TypeAlias = Callable[..., Iterator[Result]]  # `run_all`, or the same by a cluster
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
    jobs: int | None,
    watch: Watch,
    stopping: Callable[[], bool],
) -> Iterator[Result]:
    """The result of each run as it ends, all on this machine."""
    jobs = jobs or default_jobs(len(runs), runs[0].device)
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
        ours = isinstance(error, UsageError | LostRank | LostWorker)
        if ours or ranks.mode is not None:
            raise
        return failed_result(settings, orders, error, watch, run=made[0] if made else None)


def failed_result(
    settings: RunSettings,
    orders: Orders,
    error: BaseException,
    watch: Watch,
    *,
    run: Run | None = None,
) -> Result:
    """The result of a run that an error has ended; it may have come before there was a `run`.

    The traceback is kept in the folder of the run.
    """
    text = "".join(traceback.format_exception(error))
    write_text(orders.folder / "runs" / settings.id / TRACEBACK, text)
    if run is None:
        watch(Event(settings.id, 0, "failed", None, 0.0, evaluated=True))
        result = line_of(settings, Progress(), orders.command)
    else:
        watch(run.event(evaluated=True)._replace(status="failed"))
        result = run.result(orders.command)
    said = "".join(traceback.format_exception_only(error)).strip()
    return {**result, "status": "failed", "error": said}


def default_jobs(runs: int, device: str) -> int:
    """How many runs to have side by side: as many as there are cores; one on an accelerator."""
    return min(runs, cores()) if device == "cpu" else 1


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- Many runs ------------------------------------------------------------------------------------


def carry_out(
    runs: Sequence[RunSettings],
    orders: Orders,
    *,
    jobs: int | None,
    shown: Display,
    stopping: Callable[[], bool],
    launch: Launch | None = None,
) -> list[Result]:
    """Carry out the runs that the folder has no result of, from their checkpoints if they have any.

    Returns those that have failed, which a next time tries again; the others go on without them.

    Args:
        runs: All that are wanted, each once.
        orders: Among other things the folder.
        jobs: How many side by side; None for as many as there are cores, or as a cluster takes.
        shown: Where they are told of.
        stopping: Whether to save and return.
        launch: How they are carried out; None for on this machine.
    """
    folder = orders.folder
    end_left(folder)
    done = {result["id"] for result in finished(folder, runs)}
    for name in done:
        _forget(folder, name)  # a kill may have come between a result and this
    todo = [settings for settings in runs if settings.id not in done]
    if not todo:
        return []
    ours = (run for run in todo if not run.task_place)
    for settings in {(run.task, run.data, run.vocabulary): run for run in ours}.values():
        make_task(settings, report=shown.say)  # what is prepared once is prepared here
    failed: list[Result] = []
    launch = launch or run_all
    shown.begin(todo, len(done))
    try:
        for result in launch(todo, orders, jobs=jobs, watch=shown.event, stopping=stopping):
            if result["status"] != "stopped":
                append_line(folder / RESULTS, result)
            if is_failed(result):
                failed.append(result)
                shown.say(failure_text(result, folder))
            elif result["status"] != "stopped":
                _forget(folder, result["id"])
    finally:
        shown.end()
    return failed


def _forget(folder: Path, name: str) -> None:
    """Remove the checkpoints of a run that has its result."""
    shutil.rmtree(folder / "runs" / name, ignore_errors=True)


def finished(folder: Path, runs: Sequence[RunSettings]) -> list[Result]:
    """The results of these runs that the folder has, but for those that have failed."""
    return [result for result in ended(folder, runs) if not is_failed(result)]


def ended(folder: Path, runs: Sequence[RunSettings]) -> list[Result]:
    """The results of these runs that the folder has, the errors of failed ones among them."""
    path = folder / RESULTS
    wanted = {settings.id for settings in runs}
    results = read_results(path) if path.exists() else []
    return [result for result in results if result["id"] in wanted]


def check_failed(failed: Sequence[Result], command: str) -> None:
    """Raises FailedRuns if there are any, for those who need the results of all runs."""
    if failed:
        raise FailedRuns(f"{len(failed)} of the runs failed; to try them again: {command}")


def check_jobs(jobs: int | None) -> None:
    """Raises UsageError for a number of jobs that makes no sense."""
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}")


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Whether SIGINT or SIGTERM has come while this was entered; call it to ask.

    Args:
        patient: Take a second one for the first again: torchrun passes on what a rank may have got
            already, and kills by itself what does not end.
        signals: Those that it hears.

    >>> with Stopping() as stopping:
    ...     before = stopping()
    ...     signal.raise_signal(signal.SIGTERM)
    ...     before, stopping(), stopping.exit_code
    (False, True, 143)
    """

    def __init__(self, *, patient: bool = False, signals: Sequence[int] = SIGNALS) -> None:
        self.signal: int | None = None
        self._patient, self._signals = patient, signals
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that a signal has ended."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():  # no other hears of signals
            self._before = {number: signal.signal(number, self._hear) for number in self._signals}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not self._patient:
            signal.signal(number, self._before[number])


# --- Side by side --------------------------------------------------------------------------------

GO_ON: Final = 0
STOP: Final = 1  # save, and say how far it came
LEAVE: Final = 2  # save, and end: nobody listens any more
IDLE: Final = 2  # so many workers may be killed that have no run
LEFT: Final = 75  # the exit code of a worker that did so

_told: Queue[Event]  # in a worker: where its events go …
_asked: c_byte  # … what it is asked for, without a lock that a killed one could keep …
_training: Array[c_long]  # … which process each run is in …
_busy = threading.Lock()  # … and whether it is carrying out a run


def _side_by_side(
    runs: Sequence[RunSettings],
    orders: Orders,
    jobs: int,
    watch: Watch,
    stopping: Callable[[], bool],
) -> Iterator[Result]:
    """The results of all runs; one whose process is killed has failed, and the others go on."""
    left, idle = {run.id: run for run in runs}, 0
    while left:
        killed: dict[str, int] = {}
        try:
            for result in _in_pool(list(left.values()), orders, jobs, watch, stopping, killed):
                del left[result["id"]]
                yield result
            if not killed:
                return
        except LostWorker:  # which had no run at the time
            idle += 1
            if idle > IDLE:
                raise
        for id_, code in killed.items():
            how = f"by signal {-code}" if code < 0 else f"with code {code}"
            text = f"the process of the run ended {how}; by the system, if memory was short"
            yield failed_result(left.pop(id_), orders, ChildProcessError(text), watch)


def _in_pool(
    runs: Sequence[RunSettings],
    orders: Orders,
    jobs: int,
    watch: Watch,
    stopping: Callable[[], bool],
    killed: dict[str, int],
) -> Iterator[Result]:
    """The results of runs until a worker is killed: `killed` then has its run and exit code."""
    context = multiprocessing.get_context("spawn")
    told: Queue[Event] = context.Queue()
    asked = context.RawValue(c_byte, GO_ON)
    training = context.RawArray(c_long, len(runs))  # the process that each run is in
    threads = max(1, cores() // jobs)
    workers: dict[int | None, BaseProcess] = {}
    try:
        with ProcessPoolExecutor(jobs, context, _prepare, (told, asked, training, threads)) as pool:
            jobs_of = enumerate(runs)
            waiting: set[Future[Result]] = {pool.submit(_work, *job, orders) for job in jobs_of}
            try:
                while waiting:
                    done, waiting = wait(waiting, timeout=TOLD_EVERY, return_when=FIRST_COMPLETED)
                    workers |= {child.pid: child for child in multiprocessing.active_children()}
                    _pass_on(told, watch)
                    yield from (future.result() for future in done)
                    if stopping() and asked.value == GO_ON:
                        asked.value = STOP
                        waiting = {future for future in waiting if not future.cancel()}
            except BaseException:
                asked.value = LEAVE  # the pool waits for its workers, whatever has happened
                for future in waiting:
                    future.cancel()
                raise
    except BrokenProcessPool as error:
        codes = {
            run.id: workers[pid].exitcode
            for run, pid in zip(runs, training, strict=True)
            if pid in workers
        }
        killed |= {id_: code for id_, code in codes.items() if code not in (None, 0, LEFT)}
        exits = {worker.exitcode or 0 for worker in workers.values()} - {LEFT}
        if not killed and max(exits, default=0) > 0:  # which raised before they had a run
            raise UsageError(
                "the processes that train side by side could not begin: they have said why"
            ) from error
        if not killed:
            raise LostWorker(
                "a process that trained beside others was killed, by the system if memory was "
                f"short; what is in {orders.folder} is whole: go on as after Ctrl-C"
            ) from error


def _prepare(told: Queue[Event], asked: c_byte, training: Array[c_long], threads: int) -> None:
    """Make a worker ready; signals are the business of the process that started it."""
    global _told, _asked, _training
    _told, _asked, _training = told, asked, training
    threading.Thread(target=_leave_in_time, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(threads)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _leave_in_time(parent: int) -> None:
    """End a worker that nobody listens to, after its run has saved; by itself it would wait on."""
    while _asked.value != LEAVE and os.getppid() == parent:
        time.sleep(TOLD_EVERY)
    with _busy:
        os._exit(LEFT)


def _work(index: int, settings: RunSettings, orders: Orders) -> Result:
    parent = os.getppid()

    def stopping() -> bool:
        return _asked.value != GO_ON or os.getppid() != parent

    with _busy:
        _training[index] = os.getpid()
        result = run_one(settings, orders, watch=_tell, stopping=stopping)
        _training[index] = 0
        return result


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
