"""What the times of steps come to: tables, the requirements that were set, a file and a chart."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import deva_optim as do

from ..errors import check_least, unknown
from ..machine import machine, summary
from ..models.gpt import GPT, SIZES
from ..render import aligned
from ..render.figures import GREY, make_figure, svg
from .subjects import SETS, SUBJECTS, matching, shape_set
from .timing import ONE, Result, Say, SetResult, Settings, measure_set, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUT: Final = Path("runs/bench/step")


def run(settings: Settings, out: Path = OUT, show: Say = print, say: Say = lambda _: None) -> bool:
    """Measure, show tables and checks, write files; returns whether all checks hold."""
    subjects = [SUBJECTS[name] for name in matching(settings.only, SUBJECTS)]
    if backend := settings.compile:
        ours = [s for s in subjects if s.kind == "ours"]
        subjects += [replace(s, name=f"{s.name}-compiled", compile=backend) for s in ours]
    if settings.baseline not in SUBJECTS:
        raise unknown("baseline", settings.baseline, SUBJECTS)
    sets = [shape_set(name) for name in [f"gpt-{d}:1" for d in settings.dims] or settings.shapes]
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
        show("\n".join(map(str, checks(found[-1]))) + "\n")
        # Written each time, so that an interruption costs little.
        numbers.write_text(json.dumps(document(found, settings), indent=1) + "\n", "utf-8")
        if settings.dims:
            chart = growth_chart(found, settings.dims[: len(found)], caption)
        else:
            chart = bar_chart(found, settings.baseline, caption)
        picture.write_text(chart, "utf-8")
    if settings.dims:
        show(growth_table(found) + "\n")
    show(f"written: {numbers} and {picture}")
    return all(check.holds for one in found for check in checks(one))


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
                "checks": [{**asdict(check), "holds": check.holds} for check in checks(one)],
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


def growth_table(found: Sequence[SetResult]) -> str:
    """Mean milliseconds a step by width, a line for each subject."""
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


# The requirements ---------------------------------------------------------------------------------

Sense = Literal["≤", "≥", "="]
Requirement = tuple[int, str, float | None, Sense, float]  # a check, if the value is known
_COMPARE: Final = {"≤": operator.le, "≥": operator.ge, "=": operator.eq}
_RATIOS: Final = (
    (1, "muon", "plain-muon", 0.75),
    (1, "muon", "torch-muon", 0.25),
    (2, "deva-short", "muon", 1.5),
    (3, "deva-both", "muon", 2.4),
    (4, "soap", "pytorch_optimizer-soap", 0.8),
    (4, "soap", "heavyball-soap", 0.8),
    (5, "adamw", "torch-adamw", 1.3),
    (5, "deva-linf", "torch-adamw", 1.5),
)
# Products are asked about where they are what a method does.
_PRODUCT_METHODS: Final = ("muon", "deva-short", "deva-both", "soap")


@dataclass(frozen=True)
class Check:
    """A requirement, numbered as it was set: a number and its bound, judged as it is shown."""

    number: int
    text: str
    value: float
    sense: Sense
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of the bound."""
        return bool(_COMPARE[self.sense](round(self.value, 3), self.bound))

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        shown = f"{self.value:8.3f} {self.sense} {self.bound:<6g}"
        return f"{self.number}. {self.text:<58}{shown}{verdict}"


def checks(found: SetResult) -> list[Check]:
    """Every requirement that these results can answer."""
    return [
        Check(number, text, value, sense, bound)
        for number, text, value, sense, bound in (*_times(found), *_memory(found))
        if value is not None
    ]


def _ours(found: SetResult) -> list[Result]:
    """Our results on the shapes of the set itself."""
    return [r for r in found.results.values() if r.kind == "ours" and not r.name.endswith(ONE)]


def _times(found: SetResult) -> Iterator[Requirement]:
    if found.shapes.against:
        for r in _ours(found):
            ratio = found.ratio(r.name, r.name + ONE)
            yield 8, f"time of {r.name}, a hundred matrices / one", ratio, "≤", 3.0
        return
    for number, name, baseline, bound in _RATIOS:
        yield number, f"time of {name} / {baseline}", found.ratio(name, baseline), "≤", bound
    for r in _ours(found):
        worst = r.worst / median(r.steps) if r.refreshes else None
        yield 6, f"worst step of {r.name} / its median", worst, "≤", 2.0
    for r in _ours(found):
        if r.name in _PRODUCT_METHODS and r.products_rate is not None:
            yield 7, f"share of {r.name}'s time in matrix products", r.products_share, "≥", 0.6
            rate = r.products_rate / found.peak if found.shapes.name == "gpt-768" else None
            yield 7, f"rate of {r.name}'s products / sgemm peak", rate, "≥", 0.7


