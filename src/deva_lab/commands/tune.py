"""`deva tune`: the learning rate of each optimizer on a task, by the rule of the race."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Mapping
from itertools import count, islice
from typing import Any

from ..errors import UsageError
from ..files import typed
from ..launchers import finished
from ..race.entries import Entry, Rules
from ..race.tuning import FIRST, Losses, at_an_end, best_rate, losses, pending
from ..render import NONE, aligned, loss, loss_format, rate
from ..render.display import display
from ..render.pages import Comparison
from ..run.plan import Request, as_begun, plan
from ..run.progress import Result
from ..run.settings import RunSettings
from ..run.user_source import is_user_task
from ..usage import BUDGET, OPTIMIZERS
from .options import REQUESTED, asked_of, begin, carrying_out

DEFAULTS = {"optimizers": OPTIMIZERS, "budget": BUDGET}
FINAL_SEED, FINAL_SEEDS = 101, 3  # the first of the seeds to compare on, and how many
NOT_COMPARED = ("lr", "seeds", "log")  # of what was asked for, what the comparison has of its own


def run(options: argparse.Namespace) -> int:
    """Tune; the exit code is 0, 1 if a run failed, 128 + the signal if one came."""
    folder, given, request, orders = asked_of(options, "tune", DEFAULTS)
    shown = display()
    (base, *_) = as_begun(plan(request), folder, shown.say)
    rules = rules_of(request, base, given["budget"])
    entries = [Entry(x.label, x.label, x.default_lr, "") for x in request.optimizers]
    runs: dict[str, RunSettings] = {}
    failed: dict[str, Result] = {}

    def results() -> list[Result]:
        return [*finished(folder, list(runs.values())), *failed.values()]

    with carrying_out(options, folder, shown) as (carry_out, stopping):
        begin(folder, given, orders.log)
        while not stopping() and (following := pending(entries, results(), rules)):
            runs |= {one.id: one for one in following}
            failed |= {result["id"]: result for result in carry_out(following, orders)}
    tried = {entry.name: losses(entry, results(), rules) for entry in entries}
    tried = dict(sorted(tried.items(), key=lambda one: lowest(one[1])))
    rates = {x: best_rate(tried[x]) for x in tried if math.isfinite(lowest(tried[x]))}
    if results():
        Comparison(results()).publish(folder)
        shown.say("\n" + table(tried, rates) + f"\n\n{folder / 'report.html'}")
    if stopping():
        shown.say(f"Stopped. To go on: deva tune --resume {typed(folder)}")
    elif rates:
        shown.say("\nTo compare them at these rates, on seeds that have chosen nothing:")
        shown.say(f"  {compare_line(rates, given, rules)}")
    return stopping.exit_code or int(bool(failed))


def rules_of(request: Request, base: RunSettings, budget: int) -> Rules:
    """The rules of the race for a task: as many rates for each optimizer as the budget allows."""
    optimizers, seeds = len(request.optimizers), len(request.seeds)
    labels = [x.label for x in request.optimizers]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise UsageError(f"--optimizers has {twice[0]} twice, but it is tuned from one rate")
    each = budget // (optimizers * seeds)
    if each < FIRST:
        raise UsageError(
            f"--budget {budget} is too small: {FIRST} rates for each of {optimizers} optimizers "
            f"on {seeds} seed{'s' * (seeds > 1)} take {FIRST * optimizers * seeds} runs"
        )
    unseen = (seed for seed in count(FINAL_SEED) if seed not in request.seeds)
    final = tuple(islice(unseen, FINAL_SEEDS))
    return Rules(base, tuning_seeds=request.seeds, final_seeds=final, budget=each)


def lowest(tried: Losses) -> float:
    """The mean final loss at the best rate; infinite where every run was lost, or there is none."""
    return min(tried.values(), default=math.inf)


def compare_line(rates: Mapping[str, float], given: dict[str, Any], rules: Rules) -> str:
    """The command that compares the optimizers at the rates that were found."""
    chosen = [f"{x}{',' if ':' in x else ':'}lr={rate(lr)}" for x, lr in rates.items()]
    words = ["deva", "compare", "--optimizers", ",".join(chosen)]
    for name, value in given.items():
        if name not in REQUESTED or name in NOT_COMPARED:
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        else:
            own = name == "task" and is_user_task(value)
            words += [option, _from_here(value) if own else str(value)]
    return shlex.join([*words, "--seeds", ",".join(map(str, rules.final_seeds))])


def _from_here(place: str) -> str:
    try:
        return min(place, os.path.relpath(place), key=len)
    except ValueError:  # on another drive of Windows
        return place


def table(tried: Mapping[str, Losses], rates: Mapping[str, float]) -> str:
    """What was found for each optimizer, as aligned text."""
    spec = loss_format([value for found in tried.values() for value in found.values()])

    def told(value: float) -> str:
        return loss(value, spec) if math.isfinite(value) else "lost"

    edge = [label for label in rates if at_an_end(tried[label])]
    rows = []
    for label, found in tried.items():
        best = rate(rates[label]) + "*" * (label in edge) if label in rates else NONE
        each = ", ".join(f"{rate(lr)}: {told(found[lr])}" for lr in sorted(found))
        rows.append((label, best, told(lowest(found)), each))
    head = ("optimizer", "lr", "final loss", "rates tried")
    text = aligned(head, rows, left=(0, 3), ruled=True)
    if not edge:
        return text
    note = f"The best rate is at an end of what was tried: {', '.join(edge)}. Raise --budget."
    return f"{text}\n\n* {note}"
