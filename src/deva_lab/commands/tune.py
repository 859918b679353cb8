"""`deva tune`: the learning rate of each optimizer on a task, by the rule of the race."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..launchers import carry_out, finished
from ..race.entries import Entry, Rules
from ..race.tuning import FIRST, at_an_end, best_rate, losses, pending
from ..render import aligned, loss, loss_format, rate
from ..render.display import display
from ..render.pages import Comparison
from ..run.entrants import Entrant
from ..run.plan import as_begun, plan
from ..run.progress import Result
from ..run.runner import Stopping
from ..run.settings import RunSettings
from ..run.user_source import is_user_task
from ..usage.training import BUDGET, OPTIMIZERS
from .options import REQUESTED, asked_of, begin, launching

DEFAULTS = {"optimizers": OPTIMIZERS, "budget": BUDGET}
NOT_COMPARED = ("lr", "seeds", "log")  # of what was asked for, what the comparison has of its own


def run(options: argparse.Namespace) -> int:
    """Tune; the exit code is 0, 1 if a run failed, 128 + the signal if one came."""
    folder, given, request, orders = asked_of(options, "tune", DEFAULTS)
    shown = display()
    (base, *_) = as_begun(plan(request), folder, shown.say)
    search = Search(base, request.optimizers, request.seeds, given["budget"])
    runs: dict[str, RunSettings] = {}
    failed: dict[str, Result] = {}

    def results() -> list[Result]:
        return [*finished(folder, list(runs.values())), *failed.values()]

    with launching(options, folder) as cluster, Stopping() as stopping:
        begin(folder, given, orders.log)
        while not stopping() and (following := search.next(results())):
            runs |= {one.id: one for one in following}
            lost = carry_out(
                following,
                orders,
                jobs=options.jobs,
                shown=shown,
                stopping=stopping,
                cluster=cluster,
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
            own = name == "task" and is_user_task(value)
            words += [option, min(value, os.path.relpath(value), key=len) if own else str(value)]
    return shlex.join([*words, "--seeds", ",".join(map(str, search.rules.final_seeds))])


# --- The search ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What tuning has found for an optimizer.

    Attributes:
        tried: Learning rate → mean final loss; infinite where a run was lost.
    """

    entrant: Entrant
    tried: dict[float, float]

    @property
    def lr(self) -> float | None:
        """The best rate; None where every run was lost, or none has been run."""
        return best_rate(self.tried) if math.isfinite(self.loss) else None

    @property
    def loss(self) -> float:
        """The mean final loss at it."""
        return min(self.tried.values(), default=math.inf)

    @property
    def text(self) -> str:
        """The optimizer with its rate, as `deva compare` takes it."""
        label = self.entrant.label
        return f"{label}{',' if ':' in label else ':'}lr={rate(self.lr or self.entrant.default_lr)}"


class Search:
    """The search for the rates of some optimizers.

    Args:
        base: A run of the task; optimizer, rate and seed are replaced.
        entrants: The optimizers; the rate of each is where its search begins.
        seeds: What each rate is tried on.
        budget: Runs in all.
    """

    def __init__(
        self, base: RunSettings, entrants: Sequence[Entrant], seeds: tuple[int, ...], budget: int
    ) -> None:
        each = budget // (len(entrants) * len(seeds))
        if each < FIRST:
            least = FIRST * len(entrants) * len(seeds)
            raise UsageError(
                f"--budget {budget} is too small: {FIRST} rates for each of {len(entrants)} "
                f"optimizers on {len(seeds)} seed{'s' * (len(seeds) > 1)} take {least} runs"
            )
        self.rules = Rules(base, tuning_seeds=seeds, budget=each)
        self.entries = {
            entrant: Entry(entrant.label, entrant.label, entrant.default_lr, "")
            for entrant in entrants
        }

    def next(self, results: Sequence[Result]) -> list[RunSettings]:
        """The runs that follow from the results so far; none once the budget is spent."""
        return pending(self.entries.values(), results, self.rules)

    def found(self, results: Sequence[Result]) -> list[Found]:
        """What the results say of each optimizer, the lowest loss first."""
        found = [
            Found(entrant, losses(entry, results, self.rules))
            for entrant, entry in self.entries.items()
        ]
        return sorted(found, key=lambda one: one.loss)


def table(found: Sequence[Found]) -> str:
    """What was found, as aligned text."""
    spec = loss_format([value for one in found for value in one.tried.values()])

    def told(value: float) -> str:
        return loss(value, spec) if math.isfinite(value) else "lost"

    rows, edge = [], []
    for one in found:
        at_edge = one.lr is not None and at_an_end(one.tried)
        best = "–" if one.lr is None else rate(one.lr) + "*" * at_edge
        tried = ", ".join(f"{rate(lr)}: {told(one.tried[lr])}" for lr in sorted(one.tried))
        rows.append((one.entrant.label, best, told(one.loss), tried))
        edge += [one.entrant.label] * at_edge
    head = ("optimizer", "lr", "final loss", "rates tried")
    text = aligned(head, rows, left=(0, 3), ruled=True)
    if not edge:
        return text
    note = f"The best rate is at an end of what was tried: {', '.join(edge)}. Raise --budget."
    return f"{text}\n\n* {note}"
