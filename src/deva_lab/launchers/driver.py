"""The driver of runs on a cluster, and its workers.

The driver has runs started, passes on what they tell and collects results. A run whose worker has
died is started again and goes on from its last checkpoint. One that has died several times without
getting to another checkpoint has failed.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import torch

from ..errors import LostWorker, UsageError, warn
from ..run.checkpoint import found
from ..run.progress import Result
from ..run.runner import Orders, failed_result, run_one
from ..run.settings import RunSettings
from ..run.training import Watch
from .exchange import LOOK_EVERY, Exchange, Lease, Listening, Telling, opened

TRIES: Final = 3  # of a run, each from the same checkpoint
MANY: Final = 50  # jobs, with which one looks half as often
SEEN_AFTER: Final = 60.0  # seconds until a file that another machine has written is seen here


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

    def start(self, name: str, function: Callable[..., None]) -> Job:
        """Have a function called, when there is room for it.

        Args:
            name: For those who look at what the cluster does.
            function: Takes no argument, or `asked`, as `work` has it.
        """


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
    with opened(orders.folder) as exchange:
        driver, waiting = _Driver(cluster, orders, exchange, watch), deque(runs)
        try:
            while waiting or driver.jobs:
                while waiting and len(driver.jobs) < (jobs or len(runs)) and not stopping():
                    driver.start(waiting.popleft())
                time.sleep(LOOK_EVERY * (1 + len(driver.jobs) / MANY))
                driver.listen()
                for settings, how in driver.ended():
                    result = driver.result(settings, how)
                    if result is None:
                        waiting.append(settings)
                    else:
                        yield result
                if stopping():
                    waiting.clear()
                    driver.ask_to_stop()
        finally:
            for job in driver.jobs.values():
                job.cancel()


class _Driver:
    """The jobs that have been started and have not ended."""

    def __init__(self, cluster: Cluster, orders: Orders, exchange: Exchange, watch: Watch) -> None:
        self.cluster, self.orders, self.exchange, self.watch = cluster, orders, exchange, watch
        self.jobs: dict[RunSettings, Job] = {}
        self.listening = Listening(exchange)
        self.asked = False  # whether they are to stop
        self._returned: dict[RunSettings, float] = {}  # when they were seen to have
        self._lost: dict[RunSettings, tuple[list[Path], int]] = {}  # after which one, how often

    def start(self, settings: RunSettings) -> None:
        """Have a run started, or gone on with."""
        self._returned.pop(settings, None)
        call = partial(work, settings, self.orders, self.exchange, self.cluster.cpus)
        self.jobs[settings] = self.cluster.start(f"deva-{settings.id}", call)

    def listen(self) -> None:
        """Say that the driver is there, and pass on what the runs have told."""
        self.listening.renew()
        for settings in self.jobs:
            for event in self.listening.new_events(settings.id):
                self.watch(event)

    def ended(self) -> Iterator[tuple[RunSettings, str]]:
        """The runs whose jobs have ended, and how."""
        for settings, job in list(self.jobs.items()):
            how = job.ended()
            if how is not None and (how or self._is_seen(settings)):
                del self.jobs[settings]
                yield settings, how

    def _is_seen(self, settings: RunSettings) -> bool:
        """Whether the outcome of a job that has returned can be read, or will never be."""
        since = self._returned.setdefault(settings, time.monotonic())
        late = time.monotonic() - since > SEEN_AFTER
        return late or self.asked or self.exchange.outcome(settings.id).exists()

    def result(self, settings: RunSettings, how: str) -> Result | None:
        """The result of a run whose job has ended; None if another job has to go on with it."""
        outcome = self.exchange.take(settings.id) or {}
        if "refused" in outcome:
            raise UsageError(outcome["refused"])
        result: Result = outcome.get("result", {"status": "stopped"})
        if self.asked or result["status"] != "stopped":
            return result
        return self._lost_result(settings, how)

    def _lost_result(self, settings: RunSettings, how: str) -> Result | None:
        """The result of a run that is lost again and again; None while it is worth another try."""
        newest = found(self.orders.folder / "runs" / settings.id)[:1]
        before, times = self._lost.get(settings, ([], 0))
        times = times + 1 if newest == before else 1
        self._lost[settings] = newest, times
        if times < TRIES:
            if how:
                warn(f"the worker of {settings.id} was lost, and another one goes on: {how}")
            return None
        how = how or "the cluster asked it to end"
        error = LostWorker(f"{TRIES} workers were lost without another checkpoint, at last: {how}")
        return failed_result(settings, self.orders, error, self.watch)

    def ask_to_stop(self) -> None:
        """Ask the runs to save and to end, once; those that have not begun are cancelled."""
        if self.asked:
            return
        self.asked = True
        self.listening.end_lease()
        for settings, job in list(self.jobs.items()):
            if not self.exchange.events(settings.id).exists():
                job.cancel()
                del self.jobs[settings]


def work(
    settings: RunSettings,
    orders: Orders,
    exchange: Exchange,
    threads: int,
    asked: Callable[[], bool] = lambda: False,
) -> None:
    """Carry out a run, from its checkpoint if it has one, and leave the outcome for the driver.

    Args:
        settings: The run.
        orders: What holds for all runs.
        exchange: Where the driver waits for word.
        threads: The threads of a product.
        asked: Whether the cluster asks this worker to end, as for a limit of time.

    Raises:
        UsageError: If this machine does not see the folder of the results.
    """
    if not orders.folder.is_dir():
        raise UsageError(not_seen(str(orders.folder), socket.gethostname()))
    if not exchange.lease.exists():
        return  # the driver has gone since it asked for this
    torch.set_num_threads(threads)
    lease, tell = Lease(exchange.lease), Telling(exchange.events(settings.id))
    try:
        result = run_one(settings, orders, watch=tell, stopping=lambda: asked() or lease())
    except UsageError as error:
        exchange.leave(settings.id, {"refused": str(error)})
    else:
        exchange.leave(settings.id, {"result": result})


def not_seen(folder: str, host: str) -> str:
    """What is wrong where a machine does not see the folder of the results."""
    return (
        f"{host} does not see {folder}: choose a folder with --out that is on storage which all "
        "machines of the cluster share, under the same path"
    )
