"""`fig-lr`, `table-lr`, `table-beta3`, `fig-batch`, `fig-freq`, `fig-cifar`: a setting varied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from ..render import percent
from ..render.figures import Style, draw, line_style
from ..run.entrants import Entrant
from ..run.progress import Result
from .experiment import Shown, shown
from .losses import TITLE, legend_below
from .measures import (
    Finding,
    Measured,
    Place,
    Series,
    at_one_speed,
    below,
    best,
    compared,
    decided,
    final,
    gap,
    judged,
    milliseconds,
    noise,
    order,
    orders,
    select,
    throughout,
    usual_noise,
)
from .paper import (
    BETA,
    DEVA,
    IMAGE_LOOKS,
    IMAGE_NAMES,
    LOOKS,
    MATRIX,
    METHODS,
    MUON,
    NAMES,
    PRINTED,
    REFRESH_EVERY,
    SOAP,
    VECTOR,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROW: Final = 0.005  # of the loss; the paper has 0.0019 over β₃, and little over frequencies


def _over_rates(
    results: Sequence[Result], labels: Iterable[str], column: str = "loss"
) -> dict[str, dict[float, Measured]]:
    """Label → learning rate → what a column ends at."""
    rates = sorted({float(result["settings"]["lr"]) for result in results})
    return {
        label: {lr: final(select(results, optimizer=label, lr=lr), column) for lr in rates}
        for label in labels
    }


def _over_option(
    results: Sequence[Result], method: str, option: str, usual: Any
) -> dict[Any, list[Result]]:
    """Value of an option, ascending → the runs of a method that have it."""
    found: dict[Any, list[Result]] = {}
    for result in results:
        entrant = Entrant.parse(result["label"])
        if entrant.name == method:
            found.setdefault(dict(entrant.options).get(option, usual), []).append(result)
    return dict(sorted(found.items()))


def _narrow(losses: Mapping[Place, Measured], how: str) -> Finding:
    """The losses over a setting hardly vary; {} in `how` is by how much they do."""
    means = [loss.mean for loss in losses.values()]
    varies = max(means) / min(means) - 1
    return judged(varies, most=NARROW, how=how.format(percent(varies, 2)))


def _panel(
    axes: Axes, lines: Mapping[Style, Mapping[Place, Measured]], *, title: str, x: str, y: str
) -> None:
    """Draw numbers over a setting, a bar where there are seeds and a cross where a run diverged.

    Args:
        axes: Where.
        lines: Look → place on the x axis → what was measured there.
        title: Above the panel.
        x: What the setting is; its axis is logarithmic, its ticks are the settings that were run.
        y: What was measured.
    """
    axes.set_xscale("log")
    axes.minorticks_off()
    for look, points in lines.items():
        known = {place: one for place, one in points.items() if math.isfinite(one.mean)}
        spreads = [math.nan if one.spread is None else one.spread for one in known.values()]
        axes.errorbar(
            list(known),
            [one.mean for one in known.values()],
            yerr=None if all(map(math.isnan, spreads)) else spreads,
            label=look.name,
            marker="o",
            markersize=4,
            capsize=3,
            elinewidth=0.9,
            **line_style(look),
        )
        lost = [place for place in points if place not in known]
        cross: dict[str, Any] = {"color": look.light, "marker": "x", "markersize": 5}
        top = axes.get_xaxis_transform()
        axes.plot(lost, [0.985] * len(lost), transform=top, linestyle="", **cross)
    places = sorted({place for points in lines.values() for place in points})
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, **TITLE)
    axes.grid(axis="y")


def _draw(
    folder: Path, name: str, *, panels: Mapping[str, Series[Place]], over: str, unit: str = ""
) -> tuple[Path, Path]:
    """A panel of each series, titled by its key: of losses, or of times with a unit, from zero."""

    def fill(figure: Figure) -> None:
        every = figure.subplots(1, len(panels))
        for axes, (title, series) in zip(every, panels.items(), strict=True):
            lines = {LOOKS[label]: own for label, own in series.items()}
            timed = unit and title != "loss"
            _panel(axes, lines, title=title, x=over, y=unit if timed else "final validation loss")
            if timed:
                axes.set_ylim(bottom=0)
        legend_below(figure, every[-1] if unit else every[0])  # where nothing can diverge

    return draw(folder, name, (9.0, 3.7) if unit else (8.4, 3.8), fill)


# Learning rates -----------------------------------------------------------------------------------

_RATES, *_COLUMNS = PRINTED["table-lr"].values()
PAPER_RATES: Final = {
    label: {lr: Measured({0: loss}) for lr, loss in zip(_RATES, column, strict=True)}
    for label, column in zip(METHODS, _COLUMNS, strict=True)
}


def show_rates_figure(results: Sequence[Result], folder: Path) -> Shown:
    """The losses over the rate, and whether the grid holds a best rate for each."""
    losses = _over_rates(results, METHODS)
    panels = {"paper": PAPER_RATES, "here": losses}
    figures = _draw(folder, "fig-lr", panels=panels, over="learning rate")
    found = {"inside": _inside(losses), **_common(results, losses)}
    return shown("fig-lr", found, figures, results=results, paper=PAPER_RATES, losses=losses)


def show_rates_table(results: Sequence[Result], folder: Path) -> Shown:
    """The same in numbers, each method at its best."""
    losses = _over_rates(results, METHODS)
    spread = usual_noise(losses)
    rates = {NAMES[label]: best(own) for label, own in losses.items()}
    least = {NAMES[label]: own[best(own)] for label, own in losses.items()}
    printed = {name: min(PRINTED["table-lr"][name]) for name in least}
    found = {
        other: below(least["DeVA-S∞"], least[other], spread=spread) for other in ("Muon", "SOAP")
    }
    return shown(
        "table-lr",
        found | _common(results, losses),
        results=results,
        paper=PAPER_RATES,
        losses=losses,
        rates=rates,
        order=orders(printed, least, spread=spread),
    )


def _inside(losses: Series[float]) -> Finding:
    """Both ends of the grid are worse than the best rate, for all methods."""
    parts = [
        below(own[best(own)], own[end], spread=usual_noise(losses))
        for own in losses.values()
        for end in (min(own), max(own))
    ]
    inner = [NAMES[label] for label, own in losses.items() if min(own) < best(own) < max(own)]
    return throughout(parts, f"inside for {', '.join(inner) or 'none'}")


def _common(results: Sequence[Result], losses: Series[float]) -> dict[str, Finding]:
    """DeVA-S∞ is below both others at the usual rate."""
    lr = results[0]["settings"]["lr"]
    return {
        f"{NAMES[other]} at the common rate": below(losses[DEVA][lr], losses[other][lr])
        for other in (MUON, SOAP)
    }


# β₃, the decay of the covariances of DeVA-S∞ ------------------------------------------------------

PAPER_BETA3: Final = dict(zip(*PRINTED["table-beta3"].values(), strict=True))


def show_beta3(results: Sequence[Result], folder: Path) -> Shown:
    """The losses, how much they vary, and whether they are below the best of SOAP."""
    runs = _over_option(results, "deva-sinf", "betas", (BETA,) * 3)
    losses = {betas[2]: final(own) for betas, own in runs.items()}
    soap = _over_rates(select(results, optimizer=SOAP), [SOAP])[SOAP]
    target, ours = soap[best(soap)], select(results, optimizer=DEVA)
    usual = noise(final(ours), soap[ours[0]["settings"]["lr"]])
    low, high = (end(loss.mean for loss in losses.values()) for end in (min, max))
    spreads = [loss.spread for loss in losses.values() if loss.spread is not None]
    seeds = f"; over seeds up to {max(spreads):.3f}" if spreads else ""
    parts = [below(loss, target, spread=usual) for loss in losses.values()]
    found = {
        "robust": _narrow(losses, f"{{}}, that is {high - low:.3f}{seeds}"),
        "soap": throughout(parts, f"{{}} of {{}}: {low:.3f} to {high:.3f} against {target.text()}"),
    }
    return shown(
        "table-beta3",
        found,
        results=results,
        paper=PAPER_BETA3,
        losses=losses,
        target=target,
        paper_target=min(PRINTED["table-lr"]["SOAP"]),
        narrow=NARROW,
    )


# Losses and times over a setting: batches in a step, and steps between two refreshes of a basis ---

COMPARISONS: Final = "{} of {} comparisons"
KNEE: Final = 100  # steps, beyond which the paper sees little gain in time


def _losses_and_times(
    runs: Mapping[str, Mapping[int, Sequence[Result]]], *, per_units: int = 0
) -> dict[str, Series[int]]:
    """Losses at the end, times in milliseconds, and the optimizer's part of these, by title."""
    measures: dict[str, Callable[[Sequence[Result]], Measured]] = {
        "loss": final,
        "time of training": lambda own: milliseconds(own, per_units=per_units),
        "the optimizer's part": lambda own: milliseconds(own, "optimizer", per_units=per_units),
    }
    return {
        title: {k: {n: measure(own[n]) for n in own} for k, own in runs.items()}
        for title, measure in measures.items()
    }


