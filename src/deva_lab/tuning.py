"""Learning rates for any task, found by the rule of the race."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .entrants import Entrant
from .errors import UsageError
from .progress import Result
from .race.entries import Entry
from .race.rules import Rules
from .race.tuning import FIRST, at_an_end, best_rate, losses, pending
from .render import aligned, loss, loss_format, rate
from .settings import RunSettings


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
        waiting = pending(self.entries.values(), results, self.rules)
        return [run for runs in waiting.values() for run in runs]

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
    rows = []
    for one in found:
        tried = ", ".join(f"{rate(lr)}: {_loss(one.tried[lr], spec)}" for lr in sorted(one.tried))
        rows.append((one.entrant.label, _rate(one), _loss(one.loss, spec), tried))
    head = ("optimizer", "lr", "final loss", "rates tried")
    return "\n".join([aligned(head, rows, left=(0, 3), ruled=True), *_notes(found)])


def _notes(found: Sequence[Found]) -> list[str]:
    edge = [one.entrant.label for one in found if one.lr is not None and at_an_end(one.tried)]
    if not edge:
        return []
    return [
        "",
        f"* The best rate is at an end of what was tried: {', '.join(edge)}. Raise --budget.",
    ]


def _rate(one: Found) -> str:
    if one.lr is None:
        return "–"
    return rate(one.lr) + "*" * at_an_end(one.tried)


def _loss(value: float, spec: str) -> str:
    return loss(value, spec) if math.isfinite(value) else "lost"
