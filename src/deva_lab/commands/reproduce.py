"""`deva reproduce`: a figure or a table of the paper, ours beside theirs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..errors import UsageError
from ..files import write_text
from ..launchers import check_failed, check_jobs
from ..render.display import display
from ..reproduce.experiment import Computed, Trained, check_runs, runs_of
from ..reproduce.experiments import EXPERIMENTS, dry_run, experiment, listing, page, write_page
from ..run.runner import Orders
from .options import carrying_out, command_line


def run(options: argparse.Namespace) -> int:
    """Compute what is not there yet, write a page for each id and print it."""
    if options.list:
        print(listing())
        return 0
    chosen = _chosen(options)
    check_jobs(options.jobs)
    if options.dry_run:
        print(dry_run(chosen, options.scale, options.out, options.data))
        return 0
    trained = [one for one in chosen if isinstance(one, Trained)]
    if trained and (code := _train(trained, options)):
        return code
    options.out.mkdir(parents=True, exist_ok=True)
    for one in chosen:
        record = one.record(options.scale, options.out, options.data)
        text = page(one, record, options.out)
        write_text(options.out / f"{one.id}.md", text)
        print(text)
        print(f"{options.out / one.id}.md")
    if options.page is not None:
        written = write_page([*EXPERIMENTS.values()], options.scale, options.out, options.page)
        print(*written, sep="\n")
    return 0


def _chosen(options: argparse.Namespace) -> list[Computed | Trained]:
    if options.page is not None and options.page.suffix != ".md":
        raise UsageError(f"--page must be a file that ends in .md, got {options.page}")
    if not options.ids and options.page is None:
        raise UsageError("say which: deva reproduce ID, or --list to see them")
    names = [name for id_ in options.ids for name in (EXPERIMENTS if id_ == "all" else [id_])]
    return [experiment(name) for name in dict.fromkeys(names)]


def _train(trained: Sequence[Trained], options: argparse.Namespace) -> int:
    """Carry out the runs that are missing; 0, or 128 + the signal that came."""
    runs = runs_of(trained, options.scale, options.data)
    check_runs(runs)
    orders = Orders(options.out, command_line(options.words))
    shown = display()
    with carrying_out(options, options.out, shown) as (carry_out, stopping):
        failed = carry_out(runs, orders)
    check_failed(failed, orders.command)
    if stopping():
        shown.say(f"Stopped. To go on: {orders.command}")
    return stopping.exit_code
