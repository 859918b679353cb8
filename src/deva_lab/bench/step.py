"""What the times of steps come to: tables, a file and a chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch

from ..errors import unknown
from ..machine import machine, summary
from ..render import aligned
from ..render.figures import GREY, make_figure, svg
from ..run.environment import device_of
from .subjects import SETS, SUBJECTS, matching, shape_set
from .timing import Result, Say, SetResult, Settings, measure_set, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUT: Final = Path("runs/bench/step")


def run(settings: Settings, out: Path = OUT, show: Say = print, say: Say = lambda _: None) -> None:
    """Measure, show tables, and write the numbers and a chart."""
    device_of(settings.device)
    subjects = [SUBJECTS[name] for name in matching(settings.only, SUBJECTS)]
    if backend := settings.compile:
        ours = [s for s in subjects if s.kind == "ours"]
        subjects += [replace(s, name=f"{s.name}-compiled", compile=backend) for s in ours]
    if settings.baseline not in SUBJECTS:
        raise unknown("baseline", settings.baseline, SUBJECTS)
    sets = [shape_set(name) for name in settings.shapes]
    if settings.threads:
        torch.set_num_threads(settings.threads)
    caption = summary(settings.device)
    show(f"{settings}\n{caption}\n")
    numbers, picture = out.with_name(f"{out.name}.json"), out.with_name(f"{out.name}.svg")
    numbers.parent.mkdir(parents=True, exist_ok=True)
    found: list[SetResult] = []
    for shapes in sets:
        found.append(measure_set(shapes, subjects, settings, say))
        show(table(found[-1], settings))
        # Written each time, so that an interruption costs little.
        numbers.write_text(json.dumps(document(found, settings), indent=1) + "\n", "utf-8")
        picture.write_text(bar_chart(found, settings.baseline, caption), "utf-8")
    if len(found) > 1:
        show(means_table(found) + "\n")
    show(f"written: {numbers} and {picture}")


def document(found: Sequence[SetResult], settings: Settings) -> dict[str, Any]:
    """Everything, as plain values: seconds, bytes and FLOPs."""
    return {
        "benchmark": "step",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(settings.device),
        "settings": asdict(settings),
        "sets": [
            {
                "name": one.shapes.name,
                "shapes": one.shapes.shapes,
                "numel": one.shapes.numel,
                "peak_flops": one.peak,
                "left_out": one.left_out,
                "results": [
                    {
                        **asdict(r),
                        "median": median(r.steps),
                        "quartiles": quartiles(r.steps),
                        **{key: getattr(r, key) for key in ("mean", "worst", "temporary")},
                        "ratios": one.ratios(r.name, settings.baseline),
                    }
                    for r in one.results.values()
                ],
            }
            for one in found
        ],
    }


# The table ----------------------------------------------------------------------------------------

LEGEND: Final = """\
ms a step; mean: median over rounds of a round's mean, refreshes included, and what ratios are of
worst: median over rounds of a round's slowest step; first: the very first, which makes the state
peak: temporary memory / weights
rate: FLOP/s / sgemm peak; products: share of the time in matrix products, and their rate"""


def table(found: SetResult, settings: Settings) -> str:
    """The results on one set of shapes, aligned, with what there is to say of them."""
    rows = [_row(result, found, settings.baseline) for result in found.results.values()]
    head = [name for name, _ in rows[0]] if rows else []
    left = [i for i, name in enumerate(head) if name in ("subject", "by formula")]
    shown = aligned(head, [[cell for _, cell in row] for row in rows], left=left)
    shapes = found.shapes
    heading = (
        f"{shapes.name}{f' ({shapes.about})' if shapes.about else ''}: {len(shapes.shapes)} "
        f"parameters, {shapes.numel:,} numbers; sgemm peak {found.peak / 1e9:.0f} GFLOP/s"
    )
    notes = [f"left out: {name}, {reason}" for name, reason in found.left_out.items()]
    return "\n".join([heading, "", shown, "", LEGEND, *notes, ""])


def _row(r: Result, found: SetResult, baseline: str) -> list[tuple[str, str]]:
    """The cells of a subject, each with the head of its column; what is not known is empty."""

    def shown(value: float | None, spec: str = ".2f", unit: float = 1.0) -> str:
        return "" if value is None else format(value / unit, spec)

    ratios = found.ratios(r.name, baseline)
    return [
        ("subject", r.name),
        ("median ms", _ms(median(r.steps))),
        ("quartiles", "–".join(map(_ms, quartiles(r.steps)))),
        ("mean", _ms(r.mean)),
        ("worst", _ms(r.worst)),
        ("first", _ms(r.first)),
        (f"/ {baseline}", shown(found.ratio(r.name, baseline))),
        ("quartiles", "–".join(map(shown, quartiles(ratios))) if ratios else ""),
        ("state MB", shown(r.state_bytes, unit=1e6)),
        ("by formula", f"{r.formula_bytes / 1e6:.2f} = {r.formula}"),
        ("peak", shown(r.temporary)),
        ("GFLOP", shown(r.flops, unit=1e9)),
        ("rate", shown(r.flops, ".0%", r.mean * found.peak)),
        ("products", shown(r.products_share, ".0%")),
        ("at", shown(r.products_rate, ".0%", found.peak)),
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.{3 if seconds < 1e-2 else 1}f}"


def means_table(found: Sequence[SetResult]) -> str:
    """Mean milliseconds a step, a line for each subject and a column for each set of shapes."""
    names = dict.fromkeys(name for one in found for name in one.results)
    columns = [{name: _ms(result.mean) for name, result in one.results.items()} for one in found]
    rows = [[name, *(column.get(name, "") for column in columns)] for name in names]
    return aligned(["mean ms", *(one.shapes.name for one in found)], rows)


def listing() -> str:
    """All shape sets and all subjects."""
    sets = [(name, found.about) for name, found in SETS.items()]
    subjects = [(s.name, s.kind, f"({s.missing})" * bool(s.missing)) for s in SUBJECTS.values()]
    head = "Shape sets (NAME:2 takes two blocks, gpt-WIDTH is one block of any width)"
    tables = aligned((), sets, left=(0, 1)), aligned((), subjects, left=(0, 1, 2))
    return f"{head}\n{tables[0]}\n\nSubjects\n{tables[1]}"


# The chart ----------------------------------------------------------------------------------------

WIDTH: Final = 8.6  # inches
COLOURS: Final = {"ours": "#2f6fb0", "yardstick": "#777777", "peer": "#d98c2b"}


def bar_chart(found: Sequence[SetResult], baseline: str, caption: str) -> str:
    """The mean step of every subject, one panel below the other, as the text of an SVG."""
    heights = [len(one.results) + 1.5 for one in found]

    def fill(figure: Figure) -> None:
        panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, one in zip(panels, found, strict=True):
            _panel(axes, one, baseline)
        for kind, colour in COLOURS.items():
            panels[0].bar(0, 0, color=colour, label=kind)
        panels[0].legend(frameon=False, loc="lower right")
        figure.suptitle(f"Mean time of a step, refreshes included, and × {baseline}")
        figure.supxlabel(caption, fontsize=7, color=GREY)

    return svg(make_figure((WIDTH, 0.8 + 0.26 * sum(heights)), fill))


def _panel(axes: Axes, one: SetResult, baseline: str) -> None:
    """The bars of a set of shapes, with quartiles over the rounds."""
    results = list(one.results.values())
    means, lows, highs, texts = [], [], [], []
    for result in results:
        mean, (low, high) = 1e3 * result.mean, quartiles([1e3 * x for x in result.means])
        means.append(mean)
        lows.append(max(0.0, mean - low))
        highs.append(max(0.0, high - mean))
        ratio = one.ratio(result.name, baseline)
        times = "" if ratio is None else f"  ·  {ratio:.2f}×"
        texts.append(f"{mean:.3g} ms{times}" if mean < 100 else f"{mean:.0f} ms{times}")
    places, colours = range(len(means)), [COLOURS[result.kind] for result in results]
    line = {"linewidth": 0.8}
    bars = axes.barh(places, means, xerr=[lows, highs], color=colours, error_kw=line)
    axes.bar_label(bars, texts, padding=4)
    axes.set_yticks(places, [result.name for result in results])
    axes.invert_yaxis()
    axes.set_xlim(right=1.25 * max(map(sum, zip(means, highs, strict=True)), default=1.0))
    axes.set_title(one.shapes.name, loc="left", fontsize=9)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(left=False)
