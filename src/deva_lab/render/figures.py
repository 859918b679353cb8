"""How every figure looks, and how one is drawn into files or into a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY, INK, GRID = "#5a5a5a", "#333333", "#e6e6e6"
DARK = {GREY: "#a3a7ad", INK: "#d0d2d4", GRID: "#25292e"}  # the same on a dark page
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
    "grid.color": GRID,
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


def svg(figure: Figure, *, transparent: bool = False) -> str:
    """The figure as the text of an SVG file."""
    out = io.StringIO()
    with look():
        figure.savefig(out, format="svg", transparent=transparent, metadata={"Date": None})
    return out.getvalue()


def inline_svg(figure: Figure, name: str, dark: Mapping[str, str]) -> str:
    """The figure as an element of a page, as wide as its place, with a second set of colours.

    Args:
        figure: The figure.
        name: What it shows, for those who do not see it.
        dark: Colour → the one in its place on a dark page; that of axes and text is known.
    """
    text = svg(figure, transparent=True).partition("<svg ")[2]
    box = re.search(r'viewBox="([^"]*)"', text)
    text = text.partition(">")[2]
    # What belongs to a file alone goes, and so do names that another figure of the page has, too.
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = text.replace('<g id="line"', '<g class="line"')
    text = re.sub(r'(?<=<g) id="[^"]*"| font-family: [^;]*;', "", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r"\s*\n\s*", " ", text)
    colours = {**DARK, **dark}
    text = re.sub(
        "|".join(colours), lambda light: f"light-dark({light[0]}, {colours[light[0]]})", text
    )
    return f'<svg viewBox="{box[1] if box else ""}" role="img" aria-label="{escape(name)}">{text}'


def look() -> AbstractContextManager[None]:
    """The settings of matplotlib with which all figures are drawn, for a while."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("matplotlib", extra="lab") from error
    return matplotlib.rc_context(LOOK)