def show_batch(results: Sequence[Result], folder: Path) -> Shown:
    """Losses and times over the batches in a step, and the paper's claims about both."""
    numbers = sorted({result["settings"]["accumulate"] for result in results})
    steady = at_one_speed(results)
    runs = {
        label: {n: select(steady, optimizer=label, accumulate=n) for n in numbers}
        for label in METHODS
    }
    panels = _losses_and_times(runs, per_units=1000)
    (losses, times, _), first, last = panels.values(), numbers[0], numbers[-1]
    rise = {label: gap(own[first], own[last]) for label, own in losses.items()}
    others = max(rise[label] for label in METHODS if label != SOAP)
    rises = ", ".join(f"{NAMES[label]} {value:+.3f}" for label, value in rise.items())
    wide, narrow = (gap(times[MUON][n], times[DEVA][n]) for n in (first, last))
    gaps = f"{wide:.1f} and {narrow:.1f}"
    found = {
        "rises": _steps(losses),
        "lowest": _ahead(losses, DEVA),
        "soap": compared(rise[SOAP] - others, noise=usual_noise(losses), how=rises),
        "fastest": _ahead(times, MUON),
        "falls": _steps(times, falling=True),
        "gap": compared(wide - narrow, noise=usual_noise(times), how=gaps),
    }
    axes: dict[str, Any] = {"over": "batches in a step", "unit": "ms / 1,000 tokens"}
    figures = _draw(folder, "fig-batch", panels=panels, **axes)
    values: dict[str, Any] = {"results": results, "panels": panels, "first": first, "last": last}
    return shown("fig-batch", found, figures, **axes, **values)


