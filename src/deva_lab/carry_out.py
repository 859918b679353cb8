"""Many runs into one folder: those that it has no result of are carried out, and theirs added."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import FailedRuns, UsageError
from .failures import failure_text
from .files import append_line
from .launchers.exchange import end_left
from .progress import Result, is_failed
from .render.display import Display
from .results import read_results
from .runner import Launch, Orders, run_all
from .settings import RunSettings
from .tasks import make_task

RESULTS = "results.jsonl"


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
