"""`deva compare`: several optimizers on the same task, and a page that says how they did."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ..carry_out import carry_out, check_jobs, finished
from ..display import display
from ..entrants import entrants
from ..errors import UsageError
from ..files import write_text
from ..plan import plan
from ..publish import publish
from ..runner import Orders
from ..settings import RunSettings
from ..stopping import Stopping
from . import Commands, add_command
from .options import (
    OPTIONS,
    add_output,
    add_training,
    command_line,
    given_options,
    output_folder,
    request_of,
)

OPTIMIZERS = "deva,muon,soap,adamw"
DESCRIPTION = """\
Train the same model with several optimizers, from the same weights on the same batches, and write
results.jsonl, curves.png, curves.svg and report.html.

  deva compare
  deva compare --optimizers deva,deva:variant=factored,muon:nesterov=true
  deva compare --lr x0.3,x1,x3 --seeds 3          each optimizer is reported at its own best rate
  deva compare --data book.txt --size tiny --steps 500
  deva compare --resume runs/compare-20260101-1200
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "compare",
        help="several optimizers on the same task, and a report",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "--optimizers",
        metavar="LIST",
        help=f"names with settings, see `deva methods` ({OPTIMIZERS})",
    )
    parser.add_argument(
        "--lr", metavar="LIST", help="rates for all, or x0.5,x1,x2: multiples of each one's usual"
    )
    parser.add_argument("--seeds", metavar="N|LIST", help="how many, or which (1)")
    parser.add_argument("--baseline", metavar="NAME", help="whose final loss is the target (adamw)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side (as cores allow)")
    add_training(parser)
    add_output(parser, "compare")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare; the exit code is 0 when all runs have ended, 128 + the signal if one came."""
    folder = output_folder(options, "compare")
    given = given_options(options, {"optimizers": OPTIMIZERS})
    runs = plan(request_of(given, entrants(given["optimizers"])))
    _check(options, runs)
    write_text(folder / OPTIONS, json.dumps(given, indent=2) + "\n")
    shown = display()
    orders = Orders(folder, command_line(options.words), options.save_every, options.tensorboard)
    with Stopping() as stopping:
        carry_out(runs, orders, jobs=options.jobs, shown=shown, stopping=stopping)
    results = finished(folder, runs)
    if results:
        shown.say("\n" + publish(results, folder, baseline=options.baseline))
    if stopping():
        shown.say(f"Stopped. To go on: deva compare --resume {folder}")
    return stopping.exit_code


def _check(options: argparse.Namespace, runs: Sequence[RunSettings]) -> None:
    """Raises UsageError for what would come to light after hours."""
    labels = dict.fromkeys(settings.optimizer for settings in runs)
    if options.baseline is not None and options.baseline not in labels:
        raise UsageError(f"--baseline {options.baseline} is none of {', '.join(labels)}")
    check_jobs(options.jobs)
    if options.tensorboard:
        from ..board import check_tensorboard

        check_tensorboard()
