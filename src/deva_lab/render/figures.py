"""How entrants are named and drawn, how every figure looks, and the charts of a comparison."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..results import Band, Curve, Quantity, Row, Summary, loss_range, rate_range
from . import count, listed, rate

T = TypeVar("T")
Size = tuple[float, float]  # width and height in inches

# How a method is written, and its colours: Okabe and Ito's, safe for the colour-blind, darkened for
# white paper and lightened for a dark page until a name written in it has a contrast of 4.5. DeVA
# has the only warm strong one.
_METHODS: dict[str, tuple[str, str, str]] = json.loads(
    files(__package__).joinpath("methods.json").read_text("utf-8")
)
NAMES = {key: name for key, (name, _, _) in _METHODS.items()}
COLOURS = {key: (light, dark) for key, (_, light, dark) in _METHODS.items()}
SPARE = [("#4f6d8f", "#9db9d8"), ("#8a6d00", "#d6bd55"), ("#97527a", "#dba0c3")]
DASHES: list[tuple[int, ...]] = [(), (6, 2), (2, 2), (8, 2, 2, 2), (10, 4)]
GREY, INK, GRID = "#5a5a5a", "#333333", "#e6e6e6"
# Colour → the one in its place on a dark page.
DARK = {GREY: "#a3a7ad", INK: "#d0d2d4", GRID: "#25292e", **dict(COLOURS.values()), **dict(SPARE)}
DPI: Final = 200
MOST_LABELS = 12  # beside the lines; more of them go into a legend


# --- Names and styles -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """How one entrant is drawn."""

    name: str
    light: str  # colour on white
    dark: str  # colour on a dark page
    dash: tuple[int, ...]  # lengths of line and gap; empty for a solid line
    width: float


def method(label: str) -> str:
    """The name of the optimizer in a label: "muon" of "muon:nesterov=true"."""
    return "".join(c for c in label.split(":")[0].lower() if c.isalnum())


def name(label: str) -> str:
    """The label as it is written in a text.

    >>> name("muon:nesterov=true"), name("mine")
    ('Muon nesterov=true', 'mine')
    """
    head, _, options = label.partition(":")
    return f"{NAMES.get(method(label), head)} {options.replace(',', ' ')}".strip()


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Label → style: a method has its colour, its variants differ by the dash, plain ones solid."""
    drawn: dict[tuple[str, str], int] = {}  # colours → how many have them
    spare: dict[str, tuple[str, str]] = {}
    chosen: dict[str, Style] = {}
    for label in sorted(set(labels), key=lambda label: (label.count(","), len(label), label)):
        key = method(label)
        if key not in COLOURS:
            spare.setdefault(key, SPARE[len(spare) % len(SPARE)])
        colours = COLOURS.get(key) or spare[key]
        dash = DASHES[drawn.get(colours, 0) % len(DASHES)]
        drawn[colours] = drawn.get(colours, 0) + 1
        width = 2.4 if key.startswith("deva") else 1.7
        chosen[label] = Style(name(label), *colours, dash, width)
    return chosen


def looks(summary: Summary) -> dict[str, Style]:
    """Label → style of the optimizers of a comparison."""
    return styles(row.label for row in summary.rows)


def line_style(look: Style) -> dict[str, Any]:
    """The line of an entrant, as matplotlib takes it."""
    return {
        "color": look.light,
        "linewidth": look.width * 0.75,
        "linestyle": (0, look.dash) if look.dash else "-",
        "dash_capstyle": "butt",
        "solid_joinstyle": "round",
    }


# --- Figures --------------------------------------------------------------------------------------


def _look() -> AbstractContextManager[None]:
    """The settings of matplotlib with which all figures are drawn, for a while."""
    look = files(__package__).joinpath("deva.mplstyle")
    with as_file(look) as path:
        return matplotlib.rc_context(matplotlib.rc_params_from_file(path, False, False))


def make_figure(size: Size, fill: Callable[[Figure], None]) -> Figure:
    """A figure, filled by the function that is given it, that pyplot knows nothing of."""
    with _look():
        figure = Figure(figsize=size, layout="constrained")
        fill(figure)
    return figure


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """The paths of NAME.png and NAME.svg, written into a folder that exists."""
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    with _look():
        figure.savefig(png, dpi=DPI)
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def draw(folder: Path, name: str, size: Size, fill: Callable[[Figure], None]) -> tuple[Path, Path]:
    """The paths of NAME.png and NAME.svg of a new figure, in a folder that exists."""
    return save(make_figure(size, fill), folder, name)