def _steps(series: Series[int], *, falling: bool = False) -> Finding:
    """A quantity rises, or falls, from each place to the next, for every method."""
    steps = [step for own in series.values() for step in pairwise(own.values())]
    spread = usual_noise(series)
    parts = [below(*(step[::-1] if falling else step), spread=spread) for step in steps]
    return throughout(parts, COMPARISONS)


def _ahead(series: Series[int], ours: str) -> Finding:
    """A method is below each of the others, everywhere."""
    parts = [
        below(one, own[n], spread=usual_noise(series))
        for n, one in series[ours].items()
        for label, own in series.items()
        if label != ours
    ]
    return throughout(parts, COMPARISONS)


def show_frequency(results: Sequence[Result], folder: Path) -> Shown:
    """Losses and times over the steps between refreshes, and the paper's claims about both."""
    steady = at_one_speed(results)
    runs = {
        label: _over_option(steady, method, "refresh_every", REFRESH_EVERY)
        for label, method in ((SOAP, "soap"), (DEVA, "deva-sinf"))
    }
    panels = _losses_and_times(runs)
    losses, _, times = panels.values()
    low, high = (end(loss.mean for loss in losses[DEVA].values()) for end in (min, max))
    # Time falls from every 10 steps to every 100, and little beyond.
    spread, first, last = usual_noise(times), min(times[DEVA]), max(times[DEVA])
    knee = max((k for k in times[DEVA] if k <= KNEE), default=last)
    falling = [below(own[knee], own[first], spread=spread, spec=".1f") for own in times.values()]
    early, late = (
        fmean(gap(own[b], own[a]) for own in times.values())
        for a, b in ((first, knee), (knee, last))
    )
    found = {
        "below": _ahead(losses, DEVA),
        "narrow": _narrow(losses[DEVA], f"{{}}: {low:.3f} to {high:.3f}"),
        "faster": throughout(falling),
        "less": compared(early - late, noise=spread, how=f"{early:.1f} and {late:.1f}"),
    }
    axes: dict[str, Any] = {"over": "steps between refreshes", "unit": "ms a step"}
    figures = _draw(folder, "fig-freq", panels=panels, **axes)
    values: dict[str, Any] = {"results": results, "panels": panels, "knee": KNEE, "narrow": NARROW}
    return shown("fig-freq", found, figures, **axes, **values, first=first, middle=knee, last=last)


