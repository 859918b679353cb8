"""`deva compare`: several optimizers on the same task, and a page that says how they did."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import summary
from ..display import Display, display
from ..entrants import entrants
from ..errors import UsageError
from ..files import append_line, write_text
from ..plan import plan
from ..publish import publish
from ..runner import Orders, default_jobs, run_all
from ..settings import RunSettings
from ..stopping import Stopping
from ..tasks import make_task
from . import Commands
from .options import add_output, add_training, command_line, request_of, requested

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
    parser = commands.add_parser(
        "compare",
        help="several optimizers on the same task, and a report",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    folder, given = _folder(options), _given(options)
    runs = plan(request_of(given, entrants(given["optimizers"])))
    _check(options, runs)
    write_text(folder / "options.json", json.dumps(given, indent=2) + "\n")
    shown = display()
    with Stopping() as stopping:
        compare(runs, folder, options, shown, stopping)
    results = _finished(folder, runs)
    if results:
        shown.say("\n" + publish(results, folder, baseline=options.baseline))
    if stopping():
        shown.say(f"Stopped. To go on: deva compare --resume {folder}")
    return stopping.exit_code


def compare(
    runs: Sequence[RunSettings],
    folder: Path,
    options: argparse.Namespace,
    shown: Display,
    stopping: Stopping,
) -> None:
    """Carry out the runs that the folder has no result of, and add theirs."""
    done = {result["id"] for result in _finished(folder, runs)}
    todo = [settings for settings in runs if settings.id not in done]
    if not todo:
        return
    make_task(todo[0], report=shown.say)  # what is prepared once is prepared here
    jobs = options.jobs or default_jobs(len(todo), todo[0].device)
    orders = Orders(folder, command_line(options.words), options.save_every, options.tensorboard)
    shown.begin(todo, len(done))
    try:
        for result in run_all(todo, orders, jobs=jobs, watch=shown.event, stopping=stopping):
            if result["status"] != "stopped":
                append_line(folder / "results.jsonl", result)
                shutil.rmtree(folder / "runs" / result["id"], ignore_errors=True)
    finally:
        shown.end()


def _finished(folder: Path, runs: Sequence[RunSettings]) -> list[dict[str, Any]]:
    """The results of these runs that the folder has."""
    path = folder / "results.jsonl"
    wanted = {settings.id for settings in runs}
    results = summary.read_results(path) if path.exists() else []
    return [result for result in results if result["id"] in wanted]


def _folder(options: argparse.Namespace) -> Path:
    """Where the results go."""
    if options.resume is not None:
        if options.out is not None:
            raise UsageError("--out and --resume exclude each other: --resume DIR goes on in DIR")
        if not (options.resume / "options.json").is_file():
            raise UsageError(f"--resume {options.resume}: there is no options.json of a comparison")
        return Path(options.resume)
    folder = options.out or Path("runs") / time.strftime("compare-%Y%m%d-%H%M%S")
    if (folder / "options.json").exists():
        raise UsageError(f"{folder} has a comparison: --resume {folder} goes on with it")
    return Path(folder)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The options of this command over those of the one that it continues."""
    given = requested(options)
    if options.optimizers is not None:
        given["optimizers"] = options.optimizers
    if options.resume is None:
        return {"optimizers": OPTIMIZERS, **given}
    return {**json.loads((options.resume / "options.json").read_text()), **given}


def _check(options: argparse.Namespace, runs: Sequence[RunSettings]) -> None:
    """Raises UsageError for what would come to light after hours."""
    labels = dict.fromkeys(settings.optimizer for settings in runs)
    if options.baseline is not None and options.baseline not in labels:
        raise UsageError(f"--baseline {options.baseline} is none of {', '.join(labels)}")
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {options.jobs}")
    if options.tensorboard:
        from ..board import check_tensorboard

        check_tensorboard()
