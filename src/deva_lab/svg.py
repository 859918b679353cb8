"""Still line charts as SVG, for a page that is read without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from .palette import Style
from .wording import count

WIDTH, HEIGHT = 720, 390
LEFT, RIGHT, TOP, BOTTOM = 46, 700, 10, 350

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """One line of a chart, with a band around it where there are seeds."""

    style: Style
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    crosses: Sequence[float] = ()  # where on the x axis it has no value, because a run diverged


@dataclass(frozen=True)
class Axis:
    """What an axis shows: from where to where, how, and under which name."""

    title: str
    low: float
    high: float
    logarithmic: bool = False
    at: Sequence[float] = ()  # its ticks; round numbers if there are none

    def ticks(self) -> list[float]:
        """The values that are written beside the axis."""
        if self.at:
            return list(self.at)
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers][:: max(1, len(powers) // 7)]
        return round_ticks(self.low, self.high)

    def scale(self, start: float, end: float) -> Scale:
        """The function from a value to its place between two pixels."""

        def bend(value: float) -> float:
            return math.log(max(value, 1e-300)) if self.logarithmic else float(value)

        low, high = bend(self.low), bend(self.high)
        # a diverged run may be far outside; a browser draws no path with numbers without bound
        return lambda value: max(
            -1e5, min(1e5, start + (bend(value) - low) / (high - low) * (end - start))
        )


def round_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """At most so many round numbers, evenly from low to high.

    >>> round_ticks(2.97, 4.02)
    [3.0, 3.2, 3.4, 3.6, 3.8, 4.0]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, name: str) -> str:
    """The chart as an SVG element, coloured by the style sheet of the page."""
    across, up = x.scale(LEFT, RIGHT), y.scale(BOTTOM, TOP)
    clip = "still-" + "".join(c for c in x.title if c.isalnum())
    drawn = "".join(_line(line, across, up) for line in lines)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">'
        f'<defs><clipPath id="{clip}"><rect x="{LEFT}" y="{TOP - 4}" '
        f'width="{RIGHT - LEFT + 4}" height="{BOTTOM - TOP + 4}"/></clipPath></defs>'
        f'{_frame(x, y, across, up)}<g clip-path="url(#{clip})">{drawn}</g></svg>'
    )


def series_style(style: Style) -> str:
    """The two colours of an entrant, as the style sheet reads them."""
    return f'class="series" style="--light:{style.light};--dark:{style.dark}"'


def _frame(x: Axis, y: Axis, across: Scale, up: Scale) -> str:
    digits = max((len(f"{tick:g}".partition(".")[2]) for tick in y.ticks()), default=0)
    spec = "g" if y.logarithmic else f".{digits}f"
    rows = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
        f'<text x="{LEFT - 7}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:{spec}}</text>'
        for tick in y.ticks()
    )
    columns = "".join(
        f'<text x="{across(tick):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{count(tick)}</text>'
        for tick in x.ticks()
    )
    title = (
        f'<text class="x-title" x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">'
        f"{escape(x.title)}</text>"
    )
    return f'{rows}<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>{columns}{title}'


def _line(line: Line, across: Scale, up: Scale) -> str:
    path = _path(line.x, line.y, across, up)
    back = _path(list(line.x)[::-1], list(line.high)[::-1], across, up).replace("M", "L")
    edge = _path(line.x, line.low, across, up)
    band = f'<path class="band" d="{edge}{back}Z"/>' if edge else ""
    crosses = "".join(
        f'<path class="lost" d="M{across(x) - 4:.1f} {TOP - 2}l8 8m0 -8l-8 8"/>'
        for x in line.crosses
    )
    dash = " ".join(map(str, line.style.dash))
    stroke = f'stroke-width="{line.style.width}" stroke-dasharray="{dash}"'
    return (
        f'<g {series_style(line.style)}>{band}<path class="line" d="{path}" {stroke}/>{crosses}</g>'
    )


def _path(xs: Sequence[float], ys: Sequence[float], across: Scale, up: Scale) -> str:
    pairs = [f"{across(x):.1f} {up(y):.1f}" for x, y in zip(xs, ys, strict=False)]
    return "M" + "L".join(pairs) if pairs else ""