# ResNet-20 on CIFAR-10 over learning rates --------------------------------------------------------

Errors = Mapping[str, Mapping[float, Measured]]  # method → rate → validation error, per cent
CIFAR: Final = PRINTED["fig-cifar"]
GROUPS: Final = {"vector": VECTOR, "matrix": MATRIX}
NEAR: Final = 2.0  # a rate is near another up to this factor
VALIDATED: Final = {"digits": 364, "cifar10-small": 2_000, "cifar10": 10_000}


def show_cifar(results: Sequence[Result], folder: Path) -> Shown:
    """Accuracies over rates, the best of each method, and what the paper says of them."""
    errors = errors_of(results)
    resolved = resolution(errors, VALIDATED.get(results[0]["settings"]["data"], 10_000))
    least = {method: own[best(own)] for method, own in errors.items()}
    orders = {
        group: order({IMAGE_NAMES[method]: least[method] for method in methods}, resolved)
        for group, methods in GROUPS.items()
    }
    return shown(
        "fig-cifar",
        cifar_findings(errors, resolved),
        draw(folder, "fig-cifar", (8.0, 3.6), partial(_fill_cifar, errors)),
        results=results,
        groups=GROUPS,
        errors=errors,
        orders=orders,
        noise=resolved,
    )


def errors_of(results: Sequence[Result]) -> Errors:
    """The validation error at the end of every run, in per cent."""
    labels = VECTOR | MATRIX
    accuracies = _over_rates(results, labels.values(), "accuracy")
    return {
        method: {
            lr: _changed(one, lambda x: 100 * (1 - x)) for lr, one in accuracies[label].items()
        }
        for method, label in labels.items()
    }


def _changed(measured: Measured, change: Callable[[float], float]) -> Measured:
    return Measured({seed: change(value) for seed, value in measured.values.items()})


def resolution(errors: Errors, images: int) -> float:
    """The standard error of a difference of two errors that are counted on so many images."""
    lowest = min(error.mean for rates in errors.values() for error in rates.values()) / 100
    share = min(max(lowest, 1 / images), 0.5)
    return 100 * math.sqrt(2 * share * (1 - share) / images)


def cifar_findings(errors: Errors, noise: float) -> dict[str, Finding]:
    """The paper's claims about the figure."""
    rates = {method: best(own) for method, own in errors.items()}
    least = {IMAGE_NAMES[method]: own[rates[method]] for method, own in errors.items()}

    def within(method: str, low: float, high: float) -> Finding:
        lr = rates[method]
        inside = low * 0.999 <= lr <= high * 1.001  # rates are decimal fractions
        return Finding(decided(inside), f"{IMAGE_NAMES[method]} {lr:g}", lr)

    found = {}
    for group, first in CIFAR["first"].items():
        others = [name for m in GROUPS[group] if (name := IMAGE_NAMES[m]) != first]
        against = ", ".join(f"{least[name].text('.1f')} ({name})" for name in others)
        parts = [below(least[first], least[other], spread=noise) for other in others]
        found[group] = throughout(parts, f"{least[first].text('.1f')} against {against}")
    for group, near in CIFAR["best rate"].items():
        parts = [within(method, near / NEAR, near * NEAR) for method in GROUPS[group]]
        found[f"{group} rates"] = throughout(parts)
    parts = [within(method, *CIFAR["range"]) for method in rates]
    outside = [part.how for part in parts if part.verdict != "holds"]
    how = "; ".join(outside) + " lie outside" if outside else "all do"
    return {**found, "rates": throughout(parts, how)}


def _fill_cifar(errors: Errors, figure: Figure) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (group, methods) in zip(panels, GROUPS.items(), strict=True):
        lines = {
            IMAGE_LOOKS[m]: {lr: _changed(one, lambda x: 100 - x) for lr, one in errors[m].items()}
            for m in methods
        }
        _panel(axes, lines, title=f"{group} methods", x="learning rate", y="")
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("validation accuracy (%)")
