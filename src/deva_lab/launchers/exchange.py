"""The folder in which a driver and its workers, which are on other machines, leave word.

The driver renews a file, the lease, while it wants its runs to go on; each run has a file of its
events and one of its outcome. A worker saves its run and ends when the lease is gone, or has not
been renewed for long: so nothing is left running, whatever has happened to the driver.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import LostWorker
from ..files import read_record, write_record
from ..run.progress import Event

PREFIX: Final = "launch-"
LOOK_EVERY: Final = 0.5  # seconds, of either side
RENEW_EVERY: Final = 10.0
ALONE_AFTER: Final = 300.0  # seconds without renewal
TOLD_EVERY: Final = 2.0  # seconds between two events of a run, evaluations aside


@dataclass(frozen=True)
class Exchange:
    """The paths of an exchange, and what its workers do with them."""

    folder: Path

    @property
    def lease(self) -> Path:
        """The file that the driver renews."""
        return self.folder / "lease"

    def events(self, run: str) -> Path:
        """The events of a run, a line each; it is there once the run has begun."""
        return self.folder / f"{run}.events"

    def outcome(self, run: str) -> Path:
        """What came of a run."""
        return self.folder / f"{run}.json"

    def leave(self, run: str, outcome: dict[str, Any]) -> None:
        """Leave the outcome of a run, unless nobody waits for it any more."""
        if self.folder.is_dir():
            write_record(self.outcome(run), outcome)

    def take(self, run: str) -> dict[str, Any] | None:
        """The outcome of a run, which is then gone; None if there is none."""
        path = self.outcome(run)
        if not path.exists():
            return None
        outcome = read_record(path, begins=())
        path.unlink()
        return outcome


@contextmanager
def opened(results: Path) -> Iterator[Exchange]:
    """A new exchange in the folder of the results."""
    results.mkdir(parents=True, exist_ok=True)
    exchange = Exchange(results / f"{PREFIX}{uuid.uuid4().hex[:12]}")
    exchange.folder.mkdir()
    exchange.lease.touch()
    try:
        yield exchange
    finally:
        shutil.rmtree(exchange.folder, ignore_errors=True)


def end_left(results: Path) -> None:
    """End the exchanges that killed drivers left, and give workers that still train time to see it.

    One that sees it later does no harm, as it writes the same checkpoints.
    """
    left = list(results.glob(f"{PREFIX}*"))
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    if left:
        time.sleep(4 * LOOK_EVERY)


class Listening:
    """The driver's side: it renews the lease, and reads the events that are new."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._renewed = time.monotonic()
        self._read: dict[str, int] = {}  # the bytes of each file that have been read

    def renew(self) -> None:
        """Say that the driver still wants its runs, if that is some time ago.

        Raises:
            LostWorker: If another driver has taken over the folder.
        """
        if time.monotonic() - self._renewed < RENEW_EVERY:
            return
        self._renewed = time.monotonic()
        try:
            os.utime(self.exchange.lease)
        except FileNotFoundError as error:
            raise LostWorker(
                f"another command has begun in {self.exchange.folder.parent} and goes on with its "
                "runs: this one ends"
            ) from error

    def end_lease(self) -> None:
        """Ask the workers to save and to end."""
        self.exchange.lease.unlink(missing_ok=True)
        self._renewed = float("inf")

    def new_events(self, run: str) -> Iterator[Event]:
        """The events of a run since the last call; of a killed worker the last may be cut short."""
        with suppress(OSError), self.exchange.events(run).open("rb") as file:
            file.seek(self._read.get(run, 0))
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read[run] = self._read.get(run, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                with suppress(ValueError, TypeError):
                    yield Event(*json.loads(line))


class Telling:
    """A worker's side: it writes events down, unless one has just been written."""

    def __init__(self, path: Path) -> None:
        self.path, self._last = path, float("-inf")
        path.touch()

    def __call__(self, event: Event) -> None:
        """Tell of an event; where the driver is gone, nobody hears it."""
        said = event.evaluated or event.status != "running"
        if said or time.monotonic() - self._last >= TOLD_EVERY:
            self._last = time.monotonic()
            with suppress(OSError), self.path.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(json.dumps(event).encode() + b"\n")


class Lease:
    """A worker's side: whether the driver has ended its lease; call it to ask."""

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
        self._looked = now
        try:
            stamp = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            self.ended = True
            return True
        except OSError:  # storage that does not answer may do so later
            stamp = self._stamp
        if stamp != self._stamp:
            self._stamp, self._renewed = stamp, now
        self.ended = now - self._renewed > ALONE_AFTER
        return self.ended
