"""Losses and times over a setting that is swept: the numbers, their table and their figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..figures import draw
from ..progress import Result
from .claims import Finding
from .experiment import markdown_table
from .language_methods import LOOKS, NAMES
from .measures import Measured, final, milliseconds, noise
from .panels import legend_below, points_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Place = TypeVar("Place", int, float)
Series = Mapping[str, Mapping[Place, Measured]]
"""Label → where in the sweep, ascending → a quantity."""


def usual_noise(series: Series[Place]) -> float | None:
    """What a difference between single runs has to exceed: the noise where there are seeds."""
    known = [
        noise(one[place], other[place])
        for one, other in combinations(series.values(), 2)
        for place in one
        if place in other
    ]
    return max((value for value in known if value is not None), default=None)


def held(parts: Sequence[Finding]) -> str:
    """How many parts of a claim hold."""
    return f"{sum(part.verdict == 'holds' for part in parts)} of {len(parts)} comparisons"


@dataclass(frozen=True)
class Sweep:
    """What a sweep measures.

    Attributes:
        losses: At the end.
        times: Milliseconds of a step, or of so many tokens.
        optimizer: The optimizer's part of them.
        over: What is swept, in words.
        unit: What the times are.
    """

    losses: Series[int]
    times: Series[int]
    optimizer: Series[int]
    over: str
    unit: str

    def table(self) -> str:
        """A row a method and place."""
        rows = [
            (
                NAMES[label],
                str(place),
                loss.text(),
                self.times[label][place].text(".1f"),
                self.optimizer[label][place].text(".1f"),
            )
            for label, own in self.losses.items()
            for place, loss in own.items()
        ]
        head = ("", self.over, "final loss", self.unit, "of which the optimizer")
        return markdown_table(head, rows)

    def draw(self, folder: Path, name: str) -> tuple[Path, Path]:
        """The figure: loss, time, and the optimizer's part of it."""
        return draw(folder, name, (9.0, 3.7), self._fill)

    def _fill(self, figure: Figure) -> None:
        panels = (
            ("loss", "final validation loss", self.losses),
            ("time of training", self.unit, self.times),
            ("the optimizer's part", self.unit, self.optimizer),
        )
        for axes, (title, y, series) in zip(figure.subplots(1, 3), panels, strict=True):
            lines = {LOOKS[label]: list(own.items()) for label, own in series.items()}
            zero = series is not self.losses
            points_panel(axes, lines, title=title, x=self.over, y=y, from_zero=zero)
        legend_below(figure, axes)


def measured(
    runs: Mapping[str, Mapping[int, Sequence[Result]]], *, over: str, unit: str, per_units: int = 0
) -> Sweep:
    """The sweep of these runs: label → where → the runs there, one a seed."""

    def times(*parts: str) -> dict[str, dict[int, Measured]]:
        return {
            label: {n: milliseconds(r, *parts, per_units=per_units) for n, r in own.items()}
            for label, own in runs.items()
        }

    losses = {label: {n: final(r) for n, r in own.items()} for label, own in runs.items()}
    return Sweep(losses, times(), times("optimizer"), over, unit)
