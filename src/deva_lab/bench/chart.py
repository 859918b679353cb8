"""Charts as SVG, written by hand: bars for a set of shapes, lines for growth with the width."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Final

from .results import Result, SetResult
from .subjects import Kind
from .timing import quartiles

WIDTH: Final = 860
LEFT: Final = 190  # where bars begin
BAR: Final = 18
COLOURS: Final[dict[Kind, str]] = {"ours": "#2f6fb0", "yardstick": "#777777", "peer": "#d98c2b"}
LINES: Final = ("#2f6fb0", "#d98c2b", "#3a9a5b", "#b33f62", "#7b5ea7", "#777777", "#1aa3a3")


def bar_chart(found: Sequence[SetResult], baseline: str, caption: str) -> str:
    """The mean step of every subject, one panel below the other, as the text of an SVG."""
    title = f"Mean time of a step, refreshes included, and × {baseline}"
    parts, y = [_text(12, 24, title, size=16), *_legend()], 44.0
    for one in found:
        panel, y = _panel(one, baseline, y)
        parts += panel
    return _svg(parts, y + 10, caption)


def _legend() -> list[str]:
    """What the colours mean, at the top right."""
    parts = []
    for i, (kind, colour) in enumerate(COLOURS.items()):
        x = WIDTH - 250 + 80 * i
        parts.append(f'<rect x="{x}" y="14" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 15, 23, kind))
    return parts


def _panel(one: SetResult, baseline: str, top: float) -> tuple[list[str], float]:
    """The bars of a set of shapes, and where they end."""
    results = list(one.results.values())
    longest = max((quartiles(r.timing.means)[1] for r in results), default=1.0)
    scale = (WIDTH - LEFT - 150) / longest
    parts = [_text(12, top + 14, one.shapes.name, size=14)]
    for i, result in enumerate(results):
        parts += _bar(result, top + 24 + i * (BAR + 4), scale, one.ratios(result.name, baseline))
    return parts, top + 24 + len(results) * (BAR + 4) + 18


def _bar(result: Result, y: float, scale: float, ratios: list[float] | None) -> list[str]:
    """A bar, its quartiles over the rounds, and its numbers."""
    mean, (low, high) = result.timing.mean, quartiles(result.timing.means)
    times = "" if ratios is None else f"  ·  {statistics.median(ratios):.2f}×"
    middle, end = y + BAR / 2, LEFT + max(mean, high) * scale
    return [
        _text(LEFT - 8, y + 13, result.name, anchor="end"),
        f'<rect x="{LEFT}" y="{y:.1f}" width="{max(1.0, mean * scale):.1f}" height="{BAR}" '
        f'fill="{COLOURS[result.kind]}"/>',
        _line(LEFT + low * scale, middle, LEFT + high * scale, middle, "#222"),
        _text(end + 6, y + 13, f"{_ms(mean)} ms{times}"),
    ]


def growth_chart(found: Sequence[SetResult], widths: Sequence[int], caption: str) -> str:
    """The mean step against the width of a block, both logarithmic, as the text of an SVG."""
    names = list(dict.fromkeys(name for one in found for name in one.results))
    times = [r.timing.mean for one in found for r in one.results.values()]
    frame = _Frame(min(widths), max(widths), min(times), max(times))
    parts = [_text(12, 24, "Mean time of a step by the width of a block", size=16)]
    parts += frame.grid(widths)
    ends: list[tuple[float, str, str]] = []
    for i, name in enumerate(names):
        colour = LINES[i % len(LINES)]
        dots = [
            (frame.x(d), frame.y(one.results[name].timing.mean))
            for d, one in zip(widths, found, strict=True)
            if name in one.results
        ]
        parts += [_line(*a, *b, colour, 2) for a, b in pairwise(dots)]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in dots]
        ends.append((dots[-1][1], name, colour))
    parts += _labels(frame.right + 10, ends)
    return _svg(parts, frame.bottom + 40, caption)


class _Frame:
    """Logarithmic axes."""

    left, top, right, bottom = 70.0, 50.0, WIDTH - 180.0, 430.0

    def __init__(self, d0: float, d1: float, t0: float, t1: float) -> None:
        self.d = (math.log(d0), max(math.log(d1), math.log(d0) + 1e-9))
        self.t = (math.floor(math.log10(t0)), math.floor(math.log10(t1)) + 1)

    def x(self, d: float) -> float:
        """Where a width is."""
        share = (math.log(d) - self.d[0]) / (self.d[1] - self.d[0])
        return self.left + share * (self.right - self.left)

    def y(self, seconds: float) -> float:
        """Where a time is."""
        share = (math.log10(seconds) - self.t[0]) / (self.t[1] - self.t[0])
        return self.bottom - share * (self.bottom - self.top)

    def grid(self, widths: Sequence[int]) -> list[str]:
        """A line for each width and for each power of ten."""
        parts = []
        for d in widths:
            parts.append(_line(self.x(d), self.top, self.x(d), self.bottom, "#ddd"))
            parts.append(_text(self.x(d), self.bottom + 18, f"{d}", anchor="middle"))
        for power in range(self.t[0], self.t[1] + 1):
            y = self.y(10.0**power)
            parts.append(_line(self.left, y, self.right, y, "#ddd"))
            parts.append(_text(self.left - 8, y + 4, f"{10.0 ** (power + 3):g} ms", anchor="end"))
        return parts


def _labels(x: float, ends: list[tuple[float, str, str]]) -> list[str]:
    """Names beside the ends of lines, pushed apart where they would overlap."""
    parts, last = [], -math.inf
    for y, name, colour in sorted(ends):
        last = max(y + 4, last + 14)
        parts.append(_text(x, last, name, colour=colour))
    return parts


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 1) -> str:
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _svg(parts: Sequence[str], height: float, caption: str) -> str:
    legend = _text(12, height + 8, caption, size=10, colour="#666")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height + 20:.0f}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join([*parts, legend])
        + "\n</svg>\n"
    )
