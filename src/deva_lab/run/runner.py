"""One run: the loop that trains it, what is kept of it, and what an error or a signal does."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from ..data import Report, silent
from ..errors import UsageError, warn
from ..files import write_text
from ..loggers import Log, Subject, outcome
from . import checkpoint
from .environment import environment
from .progress import TRACEBACK, Event, Progress, Result, Watch
from .ranks import ALONE, Ranks
from .settings import RunSettings
from .tasks import make_task
from .training import Run, line_of

T = TypeVar("T")


@dataclass(frozen=True)
class Orders:
    """What holds for all runs."""

    folder: Path  # each run has its checkpoints in folder/runs/id
    command: str
    save_every: float = 60.0  # seconds
    log: tuple[str, ...] = ()  # names of loggers


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
    run = None
    try:
        run = Run(settings, make_task(settings, report=silent), ranks)
        return train(
            run,
            folder=orders.folder / "runs" / settings.id,
            save_every=orders.save_every,
            watch=watch,
            stopping=stopping,
            command=orders.command,
            say=say,
            log=Log(orders.log, orders.folder, logs=ranks.leads),
        )
    except (Exception, SystemExit) as error:
        if isinstance(error, UsageError) or ranks.mode is not None:
            raise
        return failed_result(settings, orders, error, watch, run=run)


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
        result = line_of(settings, Progress(), orders.command, environment(settings.device))
    else:
        watch(run.event(evaluated=True)._replace(status="failed"))
        result = run.result(orders.command)
    said = "".join(traceback.format_exception_only(error)).strip()
    return {**result, "status": "failed", "error": said}


def train(
    run: Run,
    *,
    folder: Path | None = None,
    save_every: float = 60.0,
    save_steps: int | None = None,
    watch: Watch = lambda event: None,
    stopping: Callable[[], bool] = lambda: False,
    command: str = "",
    say: Report = silent,
    log: Log | None = None,
) -> Result:
    """The result of a run, as a line of results.jsonl has it.

    Args:
        run: The run. It goes on from the newest checkpoint, if there is one.
        folder: Where its checkpoints are; None neither reads nor writes any.
        save_every: Seconds between two of them; there is one at the end as well.
        save_steps: Steps after which there is one each time, whatever the seconds.
        watch: Hears of every step.
        stopping: Asked after every step: whether to save and return with the status "stopped".
        command: What the user typed, for the result.
        say: Hears what a person should know.
        log: Where its curves go besides.
    """
    settings, task, ranks, log = run.settings, run.task, run.ranks, log or Log()
    run.observed = log.wanted
    if folder is not None:
        checkpoint.load(folder, run, say)
    saved = time.monotonic()
    with log:
        if log.wanted:
            about = {"command": command, "environment": run.environment}
            subject = Subject(settings.id, log.folder, settings.saved(), about)
            log.begin(subject, run.points())
        if run.progress.step == 0:
            run.evaluate()
            log.add(run.newest())
            watch(run.event(evaluated=True))
        start = run.progress.step * settings.accumulate
        ahead = getattr(task, "ahead", True)
        with in_turn(lambda i: ranks.part(task.batch(i)), start=start, ahead=ahead) as batches:
            while run.progress.status == "running":
                run.step(batches)
                evaluated = settings.evaluates(run.progress.step)
                if evaluated:
                    run.evaluate()
                    log.add(run.newest())  # before the checkpoint: no run goes on behind its log
                if run.progress.status == "running" and ranks.any(stopping()):
                    run.progress.status = "stopped"
                full = save_steps is not None and run.progress.step % save_steps == 0
                over = ranks.leads and time.monotonic() - saved >= save_every
                ends = run.progress.status != "running"
                if folder is not None and ranks.any(full or over or ends):
                    saved = time.monotonic()
                    checkpoint.save(folder, run)
                watch(run.event(evaluated=evaluated))
        result = run.result(command)
        stopped = result["status"] == "stopped"  # and goes on another time
        log.end(result["status"], {} if stopped else outcome(result))
    return result


@contextmanager
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
            self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not self._patient:
            signal.signal(number, self._before[number])
