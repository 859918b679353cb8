"""The figure of a comparison: loss along the way, and over the learning rate where it varied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .curves import Curve, final_loss, loss_range, mean_curve, rate_range
from .figures import GREY, INK, draw
from .palette import Style, styles
from .progress import Result
from .summary import best_runs, sensitivity
from .wording import count, listed, rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LABELS = 12  # beside the lines; more of them go into a legend


def draw_curves(results: Sequence[Result], folder: Path) -> list[Path]:
    """The paths of curves.svg and curves.png, drawn from the results into a folder that exists."""
    size = (9.0 if _varied(results) else 6.4, 4.0)
    png, svg = draw(folder, "curves", size, lambda figure: _fill(figure, results))
    return [svg, png]


def _fill(figure: Figure, results: Sequence[Result]) -> None:
    both = _varied(results)
    left, *right = figure.subplots(1, 2, width_ratios=[1.9, 1]) if both else [figure.add_subplot()]
    looks = styles(result["label"] for result in results)
    _draw_losses(left, figure, results, looks)
    for axes in right:
        _draw_rates(axes, results, looks)


def _varied(results: Sequence[Result]) -> bool:
    return any(len(points) > 1 for points in sensitivity(results).values())


def _draw_losses(
    axes: Axes, figure: Figure, results: Sequence[Result], looks: dict[str, Style]
) -> None:
    chosen = best_runs(results)
    curves = {label: mean_curve(runs) for label, runs in chosen.items()}
    low, high, logarithmic = loss_range(list(curves.values()))
    if logarithmic:
        axes.set_yscale("log")
    axes.set_ylim(low, high)
    for label, curve in curves.items():
        draw_curve(axes, curve, looks[label])
    axes.set_xlim(0, max((max(c.units, default=0) for c in curves.values()), default=0) or 1)
    axes.xaxis.set_major_formatter(lambda value, _: count(value))
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel(results[0]["unit"] if results else "units")
    axes.set_ylabel("validation loss")
    axes.grid(axis="y")
    _name_lines(axes, figure, curves, looks)
    lost = [looks[label].name for label, runs in chosen.items() if _lost(runs)]
    if lost:
        place: dict[str, Any] = {"ha": "right", "va": "top", "transform": axes.transAxes}
        axes.text(0.98, 0.97, f"diverged: {listed(lost)}", color=GREY, fontsize=8, **place)


def _lost(runs: Sequence[Result]) -> bool:
    return any(math.isinf(final_loss(run)) for run in runs)


def draw_curve(axes: Axes, curve: Curve, look: Style) -> None:
    """Draw a loss over units, with a band from the lowest to the highest over seeds."""
    order = 3 if look.width > 2 else 2
    band: dict[str, Any] = {"color": look.light, "alpha": 0.16, "linewidth": 0, "zorder": order}
    axes.fill_between(curve.units, curve.low, curve.high, **band)
    axes.plot(curve.units, curve.loss, label=look.name, zorder=order, **line_style(look))


def line_style(look: Style) -> dict[str, Any]:
    """The line of an entrant, as matplotlib takes it."""
    return {
        "color": look.light,
        "linewidth": look.width * 0.75,
        "linestyle": (0, look.dash) if look.dash else "-",
        "dash_capstyle": "butt",
        "solid_joinstyle": "round",
    }


def _name_lines(
    axes: Axes, figure: Figure, curves: dict[str, Curve], looks: dict[str, Style]
) -> None:
    """Writes the names at the ends of the lines, or a legend where they are too many."""
    right = axes.get_xlim()[1]
    ends = {
        label: curve.loss[-1]
        for label, curve in curves.items()
        if curve.loss and curve.units[-1] >= 0.9 * right
    }
    if len(ends) > MOST_LABELS:
        axes.legend(frameon=False, fontsize=7, ncols=2, labelcolor=INK)
        return
    heights = {label: axes.transData.transform((right, end))[1] for label, end in ends.items()}
    points = 72 / figure.dpi
    places = spread_out(heights, gap=0.05 * axes.get_window_extent().height)
    for label, height in places.items():
        axes.annotate(
            looks[label].name,
            xy=(right, ends[label]),
            xytext=(5, (height - heights[label]) * points),
            textcoords="offset points",
            va="center",
            color=looks[label].light,
            fontsize=8.5,
            fontweight="bold" if looks[label].width > 2 else "normal",
            annotation_clip=False,
        )


def spread_out(heights: dict[str, float], *, gap: float) -> dict[str, float]:
    """The heights moved apart as little as it takes to keep the gap, in the same order.

    >>> spread_out({"a": 1.0, "b": 1.0, "c": 9.0}, gap=2.0)
    {'a': 0.0, 'b': 2.0, 'c': 9.0}
    """
    groups: list[tuple[list[str], float]] = []  # names that stand together, their middle
    for label in sorted(heights, key=lambda label: heights[label]):
        names, middle = [label], heights[label]
        while groups and middle - groups[-1][1] < gap * (len(names) + len(groups[-1][0])) / 2:
            names = groups.pop()[0] + names
            middle = sum(heights[each] for each in names) / len(names)
        groups.append((names, middle))
    return {
        label: middle + gap * (index - (len(names) - 1) / 2)
        for names, middle in groups
        for index, label in enumerate(names)
    }


def _draw_rates(axes: Axes, results: Sequence[Result], looks: dict[str, Style]) -> None:
    grid = sensitivity(results)
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


def _draw_rate_curve(
    axes: Axes, points: Sequence[tuple[float, float, float | None]], look: Style
) -> None:
    """Draws one optimizer's losses over rates; a cross at the top is a rate that diverged."""
    shown = [point for point in points if math.isfinite(point[1])]
    lost = [lr for lr, loss, _ in points if math.isinf(loss)]
    style = {**line_style(look), "marker": "o", "markersize": 3.5, "capsize": 2, "elinewidth": 0.8}
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