def svg(figure: Figure, *, transparent: bool = False) -> str:
    """The figure as the text of an SVG file."""
    out = io.StringIO()
    with _look():
        figure.savefig(out, format="svg", transparent=transparent, metadata={"Date": None})
    return out.getvalue()


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an element of a page, as wide as its place, with colours for dark pages too.

    The name says what it shows to those who do not see it.
    """
    head, _, text = svg(figure, transparent=True).partition("<svg ")[2].partition(">")
    box = re.findall(r'viewBox="[^"]*"', head)[0]
    # What belongs to a file alone goes, and so do names that another figure of the page has, too.
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = text.replace('<g id="line"', '<g class="line"')
    text = re.sub(r'(?<=<g) id="[^"]*"| font-family: [^;]*;', "", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r"\s*\n\s*", " ", text)
    text = re.sub("|".join(DARK), lambda light: f"light-dark({light[0]}, {DARK[light[0]]})", text)
    return f'<svg {box} role="img" aria-label="{escape(name)}">{text}'


# --- Charts of a comparison -----------------------------------------------------------------------


def figure_of(summary: Summary) -> Figure:
    """The losses along the way, and beside them those over learning rates where these varied."""

    def fill(figure: Figure) -> None:
        widths = [1.9, 1] if summary.varied else [1]
        panels = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
        draw_losses(panels[0], summary)
        if summary.varied:
            draw_rates(panels[1], summary)

    return make_figure((9.0 if summary.varied else 6.4, 4.0), fill)


def losses_svg(summary: Summary) -> str:
    """The losses along the way, as an element of a page."""
    figure = make_figure((9.6, 5.0), lambda figure: draw_losses(figure.add_subplot(), summary))
    return inline_svg(figure, f"Validation loss against {summary.unit}")


def rates_svg(summary: Summary) -> str:
    """The final losses over learning rates, as an element of a page."""
    figure = make_figure((9.6, 4.0), lambda figure: draw_rates(figure.add_subplot(), summary))
    return inline_svg(figure, "Final validation loss against the learning rate")


def telemetry_svg(summary: Summary, quantity: Quantity) -> str:
    """A quantity of telemetry over steps, as an element of a page."""

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        for label, band in summary.telemetry[quantity.key].items():
            _draw_band(axes, band, looks(summary)[label])
        if quantity.logarithmic:
            axes.set_yscale("log", nonpositive="mask")
        axes.set_xlim(left=0)
        _label(axes, x="steps", ticks=5)

    return inline_svg(make_figure((4.0, 2.4), fill), f"{quantity.title} against steps")


def draw_losses(axes: Axes, summary: Summary) -> None:
    """Draw each optimizer's loss along the way, at its own best rate, with its name at the end."""
    named = looks(summary)
    curves = {named[row.label]: row.curve for row in summary.rows}
    draw_curves(axes, curves, x=summary.unit)
    _name_lines(axes, curves)
    if lost := [named[row.label].name for row in summary.rows if row.diverged]:
        place: dict[str, Any] = {"ha": "right", "va": "top", "transform": axes.transAxes}
        axes.text(0.98, 0.97, f"diverged: {listed(lost)}", color=GREY, fontsize=8, **place)


def draw_curves(
    axes: Axes,
    curves: Mapping[Style, Curve],
    *,
    x: str,
    y: str = "validation loss",
    fitted: Sequence[Curve] = (),
) -> None:
    """Draw losses, each with a band from the lowest to the highest over seeds.

    Args:
        axes: Where.
        curves: Look → curve.
        x: What is counted along the way.
        y: What the loss is in.
        fitted: The curves that must be in view; all, if none are given.
    """
    low, high, logarithmic = loss_range(list(fitted or curves.values()))
    if logarithmic:
        axes.set_yscale("log")
    axes.set_ylim(low, high)
    for look, curve in curves.items():
        _draw_band(axes, Band(curve.units, curve.loss, curve.low, curve.high), look)
    axes.set_xlim(0, max((max(c.units, default=0) for c in curves.values()), default=0) or 1)
    axes.set_ylabel(y)
    _label(axes, x=x, ticks=6)


