"""`deva compare`: several optimizers on the same task, and a page that says how they did."""

from __future__ import annotations

import argparse

from ..files import typed
from ..launchers import ended
from ..render.display import display
from ..render.pages import Comparison
from ..run.plan import as_begun, check_baseline, plan
from ..usage import OPTIMIZERS
from .options import asked_of, begin, carrying_out


def run(options: argparse.Namespace) -> int:
    """Compare; the exit code is 0 when all runs have ended, 1 if one failed, 128 + a signal."""
    folder, given, request, orders = asked_of(options, "compare", {"optimizers": OPTIMIZERS})
    runs = plan(request)
    check_baseline(options.baseline, runs)
    shown = display()
    with carrying_out(options, folder, shown) as (carry_out, stopping):
        runs = as_begun(runs, folder, shown.say)
        begin(folder, given, orders.log)
        failed = carry_out(runs, orders)
    results = ended(folder, runs)
    if results:
        shown.say("\n" + Comparison(results, baseline=options.baseline).publish(folder))
    if stopping():
        shown.say(f"Stopped. To go on: deva compare --resume {typed(folder)}")
    if failed:
        shown.say(f"Failed: {len(failed)}. To try again: deva compare --resume {typed(folder)}")
    return stopping.exit_code or int(bool(failed))
