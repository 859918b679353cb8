"""`deva tune`: the learning rate of each optimizer on a task, by the rule of the race."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import Any

from ..carry_out import carry_out, check_jobs, finished
from ..entrants import entrants
from ..files import write_record
from ..launchers import is_elsewhere, launching
from ..loggers import check_loggers, names_of, prepare_loggers
from ..plan import as_begun, plan
from ..progress import Result
from ..render.display import display
from ..render.pages import Comparison
from ..runner import Orders
from ..settings import RunSettings
from ..stopping import Stopping
from ..tuning import Found, Search, table
from ..usage.compare import OPTIMIZERS
from ..usage.tune import BUDGET
from ..user_source import is_user_task
from .options import (
    OPTIONS,
    REQUESTED,
    command_line,
    given_options,
    output_folder,
    request_of,
)

DEFAULTS = {"optimizers": OPTIMIZERS, "budget": BUDGET}
NOT_COMPARED = ("lr", "seeds", "log")  # of what was asked for, what the comparison has of its own


def run(options: argparse.Namespace) -> int:
    """Tune; the exit code is 0, 1 if a run failed, 128 + the signal if one came."""
    folder = output_folder(options, "tune")
    given = given_options(options, DEFAULTS)
    elsewhere = is_elsewhere(options, given)
    request = request_of(given, entrants(given["optimizers"]), elsewhere=elsewhere)
    shown = display()
    (base, *_) = as_begun(plan(request), folder, shown.say)
    search = Search(base, request.optimizers, request.seeds, given["budget"])
    check_jobs(options.jobs)
    log = names_of(given.get("log"))
    check_loggers(log)
    orders = Orders(folder, command_line(options.words), options.save_every, log)
    runs: dict[str, RunSettings] = {}
    failed: dict[str, Result] = {}

    def results() -> list[Result]:
        return [*finished(folder, list(runs.values())), *failed.values()]

    with launching(options, folder) as launch, Stopping() as stopping:
        prepare_loggers(log, folder)
        write_record(folder / OPTIONS, given)
        while not stopping() and (following := search.next(results())):
            runs |= {one.id: one for one in following}
            lost = carry_out(
                following,
                orders,
                jobs=options.jobs,
                shown=shown,
                stopping=stopping,
                launch=launch,
            )
            failed |= {result["id"]: result for result in lost}
    found = search.found(results())
    if results():
        Comparison(results()).publish(folder)
        shown.say("\n" + table(found) + f"\n\n{folder / 'report.html'}")
    if stopping():
        shown.say(f"Stopped. To go on: deva tune --resume {folder}")
    elif any(one.lr is not None for one in found):
        shown.say("\nTo compare them at these rates, on seeds that have chosen nothing:")
        shown.say(f"  {compare_line(found, given, search)}")
    return stopping.exit_code or int(bool(failed))


def compare_line(found: list[Found], given: dict[str, Any], search: Search) -> str:
    """The command that compares the optimizers at the rates that were found."""
    chosen = ",".join(one.text for one in found if one.lr is not None)
    words = ["deva", "compare", "--optimizers", chosen]
    for name, value in given.items():
        if name not in REQUESTED or name in NOT_COMPARED:
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        else:
            words += [option, _shorter(value) if name == "task" else str(value)]
    return shlex.join([*words, "--seeds", ",".join(map(str, search.rules.final_seeds))])


def _shorter(task: str) -> str:
    """The path of a user's task as one would type it here."""
    return min(task, os.path.relpath(task), key=len) if is_user_task(task) else task
