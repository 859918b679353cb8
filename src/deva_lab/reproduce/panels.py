"""Parts of the figures of training runs: losses along the way, and numbers over a setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..render.figures import GREY, Style, draw_curves, line_style
from ..results.curves import Curve
from .measures import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, Measured]]  # (where on the x axis, what was measured there)


def curves_panel(
    axes: Axes,
    curves: Mapping[Style, Curve],
    *,
    title: str,
    x: str,
    y: str,
    fitted: Sequence[Curve] = (),
) -> None:
    """Draw a line an entrant, with a band from the lowest to the highest over seeds.

    Args:
        axes: Where.
        curves: Look → curve.
        title: Above the panel.
        x: What is counted along the way.
        y: What the loss is in.
        fitted: The curves that must be in view; all, if none are given.
    """
    draw_curves(axes, curves, x=x, y=y, fitted=fitted)
    axes.locator_params(axis="x", nbins=5)
    _finish(axes, title, x, y)


def points_panel(
    axes: Axes,
    lines: Mapping[Style, Points],
    *,
    title: str,
    x: str,
    y: str,
    logarithmic: bool = True,
    from_zero: bool = False,
) -> None:
    """Draw numbers over a setting, a bar where there are seeds and a cross where a run diverged.

    Args:
        axes: Where.
        lines: Look → points.
        title: Above the panel.
        x: What the setting is.
        y: What was measured.
        logarithmic: Of the setting's axis, whose ticks are the settings that were run.
        from_zero: Whether the other axis begins at zero.
    """
    if logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
    for look, points in lines.items():
        _draw_points(axes, points, look)
    places = sorted({place for points in lines.values() for place, _ in points})
    axes.set_xticks(places, [f"{place:g}" for place in places])
    if from_zero:
        axes.set_ylim(bottom=0)
    _finish(axes, title, x, y)


def _draw_points(axes: Axes, points: Points, look: Style) -> None:
    known = [(place, one) for place, one in points if math.isfinite(one.mean)]
    lost = [place for place, one in points if not math.isfinite(one.mean)]
    style = {**line_style(look), "marker": "o", "markersize": 4, "capsize": 3, "elinewidth": 0.9}
    spreads = [math.nan if one.spread is None else one.spread for _, one in known]
    axes.errorbar(
        [place for place, _ in known],
        [one.mean for _, one in known],
        yerr=None if all(map(math.isnan, spreads)) else spreads,
        label=look.name,
        **style,
    )
    cross: dict[str, Any] = {"color": look.light, "marker": "x", "markersize": 5, "linestyle": ""}
    axes.plot(lost, [0.985] * len(lost), transform=axes.get_xaxis_transform(), **cross)


def _finish(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=9, loc="left", color=GREY)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y")


def legend_below(figure: Figure, axes: Axes, *, columns: int = 4) -> None:
    """Write the names of the lines of a panel below the whole figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
