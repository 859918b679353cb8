"""The driver of runs, which is the command that the user typed, and its workers.

The driver has runs started by a cluster, passes on what they tell and collects results. It talks
with its workers through files in a folder that all machines see, so a cluster has only to start a
function somewhere, to say how it ended, and to end it. Each run has a file there, to which it adds
its events and at last its outcome. The driver renews a file, the lease, while it wants its runs to
go on. A worker saves its run and ends when the lease is gone, or has not been renewed for long: so
nothing is left running, whatever has happened to the driver.

A run whose worker has died is started again and goes on from its last checkpoint. One that has died
as often as the cluster tries it, without getting to another checkpoint, has failed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from ..errors import CommandError, UsageError, warn
from ..run.checkpoint import found
from ..run.progress import Event, Result, Watch
from ..run.runner import Orders, failed_result, run_one
from ..run.settings import RunSettings

PREFIX: Final = "launch-"  # of the folder, in that of the results
LEASE: Final = "lease"
LOOK_EVERY: Final = 0.2  # seconds, of either side
MANY: Final = 20  # jobs, with which the driver looks half as often
ENDED_AFTER: Final = 2.0  # seconds in which most workers have seen that the lease is gone
SEEN_AFTER: Final = 60.0  # seconds until a file that another machine has written is seen here
RENEW_EVERY: Final = 10.0
ALONE_AFTER: Final = 300.0  # seconds without renewal
TOLD_EVERY: Final = 1.0  # seconds between two events of a run, evaluations aside


class Job(Protocol):
    """A function that a cluster has been given to call."""

    def ended(self) -> str | None:
        """None while it waits or runs; "" if it has returned; otherwise how it was lost."""

    def cancel(self) -> None:
        """End it at once, if it has not ended."""


class Cluster(Protocol):
    """Where functions are called."""

    @property
    def cpus(self) -> int:
        """The cores that each has."""

    @property
    def tries(self) -> int:
        """How many workers a run may lose from the same checkpoint."""

    def start(self, name: str, function: Callable[..., None]) -> Job:
        """Have a function called, when there is room for it.

        Args:
            name: For those who look at what the cluster does.
            function: Takes no argument, or `asked`, as `work` has it.
        """


@contextmanager
def launch_folder(results: Path) -> Iterator[Path]:
    """A new folder, in that of the results, for a driver and its workers to leave word in."""
    folder = results / f"{PREFIX}{uuid.uuid4().hex[:12]}"
    folder.mkdir(parents=True)
    (folder / LEASE).touch()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def events_file(folder: Path, run: str) -> Path:
    """The file of a run, which is there once it has begun: lines of events, then its outcome."""
    return folder / f"{run}.jsonl"


def end_leftovers(results: Path) -> None:
    """End what killed drivers have left, and give workers that still train time to see it.

    One that sees it later does no harm, as it writes the same checkpoints.
    """
    left = list(results.glob(f"{PREFIX}*"))
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    if left:
        time.sleep(ENDED_AFTER)


# --- The driver ----------------------------------------------------------------------------------


def run_on(
    cluster: Cluster,
    runs: Sequence[RunSettings],
    orders: Orders,
    *,
    jobs: int | None,
    watch: Watch,
    stopping: Callable[[], bool],
) -> Iterator[Result]:
    """The result of each run as it ends, `jobs` of them at a time, or as many as the cluster takes.

    When `stopping` says so, runs that go on are asked to save, and the others are cancelled.
    """
    orders = replace(orders, folder=orders.folder.absolute())
    with launch_folder(orders.folder) as folder:
        driver, waiting = Driver(cluster, orders, folder, watch), deque(runs)
        try:
            while waiting or driver.jobs:
                while waiting and len(driver.jobs) < (jobs or len(runs)) and not stopping():
                    driver.start(waiting.popleft())
                time.sleep(LOOK_EVERY * (1 + len(driver.jobs) / MANY))
                driver.renew()
                if stopping():
                    waiting.clear()
                    driver.ask_to_stop()
                for settings, how in driver.ended():
                    result = driver.result(settings, how)
                    if result is None:
                        waiting.append(settings)
                    else:
                        yield result
        finally:
            for job in driver.jobs.values():
                job.cancel()


class Driver:
    """The jobs that have been started and have not ended."""

    def __init__(self, cluster: Cluster, orders: Orders, folder: Path, watch: Watch) -> None:
        self.cluster, self.orders, self.folder, self.watch = cluster, orders, folder, watch
        self.jobs: dict[RunSettings, Job] = {}
        self.asked = False  # whether they are to stop
        self._renewed = time.monotonic()
        self._read: dict[str, int] = {}  # the bytes of the file of each run that have been read
        self._outcomes: dict[str, dict[str, Any]] = {}
        self._returned: dict[RunSettings, float] = {}  # when they were seen to have
        self._lost: dict[RunSettings, tuple[list[Path], int]] = {}  # after which one, how often

    def start(self, settings: RunSettings) -> None:
        """Have a run started, or gone on with."""
        self._returned.pop(settings, None)
        call = partial(work, settings, self.orders, self.folder, self.cluster.cpus)
        self.jobs[settings] = self.cluster.start(f"deva-{settings.id}", call)

    def renew(self) -> None:
        """Say that the driver still wants its runs, if that is some time ago.

        Raises:
            CommandError: If another driver has taken over the folder.
        """
        if self.asked or time.monotonic() - self._renewed < RENEW_EVERY:
            return
        self._renewed = time.monotonic()
        try:
            os.utime(self.folder / LEASE)
        except FileNotFoundError as error:
            raise CommandError(
                f"another command has begun in {self.folder.parent} and goes on with its runs: "
                "this one ends"
            ) from error

    def ended(self) -> Iterator[tuple[RunSettings, str]]:
        """The runs whose jobs have ended, and how; what all have told is passed on first."""
        for settings, job in list(self.jobs.items()):
            how = job.ended()
            self.read_events(settings.id)
            if how is not None and (how or self._is_seen(settings)):
                del self.jobs[settings]
                yield settings, how

    def read_events(self, run: str) -> None:
        """Pass on the events that a run has told since the last time, and keep its outcome."""
        for told in self._new_lines(run):
            if isinstance(told, dict):
                self._outcomes[run] = told
            else:
                self.watch(Event(*told))

    def _new_lines(self, run: str) -> Iterator[Any]:
        """What a run has written since the last time, but for what a kill has cut short."""
        with suppress(OSError), events_file(self.folder, run).open("rb") as file:
            file.seek(self._read.get(run, 0))
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read[run] = self._read.get(run, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                with suppress(ValueError):
                    yield json.loads(line)

    def _is_seen(self, settings: RunSettings) -> bool:
        """Whether the outcome of a job that has returned can be read, or will never be."""
        since = self._returned.setdefault(settings, time.monotonic())
        late = time.monotonic() - since > SEEN_AFTER
        return late or self.asked or settings.id in self._outcomes

    def result(self, settings: RunSettings, how: str) -> Result | None:
        """The result of a run whose job has ended; None if another job has to go on with it."""
        outcome = self._outcomes.pop(settings.id, {})
        if "refused" in outcome:
            raise UsageError(outcome["refused"])
        result: Result = outcome.get("result", {"status": "stopped"})
        if self.asked or result["status"] != "stopped":
            return result
        return self._lost_result(settings, how)

    def _lost_result(self, settings: RunSettings, how: str) -> Result | None:
        """The result of a run that is lost again and again; None while it is worth another try."""
        tries, newest = self.cluster.tries, found(self.orders.folder / "runs" / settings.id)[:1]
        before, times = self._lost.get(settings, ([], 0))
        times = times + 1 if newest == before else 1
        self._lost[settings] = newest, times
        if times < tries:
            if how:
                warn(f"the worker of {settings.id} was lost, and another one goes on: {how}")
            return None
        how = how or "the cluster asked it to end"
        if tries > 1:
            how = f"{tries} workers were lost without another checkpoint, at last: {how}"
        return failed_result(settings, self.orders, ChildProcessError(how), self.watch)

    def ask_to_stop(self) -> None:
        """Ask the runs to save and to end, once; those that have not begun are cancelled."""
        if self.asked:
            return
        self.asked = True
        (self.folder / LEASE).unlink(missing_ok=True)
        for settings, job in list(self.jobs.items()):
            if not events_file(self.folder, settings.id).exists():
                job.cancel()
                del self.jobs[settings]


# --- Its workers ---------------------------------------------------------------------------------


def work(
    settings: RunSettings,
    orders: Orders,
    folder: Path,
    threads: int,
    asked: Callable[[], bool] = lambda: False,
) -> None:
    """Carry out a run, from its checkpoint if it has one, and leave the outcome for the driver.

    Args:
        settings: The run.
        orders: What holds for all runs.
        folder: Where the driver waits for word.
        threads: The threads of a product.
        asked: Whether the cluster asks this worker to end, as for a limit of time.

    Raises:
        UsageError: If this machine does not see the folder of the results.
    """
    if not orders.folder.is_dir():
        raise UsageError(
            f"{socket.gethostname()} does not see {orders.folder}: choose a folder with --out that "
            "is on storage which all machines of the cluster share, under the same path"
        )
    if not (folder / LEASE).exists():
        return  # the driver has gone since it asked for this
    torch.set_num_threads(threads)
    lease, tell = Lease(folder / LEASE), EventWriter(events_file(folder, settings.id))
    try:
        result = run_one(settings, orders, watch=tell, stopping=lambda: asked() or lease())
        tell.write({"result": result})
    except UsageError as error:
        tell.write({"refused": str(error)})


class EventWriter:
    """Writes events down for the driver, unless one has just been written."""

    def __init__(self, path: Path) -> None:
        self.path, self._last = path, float("-inf")
        with path.open("ab") as file:
            file.write(b"\n")  # which ends a line that a kill has cut short

    def __call__(self, event: Event) -> None:
        """Tell of an event."""
        said = event.evaluated or event.status != "running"
        if said or time.monotonic() - self._last >= TOLD_EVERY:
            self._last = time.monotonic()
            self.write(event)

    def write(self, told: Event | dict[str, Any]) -> None:
        """Add a line; where the driver is gone, and the file with it, nobody reads it."""
        with suppress(OSError), self.path.open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(told).encode() + b"\n")


class Lease:
    """Whether the driver has ended its lease; call it to ask."""

    def __init__(self, path: Path) -> None:
        self.path, self.ended = path, False
        self._stamp, self._renewed, self._looked = 0, time.monotonic(), float("-inf")

    def __call__(self) -> bool:
        """Whether to save and to end.

        Clocks of machines differ: what counts is for how long the time of the file has not changed.
        """
        now = time.monotonic()
        if self.ended or now - self._looked < LOOK_EVERY:
            return self.ended
        self._looked, stamp = now, self._stamp
        try:
            stamp = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            self.ended = True
            return True
        except OSError:  # storage that does not answer may do so later
            pass
        if stamp != self._stamp:
            self._stamp, self._renewed = stamp, now
        self.ended = now - self._renewed > ALONE_AFTER
        return self.ended
