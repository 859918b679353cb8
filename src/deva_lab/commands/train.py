"""`deva train`: one run, which a kill at any moment sets back by no more than a checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..files import append_line, typed
from ..render.display import Display, display
from ..render.pages import Comparison
from ..results import RESULTS
from ..run.plan import as_begun, plan
from ..run.progress import Result, failure_text, is_failed
from ..run.ranks import Ranks, check, joined, launcher
from ..run.runner import Orders, Stopping, run_one
from ..run.settings import RunSettings
from ..run.tasks import make_task
from ..usage import OPTIMIZER
from .options import OPTIONS, asked_of, begin, command_line, given_options, options_in

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
    settings, orders = ranks.lead(lambda: _prepared(options, ranks, shown))
    shown.begin([settings], 0)
    with Stopping(patient=ranks.mode is not None) as stopping:
        try:
            result = run_one(
                settings, orders, watch=shown.event, stopping=stopping, ranks=ranks, say=shown.say
            )
        finally:
            shown.end()
        # All leave together: torchrun ends the others as soon as one has failed.
        ranks.lead(lambda: _tell(result, orders.folder, ranks, shown))
        codes = {"finished": 0, "stopped": max(ranks.gathered(stopping.exit_code))}
    return codes.get(result["status"], 1)


def _prepared(
    options: argparse.Namespace, ranks: Ranks, shown: Display
) -> tuple[RunSettings, Orders]:
    """The run and its orders, checked and written down, and the data at hand."""
    if ranks.mode is not None:
        _find_again(options)
    folder, given, request, orders = asked_of(options, "train", DEFAULTS, launcher(ranks))
    (settings,) = plan(request)
    check(settings, ranks)
    (settings,) = as_begun([settings], folder, shown.say)
    begin(folder, given, orders.log)
    if not settings.task_place:
        make_task(settings, report=shown.say)  # what is prepared once is prepared here
    return settings, orders


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
        shown.say(
            f"Stopped after step {result['step']}. To go on: {again}{mode} --resume {typed(folder)}"
        )
        return
    append_line(folder / RESULTS, result)
    if is_failed(result):
        shown.say(failure_text(result, folder))
    shown.say("\n" + Comparison([result]).publish(folder))
