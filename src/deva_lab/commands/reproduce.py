"""`deva reproduce`: a figure or a table of the paper, ours beside theirs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..carry_out import carry_out, check_jobs
from ..display import display
from ..errors import UsageError
from ..files import write_text
from ..reproduce.collected import write_page
from ..reproduce.dry_run import dry_run
from ..reproduce.experiment import SCALES, Experiment, page, results_of
from ..reproduce.experiments import EXPERIMENTS, experiment, listing
from ..reproduce.trained import Trained, check_runs, record_of, runs_of
from ..runner import Orders
from ..stopping import Stopping
from . import Commands, add_command
from .options import command_line

DESCRIPTION = """\
Repeat an experiment of the paper and say whether it comes out as the paper has it.

  deva reproduce --list
  deva reproduce theory
  deva reproduce fig-nanogpt table-nanogpt --out results
  deva reproduce all                              everything: about an hour on two cores
  deva reproduce all --scale paper --dry-run      what the paper's own size would take
  deva reproduce --page reproduction.md           one page of all that DIR has, and report.html

Results are kept in DIR, those of training run by run: experiments share them, a second call shows
them at once, and one that was stopped goes on.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "reproduce",
        help="a figure or a table of the paper, ours beside theirs",
        description=DESCRIPTION,
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="see --list; or all")
    parser.add_argument("--list", action="store_true", help="every figure and table of the paper")
    parser.add_argument(
        "--scale", choices=SCALES, default="cpu", help="(cpu: in minutes, on two cores)"
    )
    parser.add_argument(
        "--data", metavar="NAME|PATH", help="what is trained on (FineWeb's sample, if it is there)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side (as cores allow)")
    parser.add_argument("--dry-run", action="store_true", help="say which runs, and do none")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE.md",
        help="write all that DIR has into one page, its figures beside it, and as DIR/report.html",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="(runs/reproduce)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute what is not there yet, write a page for each id and print it."""
    if options.list:
        print(listing())
        return 0
    chosen = _chosen(options.ids, page=options.page)
    check_jobs(options.jobs)
    if options.dry_run:
        print(dry_run(chosen, options.scale, options.out, options.data))
        return 0
    trained = [one for one in chosen if isinstance(one, Trained)]
    if trained and (code := _train(trained, options)):
        return code
    options.out.mkdir(parents=True, exist_ok=True)
    for one in chosen:
        text = page(one, _record(one, options), options.out)
        write_text(options.out / f"{one.id}.md", text)
        print(text)
        print(f"{options.out / one.id}.md")
    if options.page is not None:
        written = write_page([*EXPERIMENTS.values()], options.scale, options.out, options.page)
        print(*written, sep="\n")
    return 0


def _chosen(ids: Sequence[str], *, page: Path | None) -> list[Experiment | Trained]:
    if page is not None and page.suffix != ".md":
        raise UsageError(f"--page must be a file that ends in .md, got {page}")
    if not ids and page is None:
        raise UsageError("say which: deva reproduce ID, or --list to see them")
    names = [name for id_ in ids for name in (EXPERIMENTS if id_ == "all" else [id_])]
    return [experiment(name) for name in dict.fromkeys(names)]


def _train(trained: Sequence[Trained], options: argparse.Namespace) -> int:
    """Carry out the runs that are missing; 0, or 128 + the signal that came."""
    runs = runs_of(trained, options.scale, options.data)
    check_runs(runs)
    orders = Orders(options.out, command_line(options.words))
    shown = display()
    with Stopping() as stopping:
        carry_out(runs, orders, jobs=options.jobs, shown=shown, stopping=stopping)
    if stopping():
        shown.say(f"Stopped. To go on: {orders.command}")
    return stopping.exit_code


def _record(one: Experiment | Trained, options: argparse.Namespace) -> dict[str, Any]:
    if isinstance(one, Trained):
        return record_of(one, options.scale, options.out, options.data)
    command = command_line(options.words)
    return results_of(one, options.scale, options.out, say=_progress, command=command)


def _progress(message: str) -> None:
    """Progress, for whoever watches."""
    if sys.stderr.isatty():
        print(f"  {message}", file=sys.stderr, flush=True)