def _memory(found: SetResult) -> Iterator[Requirement]:
    ours = _ours(found)
    if found.shapes.against or not ours:
        return
    for r in ours:
        yield 9, f"peak temporary memory of {r.name} / weights", r.temporary, "≤", 1.0
    wrong = max(abs(r.state_bytes - r.formula_bytes) for r in ours)
    yield 9, "bytes of state beside the formula, at the most", wrong, "=", 0
    if {"deva-both", "deva-both-bf16"} <= found.results.keys():
        wide, small = found.results["deva-both"], found.results["deva-both-bf16"]
        saved = (wide.state_bytes - small.state_bytes) / (2 * wide.weight_bytes)
        yield 9, "M and V of deva-both in bfloat16 / float32", 1 - saved, "=", 0.5


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

    title = f"Mean time of a step, refreshes included, and × {baseline}"
    return _chart(0.8 + 0.26 * sum(heights), title, caption, fill)


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


def growth_chart(found: Sequence[SetResult], widths: Sequence[int], caption: str) -> str:
    """The mean step against the width of a block, both logarithmic, as the text of an SVG."""

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        for name in dict.fromkeys(name for one in found for name in one.results):
            pairs = zip(widths, found, strict=True)
            known = {d: 1e3 * one.results[name].mean for d, one in pairs if name in one.results}
            axes.plot(list(known), list(known.values()), marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="width of a block", ylabel="ms")
        axes.set_xticks(widths, list(map(str, widths)))
        axes.minorticks_off()
        axes.grid()
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))

    return _chart(4.6, "Mean time of a step by the width of a block", caption, fill)


def _chart(height: float, title: str, caption: str, fill: Callable[[Figure], None]) -> str:
    def titled(figure: Figure) -> None:
        fill(figure)
        figure.suptitle(title)
        figure.supxlabel(caption, fontsize=7, color=GREY)

    return svg(make_figure((WIDTH, height), titled))


# Whole training steps, forward and backward included, of the laboratory's GPT ---------------------

BASELINE: Final = "AdamW"
OPTIMIZERS: Final[dict[str, Callable[[nn.Module], Optimizer]]] = {
    BASELINE: lambda model: torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1),
    "Muon": lambda model: do.Muon(model, 1e-3, weight_decay=0.1, nesterov=False),
    "DeVA": lambda model: do.DeVA(model, 1e-3),
    "DeVA-S∞": lambda model: do.DeVASinf(model, 1e-3),
    "SOAP": lambda model: do.SOAP(model, 1e-3),
}
WARMUP: Final = 4  # steps: layers that start at zero keep others without a gradient and a basis
BOUND: Final = 1.15  # of DeVA's whole step over AdamW's, at the default settings


@dataclass(frozen=True)
class TrainingSettings:
    """What is trained, a size of GPT on so many sequences of its context a step, and how often."""

    size: str = "small"
    vocabulary: int = 4096
    batch: int = 64  # sequences a step
    seed: int = 0
    rounds: int = 20  # how often every optimizer takes a step

    def __post_init__(self) -> None:
        check_least(self, rounds=2)


def run_training(settings: TrainingSettings, show: Say = print) -> bool:
    """Measure and show a table; returns whether the requirement holds."""
    torch.manual_seed(settings.seed)
    size = SIZES[settings.size]
    tokens = torch.randint(settings.vocabulary, (settings.batch, size.context + 1))
    trained = {}
    for name, build in OPTIMIZERS.items():
        model = GPT(size, settings.vocabulary)
        trained[name] = model, build(model)
        for _ in range(WARMUP):
            training_step(*trained[name], tokens)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trained}
    for _ in range(settings.rounds):  # they take turns, a step each
        for name, pair in trained.items():
            seconds[name].append(training_step(*pair, tokens))
    show(summary("cpu"))
    show(
        f"GPT of width {size.width}, {size.layers} layers, "
        f"{sum(p.numel() for p in model.parameters()):,} parameters; "
        f"{settings.batch * size.context:,} tokens a step, {settings.rounds} rounds\n"
    )
    ratios, rows = {}, []
    for name, times in seconds.items():
        whole, part = (median(column) for column in zip(*times, strict=True))
        pairs = zip(times, seconds[BASELINE], strict=True)
        values = [mine / base for (mine, _), (base, _) in pairs]
        ratios[name] = fmean(values)  # a mean, for the refreshes to count
        low, high = quartiles(values)
        times_of = f"{1e3 * whole:.0f}", f"{1e3 * part:.1f}"
        rows.append((name, *times_of, f"{ratios[name]:.3f}", f"{low:.3f}–{high:.3f}"))
    show(aligned(("optimizer", "step, ms", "its part", f"/ {BASELINE}", "quartiles"), rows))
    checks = [
        Check(10, f"time of a training step, {name} / {BASELINE}", ratios[name], "≤", BOUND)
        for name in ("DeVA", "DeVA-S∞")
    ]
    show("\n" + "\n".join(map(str, checks)))
    return all(check.holds for check in checks)


def training_step(model: nn.Module, optimizer: Optimizer, tokens: Tensor) -> tuple[float, float]:
    """Train on a batch; returns the seconds of all of it and of the optimizer's part."""
    start = time.perf_counter()
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    middle = time.perf_counter()
    optimizer.step()
    end = time.perf_counter()
    return end - start, end - middle
