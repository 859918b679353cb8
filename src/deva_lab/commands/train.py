"""`deva train`: one run, which a kill at any moment sets back by no more than a checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import append_line
from ..loggers import check_loggers, names_of
from ..render.display import Display, display
from ..render.pages import Comparison
from ..results import RESULTS
from ..run.entrants import Entrant
from ..run.plan import as_begun, plan
from ..run.progress import Result, failure_text, is_failed
from ..run.ranks import Ranks, check, joined, launcher
from ..run.runner import Orders, Stopping, run_one
from ..run.settings import RunSettings
from ..run.tasks import make_task
from ..usage.training import OPTIMIZER
from .options import (
    OPTIONS,
    begin,
    command_line,
    given_options,
    options_in,
    output_folder,
    request_of,
)

DEFAULTS = {"optimizer": OPTIMIZER, "seed": 0}


def run(options: argparse.Namespace) -> int:
    """Train; the exit code is 0, 1 if it diverged, failed or lost a rank, 128 + a signal."""
    with joined(options.parallel) as ranks:
        try:
            return _train(options, ranks)
        except UsageError:
            if ranks.leads:  # all ranks have the same error, and one says it
                raise
            return 2


def _train(options: argparse.Namespace, ranks: Ranks) -> int:
    shown: Display = display() if ranks.leads else Display()
    folder, settings, log = ranks.lead(lambda: _prepared(options, ranks, shown))
    command = command_line(options.words, launcher(ranks))
    orders = Orders(folder, command, options.save_every, log)
    shown.begin([settings], 0)
    with Stopping(patient=ranks.mode is not None) as stopping:
        try:
            result = run_one(
                settings,
                orders,
                watch=shown.event,
                stopping=stopping,
                ranks=ranks,
                say=shown.say,
            )
        finally:
            shown.end()
        # All leave together: torchrun ends the others as soon as one has failed.
        ranks.lead(lambda: _tell(result, folder, ranks, shown))
        codes = {"finished": 0, "stopped": max(ranks.gathered(stopping.exit_code))}
    return codes.get(result["status"], 1)


def _prepared(
    options: argparse.Namespace, ranks: Ranks, shown: Display
) -> tuple[Path, RunSettings, tuple[str, ...]]:
    """The folder, the run and its loggers, checked and written down, and the data at hand."""
    if ranks.mode is not None:
        _find_again(options)
    folder = output_folder(options, "train")
    given = given_options(options, DEFAULTS)
    settings = settings_of(given)
    check(settings, ranks)
    log = names_of(given.get("log"))
    check_loggers(log)
    (settings,) = as_begun([settings], folder, shown.say)
    begin(folder, given, log)
    if not settings.task_place:
        make_task(settings, report=shown.say)  # what is prepared once is prepared here
    return folder, settings, log


def _find_again(options: argparse.Namespace) -> None:
    """Go on with what is in `--out` if the same command has begun it."""
    if options.resume is not None:
        return
    if options.out is None:
        raise UsageError("--parallel needs --out DIR, where a run that is started again goes on")
    if (options.out / OPTIONS).is_file() and options_in(options.out) == given_options(
        options, DEFAULTS
    ):
        options.out, options.resume = None, options.out


def _tell(result: Result, folder: Path, ranks: Ranks, shown: Display) -> None:
    """Write down and show how the run has ended."""
    if result["status"] == "stopped":
        again = command_line(["train"], launcher(ranks))
        mode = "" if ranks.mode is None else f" --parallel {ranks.mode}"
        shown.say(f"Stopped after step {result['step']}. To go on: {again}{mode} --resume {folder}")
        return
    append_line(folder / RESULTS, result)
    if is_failed(result):
        shown.say(failure_text(result, folder))
    shown.say("\n" + Comparison([result]).publish(folder))


def settings_of(given: dict[str, Any]) -> RunSettings:
    """The run that options come to."""
    entrant = Entrant.parse(given["optimizer"])
    if "," in given.get("lr", ""):
        raise UsageError(f"--lr is one rate here, got {given['lr']}: deva compare takes several")
    if given["seed"] < 0:
        raise UsageError(f"--seed must be 0 or more, got {given['seed']}")
    asked = {key: value for key, value in given.items() if key not in ("optimizer", "seed")}
    (settings,) = plan(request_of({**asked, "seeds": f"{given['seed']},"}, [entrant]))
    return settings