def _draw_band(axes: Axes, band: Band, look: Style) -> None:
    order = 3 if look.width > 2 else 2
    area: dict[str, Any] = {"color": look.light, "alpha": 0.16, "linewidth": 0, "zorder": order}
    axes.fill_between(band.x, band.low, band.high, **area)
    style = {**line_style(look), "label": look.name, "gid": "line", "zorder": order}
    axes.plot(band.x, band.middle, **style)


def _label(axes: Axes, *, x: str, ticks: int) -> None:
    """Name the horizontal axis, with so many short numbers at most."""
    axes.xaxis.set_major_formatter(lambda value, _: count(value))
    axes.locator_params(axis="x", nbins=ticks)
    axes.set_xlabel(x)
    axes.grid(axis="y")


def _name_lines(axes: Axes, curves: Mapping[Style, Curve]) -> None:
    """Write the names at the ends of the lines, or a legend where they are too many."""
    right = axes.get_xlim()[1]
    whole = {look: curve for look, curve in curves.items() if curve.loss}
    ends = {look: c.loss[-1] for look, c in whole.items() if c.units[-1] >= 0.9 * right}
    if len(ends) > MOST_LABELS:
        axes.legend(frameon=False, fontsize=7, ncols=2, labelcolor=INK)
        return
    heights = {look: axes.transData.transform((right, end))[1] for look, end in ends.items()}
    places = spread_out(heights, gap=0.05 * axes.get_window_extent().height)
    for look, height in places.items():
        axes.annotate(
            look.name,
            xy=(right, ends[look]),
            xytext=(5, (height - heights[look]) * 72 / axes.figure.dpi),
            textcoords="offset points",
            va="center",
            color=look.light,
            fontsize=8.5,
            fontweight="bold" if look.width > 2 else "normal",
            annotation_clip=False,
        )


def spread_out(heights: Mapping[T, float], *, gap: float) -> dict[T, float]:
    """The heights moved apart as little as it takes to keep the gap, in the same order.

    >>> spread_out({"a": 1.0, "b": 1.0, "c": 9.0}, gap=2.0)
    {'a': 0.0, 'b': 2.0, 'c': 9.0}
    """
    from scipy.optimize import isotonic_regression  # takes a second to import

    order = sorted(heights, key=lambda name: heights[name])
    start = [heights[name] - gap * index for index, name in enumerate(order)]
    moved = isotonic_regression(start).x.tolist()
    return {name: moved[index] + gap * index for index, name in enumerate(order)}


def draw_rates(axes: Axes, summary: Summary) -> None:
    """Draw each optimizer's final loss against the learning rate."""
    axes.set_xscale("log")
    losses = [loss for row in summary.rows for loss, _ in row.sensitivity.values()]
    axes.set_ylim(*rate_range(losses))
    for row in summary.rows:
        _draw_rate_curve(axes, row, looks(summary)[row.label])
    first, *others = sorted({lr for row in summary.rows for lr in row.by_rate})
    ticks = [first]  # the rates that were run, without those whose names would touch
    for lr in others:
        if math.log(lr / ticks[-1]) >= math.log(others[-1] / first) / 6:
            ticks.append(lr)
    axes.minorticks_off()
    axes.set_xticks(ticks, [rate(lr) for lr in ticks])
    axes.set_xlabel("learning rate" + " (×: diverged)" * any(map(math.isinf, losses)))
    axes.set_ylabel("final validation loss")
    axes.grid(axis="y")


def _draw_rate_curve(axes: Axes, row: Row, look: Style) -> None:
    """Draw one optimizer's losses over rates; a cross at the top is a rate that diverged."""
    lost = [lr for lr, (loss, _) in row.sensitivity.items() if math.isinf(loss)]
    shown = {lr: found for lr, found in row.sensitivity.items() if lr not in lost}
    style = {**line_style(look), "marker": "o", "markersize": 3.5, "capsize": 2, "elinewidth": 0.8}
    if shown:
        losses, spreads = zip(*shown.values(), strict=True)
        errors = [spread or 0.0 for spread in spreads]
        axes.errorbar(list(shown), losses, yerr=errors, gid="line", **style)
    cross: dict[str, Any] = {"color": look.light, "marker": "x", "markersize": 4, "linestyle": ""}
    axes.plot(lost, [0.985] * len(lost), transform=axes.get_xaxis_transform(), **cross)
