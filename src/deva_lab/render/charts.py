"""The figure of a comparison: loss along the way, and over the learning rate where it varied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..results.curves import Band, Curve, loss_range, rate_range
from ..results.summary import Point, Summary
from ..results.telemetry import Quantity
from .figures import GREY, INK, draw, inline_svg, make_figure
from .palette import Style
from .wording import count, listed, rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
MOST_LABELS = 12  # beside the lines; more of them go into a legend


def write_figure(summary: Summary, folder: Path) -> tuple[Path, Path]:
    """The paths of curves.png and curves.svg, drawn into a folder that exists."""
    return draw(folder, "curves", _size(summary), lambda figure: _fill(figure, summary))


def figure_of(summary: Summary) -> Figure:
    """The same as a figure of matplotlib."""
    return make_figure(_size(summary), lambda figure: _fill(figure, summary))


def _fill(figure: Figure, summary: Summary) -> None:
    if not summary.varied:
        draw_losses(figure.add_subplot(), figure, summary)
        return
    left, right = figure.subplots(1, 2, width_ratios=[1.9, 1])
    draw_losses(left, figure, summary)
    draw_rates(right, summary)


def _size(summary: Summary) -> tuple[float, float]:
    return (9.0 if summary.varied else 6.4, 4.0)


# --- For the page ---------------------------------------------------------------------------------


def losses_svg(summary: Summary) -> str:
    """The losses along the way, as an element of a page."""
    figure = make_figure((9.6, 5.0), lambda fig: draw_losses(fig.add_subplot(), fig, summary))
    return inline_svg(figure, f"Validation loss against {summary.unit}", _dark(summary))


def rates_svg(summary: Summary) -> str:
    """The final losses over learning rates, as an element of a page."""
    figure = make_figure((9.6, 4.0), lambda fig: draw_rates(fig.add_subplot(), summary))
    return inline_svg(figure, "Final validation loss against the learning rate", _dark(summary))


def telemetry_svg(summary: Summary, quantity: Quantity) -> str:
    """A quantity of telemetry over steps, as an element of a page."""

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        for label, band in summary.telemetry[quantity.key].items():
            _draw_band(axes, band, summary.looks[label])
        if quantity.logarithmic:
            axes.set_yscale("log", nonpositive="mask")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: count(value))
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("steps")
        axes.grid(axis="y")

    figure = make_figure((4.0, 2.4), fill)
    return inline_svg(figure, f"{quantity.title} against steps", _dark(summary))


def _dark(summary: Summary) -> dict[str, str]:
    return {look.light: look.dark for look in summary.looks.values()}


# --- Parts ----------------------------------------------------------------------------------------


def draw_losses(axes: Axes, figure: Figure, summary: Summary) -> None:
    """Draw each optimizer's loss along the way, at its own best rate, with its name at the end."""
    curves = {summary.looks[label]: curve for label, curve in summary.curves.items()}
    draw_curves(axes, curves, x=summary.unit)
    _name_lines(axes, figure, curves)
    lost = [summary.looks[row.label].name for row in summary.rows if row.diverged]
    if lost:
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
    axes.xaxis.set_major_formatter(lambda value, _: count(value))
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y")


def _draw_band(axes: Axes, band: Band, look: Style) -> None:
    order = 3 if look.width > 2 else 2
    area: dict[str, Any] = {"color": look.light, "alpha": 0.16, "linewidth": 0, "zorder": order}
    axes.fill_between(band.x, band.low, band.high, **area)
    style = {**line_style(look), "label": look.name, "gid": "line", "zorder": order}
    axes.plot(band.x, band.middle, **style)


def line_style(look: Style) -> dict[str, Any]:
    """The line of an entrant, as matplotlib takes it."""
    return {
        "color": look.light,
        "linewidth": look.width * 0.75,
        "linestyle": (0, look.dash) if look.dash else "-",
        "dash_capstyle": "butt",
        "solid_joinstyle": "round",
    }


def _name_lines(axes: Axes, figure: Figure, curves: Mapping[Style, Curve]) -> None:
    """Writes the names at the ends of the lines, or a legend where they are too many."""
    right = axes.get_xlim()[1]
    ends = {
        look: curve.loss[-1]
        for look, curve in curves.items()
        if curve.loss and curve.units[-1] >= 0.9 * right
    }
    if len(ends) > MOST_LABELS:
        axes.legend(frameon=False, fontsize=7, ncols=2, labelcolor=INK)
        return
    heights = {look: axes.transData.transform((right, end))[1] for look, end in ends.items()}
    places = spread_out(heights, gap=0.05 * axes.get_window_extent().height)
    for look, height in places.items():
        axes.annotate(
            look.name,
            xy=(right, ends[look]),
            xytext=(5, (height - heights[look]) * 72 / figure.dpi),
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
    groups: list[tuple[list[T], float]] = []  # names that stand together, their middle
    for name in sorted(heights, key=lambda name: heights[name]):
        names, middle = [name], heights[name]
        while groups and middle - groups[-1][1] < gap * (len(names) + len(groups[-1][0])) / 2:
            names = groups.pop()[0] + names
            middle = sum(heights[each] for each in names) / len(names)
        groups.append((names, middle))
    return {
        name: middle + gap * (index - (len(names) - 1) / 2)
        for names, middle in groups
        for index, name in enumerate(names)
    }


def draw_rates(axes: Axes, summary: Summary) -> None:
    """Draw each optimizer's final loss against the learning rate."""
    grid, looks = summary.sensitivity, summary.looks
    axes.set_xscale("log")
    axes.set_ylim(*rate_range([loss for points in grid.values() for _, loss, _ in points]))
    for label, points in grid.items():
        _draw_rate_curve(axes, points, looks[label])
    axes.minorticks_off()
    _tick_rates(axes, sorted({lr for points in grid.values() for lr, _, _ in points}))
    lost = any(math.isinf(loss) for points in grid.values() for _, loss, _ in points)
    axes.set_xlabel("learning rate" + " (×: diverged)" * lost)
    axes.set_ylabel("final validation loss")
    axes.grid(axis="y")


def _draw_rate_curve(axes: Axes, points: Sequence[Point], look: Style) -> None:
    """Draws one optimizer's losses over rates; a cross at the top is a rate that diverged."""
    shown = [point for point in points if math.isfinite(point[1])]
    lost = [lr for lr, loss, _ in points if math.isinf(loss)]
    style = {**line_style(look), "marker": "o", "markersize": 3.5, "capsize": 2, "elinewidth": 0.8}
    style["gid"] = "line"
    if shown:
        rates, losses, spreads = zip(*shown, strict=True)
        axes.errorbar(rates, losses, yerr=[spread or 0.0 for spread in spreads], **style)
    cross: dict[str, Any] = {"color": look.light, "marker": "x", "markersize": 4, "linestyle": ""}
    axes.plot(lost, [0.985] * len(lost), transform=axes.get_xaxis_transform(), **cross)


def _tick_rates(axes: Axes, rates: list[float]) -> None:
    """Marks the rates that were run, without those whose names would touch."""
    room = math.log(rates[-1] / rates[0]) / 6
    ticks = rates[:1]
    for lr in rates[1:]:
        if math.log(lr / ticks[-1]) >= room:
            ticks.append(lr)
    axes.set_xticks(ticks, [rate(lr) for lr in ticks])
