"""Charts of the benchmark: bars for a set of shapes, lines for growth with the width."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..render.figures import GREY, make_figure, svg
from .results import SetResult
from .subjects import Kind
from .timing import quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH: Final = 8.6  # inches
COLOURS: Final[dict[Kind, str]] = {"ours": "#2f6fb0", "yardstick": "#777777", "peer": "#d98c2b"}


def bar_chart(found: Sequence[SetResult], baseline: str, caption: str) -> str:
    """The mean step of every subject, one panel below the other, as the text of an SVG."""
    heights = [len(one.results) + 1.5 for one in found]

    def fill(figure: Figure) -> None:
        panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=heights)
        for axes, one in zip(panels[:, 0], found, strict=True):
            _panel(axes, one, baseline)
        for kind, colour in COLOURS.items():
            panels[0, 0].bar(0, 0, color=colour, label=kind)
        panels[0, 0].legend(frameon=False, loc="lower right")
        figure.suptitle(f"Mean time of a step, refreshes included, and × {baseline}")
        figure.supxlabel(caption, fontsize=7, color=GREY)

    return svg(make_figure((WIDTH, 0.8 + 0.26 * sum(heights)), fill))


def _panel(axes: Axes, one: SetResult, baseline: str) -> None:
    """The bars of a set of shapes, with quartiles over the rounds."""
    results = list(one.results.values())
    means = [1e3 * result.timing.mean for result in results]
    spans = [[1e3 * time for time in quartiles(result.timing.means)] for result in results]
    errors = [
        [max(0.0, mean - low) for mean, (low, _) in zip(means, spans, strict=True)],
        [max(0.0, high - mean) for mean, (_, high) in zip(means, spans, strict=True)],
    ]
    colours = [COLOURS[result.kind] for result in results]
    line = {"linewidth": 0.8}
    bars = axes.barh(range(len(means)), means, xerr=errors, color=colours, error_kw=line)
    texts = []
    for result, mean in zip(results, means, strict=True):
        ratios = one.ratios(result.name, baseline)
        times = "" if ratios is None else f"  ·  {statistics.median(ratios):.2f}×"
        texts.append(f"{mean:.3g} ms{times}" if mean < 100 else f"{mean:.0f} ms{times}")
    axes.bar_label(bars, texts, padding=4)
    axes.set_yticks(range(len(means)), [result.name for result in results])
    axes.invert_yaxis()
    axes.set_xlim(right=1.25 * max((high for _, high in spans), default=1.0))
    axes.set_title(one.shapes.name, loc="left", fontsize=9)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(left=False)


def growth_chart(found: Sequence[SetResult], widths: Sequence[int], caption: str) -> str:
    """The mean step against the width of a block, both logarithmic, as the text of an SVG."""
    names = dict.fromkeys(name for one in found for name in one.results)

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        for name in names:
            pairs = zip(widths, found, strict=True)
            known = [(d, one.results[name].timing.mean) for d, one in pairs if name in one.results]
            axes.plot([d for d, _ in known], [1e3 * t for _, t in known], marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="width of a block", ylabel="ms")
        axes.set_xticks(widths, list(map(str, widths)))
        axes.minorticks_off()
        axes.grid()
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.suptitle("Mean time of a step by the width of a block")
        figure.supxlabel(caption, fontsize=7, color=GREY)

    return svg(make_figure((WIDTH, 4.6), fill))
