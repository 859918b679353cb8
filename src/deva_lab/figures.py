"""How every figure looks, and how one is drawn into files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY, INK = "#5a5a5a", "#333333"
DPI: Final = 200
LOOK: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "deva",  # the same results give the same file
}


def draw(
    folder: Path, name: str, size: tuple[float, float], fill: Callable[[Figure], None]
) -> tuple[Path, Path]:
    """The paths of NAME.png and NAME.svg, drawn into a folder that exists.

    Args:
        folder: Where they go.
        name: What they are called.
        size: Width and height in inches.
        fill: Puts axes and lines into the empty figure.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    with look():
        figure = make_figure(size, fill)
        figure.savefig(png, dpi=DPI)
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def make_figure(size: tuple[float, float], fill: Callable[[Figure], None]) -> Figure:
    """A figure of this size in inches, filled, that pyplot knows nothing of."""
    with look():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        fill(figure)
    return figure


def look() -> AbstractContextManager[None]:
    """The settings of matplotlib with which all figures are drawn, for a while."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("matplotlib", extra="lab") from error
    return matplotlib.rc_context(LOOK)
