"""`deva compare`: several optimizers on the same task, and a page that says how they did."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..carry_out import carry_out, check_jobs, ended
from ..entrants import entrants
from ..files import write_record
from ..launchers import is_elsewhere, launching
from ..loggers import check_loggers, names_of, prepare_loggers
from ..plan import as_begun, check_baseline, plan
from ..render.display import display
from ..render.pages import Comparison
from ..runner import Orders
from ..settings import RunSettings
from ..stopping import Stopping
from ..usage.compare import OPTIMIZERS
from .options import (
    OPTIONS,
    command_line,
    given_options,
    output_folder,
    request_of,
)


def run(options: argparse.Namespace) -> int:
    """Compare; the exit code is 0 when all runs have ended, 1 if one failed, 128 + a signal."""
    folder = output_folder(options, "compare")
    given = given_options(options, {"optimizers": OPTIMIZERS})
    elsewhere = is_elsewhere(options, given)
    runs = plan(request_of(given, entrants(given["optimizers"]), elsewhere=elsewhere))
    log = names_of(given.get("log"))
    _check(options, runs, log)
    shown = display()
    orders = Orders(folder, command_line(options.words), options.save_every, log)
    with launching(options, folder) as launch, Stopping() as stopping:
        runs = as_begun(runs, folder, shown.say)
        prepare_loggers(log, folder)
        write_record(folder / OPTIONS, given)
        failed = carry_out(
            runs, orders, jobs=options.jobs, shown=shown, stopping=stopping, launch=launch
        )
    results = ended(folder, runs)
    if results:
        shown.say("\n" + Comparison(results, baseline=options.baseline).publish(folder))
    if stopping():
        shown.say(f"Stopped. To go on: deva compare --resume {folder}")
    if failed:
        shown.say(f"Failed: {len(failed)}. To try again: deva compare --resume {folder}")
    return stopping.exit_code or int(bool(failed))


def _check(options: argparse.Namespace, runs: Sequence[RunSettings], log: Sequence[str]) -> None:
    """Raises UsageError for what would come to light after hours."""
    check_baseline(options.baseline, runs)
    check_jobs(options.jobs)
    check_loggers(log)
