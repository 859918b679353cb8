"""Runs into one folder: in this process, side by side on this machine, by Ray, or by SLURM.

Wherever they are carried out, each goes on from its own checkpoints, and `driver` looks after them.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from ..errors import CommandError, UsageError
from ..files import append_line
from ..machine import cores
from ..render.display import Display
from ..results import RESULTS, read_results
from ..run.progress import Result, Watch, failure_text, is_failed
from ..run.runner import SIGNALS, Orders, run_one
from ..run.settings import RunSettings
from ..run.tasks import make_task
from .driver import Cluster, end_leftovers, run_on


def carry_out(
    runs: Sequence[RunSettings],
    orders: Orders,
    *,
    jobs: int | None,
    shown: Display,
    stopping: Callable[[], bool],
    cluster: Cluster | None = None,
) -> list[Result]:
    """Carry out the runs that the folder has no result of, from their checkpoints if they have any.

    Returns those that have failed, which a next time tries again; the others go on without them.

    Args:
        runs: All that are wanted, each once.
        orders: Among other things the folder.
        jobs: How many side by side; None for as many as there are cores, or as a cluster takes.
        shown: Where they are told of.
        stopping: Whether to save and return.
        cluster: Where they are carried out; None for on this machine.
    """
    folder = orders.folder
    end_leftovers(folder)
    done = {result["id"] for result in finished(folder, runs)}
    for name in done:
        _forget(folder, name)  # a kill may have come between a result and this
    todo = [settings for settings in runs if settings.id not in done]
    if not todo:
        return []
    if cluster is None:  # by all runs, not by those that are left: threads and times are the same
        jobs = jobs or jobs_for(runs)
    ours = (run for run in todo if not run.task_place)
    for settings in {(run.task, run.data, run.vocabulary): run for run in ours}.values():
        make_task(settings, report=shown.say)  # what is prepared once is prepared here
    failed: list[Result] = []
    shown.begin(todo, len(done))
    try:
        for result in _results(todo, orders, jobs, shown.event, stopping, cluster):
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


def _results(
    runs: Sequence[RunSettings],
    orders: Orders,
    jobs: int | None,
    watch: Watch,
    stopping: Callable[[], bool],
    cluster: Cluster | None,
) -> Iterator[Result]:
    """The result of each run as it ends."""
    if cluster is not None:
        yield from run_on(cluster, runs, orders, jobs=jobs, watch=watch, stopping=stopping)
        return
    if jobs is not None and jobs > 1:
        with ThisMachine(jobs) as here:
            yield from run_on(here, runs, orders, jobs=jobs, watch=watch, stopping=stopping)
        return
    for settings in runs:
        yield run_one(settings, orders, watch=watch, stopping=stopping)
        if stopping():
            return


def jobs_for(runs: Sequence[RunSettings]) -> int:
    """How many run side by side unless told: as many as there are cores, one on an accelerator."""
    return min(len(runs), cores()) if runs[0].device == "cpu" else 1


def _forget(folder: Path, name: str) -> None:
    """Remove the checkpoints of a run that has its result."""
    shutil.rmtree(folder / "runs" / name, ignore_errors=True)


def finished(folder: Path, runs: Sequence[RunSettings]) -> list[Result]:
    """The results of these runs that the folder has, but for those that have failed."""
    return [result for result in ended(folder, runs) if not is_failed(result)]


def ended(folder: Path, runs: Sequence[RunSettings]) -> list[Result]:
    """The results of these runs that the folder has, in their order, those of failed ones too."""
    path = folder / RESULTS
    results = {result["id"]: result for result in read_results(path)} if path.exists() else {}
    return [results[settings.id] for settings in runs if settings.id in results]


def check_failed(failed: Sequence[Result], command: str) -> None:
    """Raises CommandError if there are any, for those who need the results of all runs."""
    if failed:
        raise CommandError(f"{len(failed)} of the runs failed; to try them again: {command}")


def check_jobs(jobs: int | None) -> None:
    """Raises UsageError for a number of jobs that makes no sense."""
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}")


# --- Side by side on this machine ----------------------------------------------------------------


class ThisMachine:
    """Processes of this machine that share its cores, each for one run after the other.

    It is a context, at whose end those without a run end. One that still has a run ends by itself,
    when it has seen that nobody waits for it.
    """

    tries = 1  # the system may have killed it because memory was short, which it would be again

    def __init__(self, jobs: int) -> None:
        self.cpus = max(1, cores() // jobs)
        self._workers: list[Worker] = []

    def __enter__(self) -> ThisMachine:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.connection.close()

    def start(self, name: str, function: Callable[..., None]) -> Worker:
        """Have a function called by a process that has nothing to do, or by a new one."""
        idle = (worker for worker in self._workers if not worker.busy and worker.process.is_alive())
        worker = next(idle, None)
        if worker is None:
            worker = Worker()
            self._workers.append(worker)
        worker.busy = True
        with suppress(OSError):  # of one that has just gone, which `ended` notices
            worker.connection.send(function)
        return worker


class Worker:
    """A process, and the function that it has been given."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()  # so that its end is heard of
        self.begun = self.busy = False

    def ended(self) -> str | None:
        """None while it waits or runs; "" if it has returned; otherwise how it was lost."""
        try:
            while self.busy and self.connection.poll():
                returned = self.connection.recv()
                self.begun, self.busy = True, not returned
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            if not self.begun and code > 0:
                raise UsageError(
                    "the processes that train side by side could not begin: they have said why"
                ) from None
            how = f"by signal {-code}" if code < 0 else f"with code {code}"
            return f"the process of the run ended {how}; by the system, if memory was short"
        return None if self.busy else ""

    def cancel(self) -> None:
        """End it if it has not begun; otherwise it has heard that it is to save and to end."""
        if not self.begun:
            self.process.terminate()


def _serve(connection: Connection) -> None:
    """In a process: call one function after the other, as long as there is somebody to say which.

    Signals are the business of the process that started it.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.send(False)  # it has begun
    while True:
        try:
            function = connection.recv()
        except (EOFError, OSError):
            return
        function(asked=lambda: not parent.is_alive())
        with suppress(OSError):
            connection.send(True)
