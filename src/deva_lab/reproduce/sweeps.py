"""`fig-lr`, `table-lr`, `table-beta3`, `fig-batch` and `fig-freq`: runs on text over a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..entrants import Entrant
from ..progress import Result
from ..render import percent, rate
from ..render.figures import draw
from .experiment import Shown, markdown_table, shown
from .measures import (
    Finding,
    Measured,
    Series,
    at_one_speed,
    below,
    compared,
    final,
    gap,
    holding,
    judged,
    milliseconds,
    noise,
    order,
    select,
    speeds,
    throughout,
    usual_noise,
)
from .panels import legend_below, points_panel
from .printed import PRINTED
from .runs import (
    BETA,
    DEVA,
    KEYS,
    LOOKS,
    METHODS,
    MUON,
    NAMES,
    REFRESH_EVERY,
    SOAP,
    TEXT,
    about,
    scale_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_STEPS: Final = TEXT["paper"].base.steps
NARROW: Final = 0.005  # of the loss; the paper has 0.0019 over β₃, and little over frequencies


def _everywhere(claim: str, computed: str, parts: Sequence[Finding]) -> Finding:
    return throughout(claim, computed, parts, f"{holding(parts)} of {len(parts)} comparisons")


def _varies(losses: Mapping[Any, Measured]) -> float:
    """How far the highest is above the lowest, relative to it."""
    means = [loss.mean for loss in losses.values()]
    return max(means) / min(means) - 1


def _option(result: Result, method: str, option: str, usual: Any) -> Any:
    """What a run of a method has for an option; None for a run of another method."""
    entrant = Entrant.parse(result["label"])
    return dict(entrant.options).get(option, usual) if entrant.name == method else None


def _panel(axes: Axes, series: Series[Any], **options: Any) -> None:
    points_panel(axes, {LOOKS[k]: list(own.items()) for k, own in series.items()}, **options)


# Learning rates -----------------------------------------------------------------------------------

Losses = Mapping[float, Measured]  # by learning rate, ascending
PAPER_RATES: Final = {
    label: {
        lr: Measured({0: loss})
        for lr, loss in zip(PRINTED["table-lr"]["lr"], PRINTED["table-lr"][key], strict=True)
    }
    for label, key in KEYS.items()
}
PAPER_RATE: Final = 1e-3  # the one that the paper uses elsewhere, for all methods


def _losses_of(results: Sequence[Result]) -> dict[str, dict[float, Measured]]:
    """Label → learning rate → final loss."""
    rates = sorted({result["settings"]["lr"] for result in results})
    return {
        label: {lr: final(select(results, optimizer=label, lr=lr)) for lr in rates}
        for label in METHODS
    }


def _best(losses: Losses) -> float:
    """The rate with the lowest loss."""
    return min(losses, key=lambda lr: losses[lr].mean)


def show_rates_figure(results: Sequence[Result], folder: Path) -> Shown:
    """The losses over the rate, and whether the grid holds a best rate for each."""
    losses, lr = _losses_of(results), results[0]["settings"]["lr"]

    def fill(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for axes, title, table in ((left, "paper", PAPER_RATES), (right, "here", losses)):
            _panel(axes, table, title=title, x="learning rate", y="final validation loss")
        legend_below(figure, left)

    return shown(
        about(results),
        [_inside(losses), _common(losses, lr, MUON), _common(losses, lr, SOAP)],
        _best_rates(losses),
        figures=draw(folder, "fig-lr", (8.4, 3.8), fill),
        caption="Validation loss at the end, in nats a token, over the learning rate. Left the "
        "paper's numbers, right ours; bars are deviations over seeds, a cross is a run that "
        "diverged. The grid has the paper's spacing around our usual rate.",
        why=_apart(results, losses),
    )


def show_rates_table(results: Sequence[Result], folder: Path) -> Shown:
    """The same in numbers, each method at its best."""
    losses, lr = _losses_of(results), results[0]["settings"]["lr"]
    findings = [_at_best(losses, other) for other in (MUON, SOAP)]
    findings += [_common(losses, lr, other) for other in (MUON, SOAP)]
    return shown(
        about(results),
        _rates_table("paper", PAPER_RATES, ".4f"),
        _rates_table("here", losses, ".3f"),
        _orders(losses),
        _best_rates(losses),
        findings,
        why=_apart(results, losses),
    )


def _apart(results: Sequence[Result], losses: Series[float]) -> str:
    """Why a common rate suits the methods otherwise than in the paper."""
    ours, theirs = (
        max(map(_best, table.values())) / min(map(_best, table.values()))
        for table in (losses, PAPER_RATES)
    )
    return (
        f"{scale_of(results)} The best rates of the methods are up to {ours:g} times apart here "
        f"and {theirs:g} times in the paper, and a common rate suits some of them more."
    )


def _inside(losses: Series[float]) -> Finding:
    """Both ends of the grid are worse than the best rate, for all methods."""
    parts = [
        below(own[_best(own)], own[end], spread=usual_noise(losses))
        for own in losses.values()
        for end in (min(own), max(own))
    ]
    inner = [NAMES[label] for label, own in losses.items() if min(own) < _best(own) < max(own)]
    return throughout(
        "every method has its best rate inside the grid",
        "the loss at the best rate against that at either end",
        parts,
        f"inside for {', '.join(inner) or 'none'}",
    )


def _common(losses: Series[float], lr: float, other: str) -> Finding:
    claim = f"at the common rate DeVA-S∞ ends below {NAMES[other]}"
    computed = f"final loss at rate {rate(lr)} (paper: {rate(PAPER_RATE)})"
    return below(losses[DEVA][lr], losses[other][lr], claim, computed)


def _at_best(losses: Series[float], other: str) -> Finding:
    ours, theirs = losses[DEVA], losses[other]
    claim = f"each at its best rate, DeVA-S∞ ends below {NAMES[other]}"
    computed = f"final loss at rates {rate(_best(ours))} and {rate(_best(theirs))}"
    spread = usual_noise(losses)
    return below(ours[_best(ours)], theirs[_best(theirs)], claim, computed, spread=spread)


def _rates_table(where: str, losses: Series[float], spec: str) -> str:
    rates = list(losses[DEVA])
    rows = []
    for label, own in losses.items():
        cells = (f"**{own[lr].text(spec)}**" if lr == _best(own) else own[lr].text(spec)
                 for lr in rates)  # fmt: skip
        rows.append((NAMES[label], *cells))
    return markdown_table((f"{where}: rate", *map(rate, rates)), rows)


def _orders(losses: Series[float]) -> str:
    def at_best(table: Series[float]) -> dict[str, Measured]:
        return {NAMES[label]: own[_best(own)] for label, own in table.items()}

    here = order(at_best(losses), spread=usual_noise(losses))
    return f"Order, each at its best rate: in the paper {order(at_best(PAPER_RATES))}; here {here}."


def _best_rates(losses: Series[float]) -> str:
    texts = [
        f"{NAMES[label]} {rate(_best(PAPER_RATES[label]))} and {rate(_best(own))}"
        for label, own in losses.items()
    ]
    return f"Best rates, in the paper and here: {', '.join(texts)}."


# β₃, the decay of the covariances of DeVA-S∞ ------------------------------------------------------

PAPER_BETA3: Final = dict(
    zip(*(PRINTED["table-beta3"][key] for key in ("beta3", "loss")), strict=True)
)
SOAP_BEST: Final = min(PRINTED["table-lr"]["soap"])


def show_beta3(results: Sequence[Result], folder: Path) -> Shown:
    """The losses, how much they vary, and whether they are below the best of SOAP."""
    decays = {r["id"]: _option(r, "deva-sinf", "betas", (BETA,) * 3) for r in results}
    values = sorted({betas[2] for betas in decays.values() if betas is not None})
    losses = {
        beta3: final([r for r in results if decays[r["id"]] and decays[r["id"]][2] == beta3])
        for beta3 in values
    }
    soap = select(results, optimizer=SOAP)
    rates = {run["settings"]["lr"] for run in soap}
    target = min((final(select(soap, lr=lr)) for lr in rates), key=lambda loss: loss.mean)
    ours = select(results, optimizer=DEVA)
    usual = noise(final(ours), final(select(soap, lr=ours[0]["settings"]["lr"])))
    parts = [below(loss, target, spread=usual) for loss in losses.values()]
    means = [loss.mean for loss in losses.values()]
    varies, low, high = _varies(losses), min(means), max(means)
    spreads = [loss.spread for loss in losses.values() if loss.spread is not None]
    seeds = f"; over seeds up to {max(spreads):.3f}" if spreads else ""
    printed = percent(max(PAPER_BETA3.values()) / min(PAPER_BETA3.values()) - 1, 2)
    findings = [
        judged(
            f"{NAMES[DEVA]} is robust to β₃",
            f"highest over lowest loss, at most {percent(NARROW, 1)} apart (paper: {printed})",
            varies,
            most=NARROW,
            how=f"{percent(varies, 2)}, that is {high - low:.3f}{seeds}",
        ),
        throughout(
            "every β₃ ends below the best of SOAP",
            "final loss against SOAP's at its best learning rate",
            parts,
            f"{holding(parts)} of {len(parts)}: {low:.3f} to {high:.3f} against {target.text()}",
        ),
    ]
    paper = [f"{PAPER_BETA3[value]:.4f}" if value in PAPER_BETA3 else "–" for value in values]
    rows = [("paper", *paper), ("here", *(loss.text() for loss in losses.values()))]
    return shown(
        about(results),
        markdown_table(("β₃", *(f"{value:g}" for value in values)), rows),
        findings,
        f"The best of SOAP over learning rates: {SOAP_BEST:.4f} in the paper, {target.text()} "
        "here.",
        why=f"Steps: β₃ = {values[-1]:g} averages over {1 / (1 - values[-1]):.0f} steps, and a run "
        f"here has {results[0]['settings']['steps']:,} of them, where the paper's has "
        f"{PAPER_STEPS:,}. All β₃ have the common learning rate, SOAP its best.",
    )


# Losses and times over a setting ------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """What a sweep measures: label → where → the runs there, one a seed.

    Attributes:
        runs: The runs, their times at one speed of the machine.
        over: What is swept, in words.
        unit: What the times are.
        per_units: Of how many tokens they are; 0 for those of a step.
    """

    runs: Mapping[str, Mapping[int, Sequence[Result]]]
    over: str
    unit: str
    per_units: int = 0

    @property
    def losses(self) -> Series[int]:
        """The losses at the end."""
        return {label: {n: final(r) for n, r in own.items()} for label, own in self.runs.items()}

    def times(self, *parts: str) -> Series[int]:
        """The milliseconds, or those of some parts of a step."""
        return {
            label: {n: milliseconds(r, *parts, per_units=self.per_units) for n, r in own.items()}
            for label, own in self.runs.items()
        }

    def table(self) -> str:
        """A row a method and place."""
        times, optimizer = self.times(), self.times("optimizer")
        rows = [
            (
                NAMES[label],
                str(n),
                loss.text(),
                *(t[label][n].text(".1f") for t in (times, optimizer)),
            )
            for label, own in self.losses.items()
            for n, loss in own.items()
        ]
        head = ("", self.over, "final loss", self.unit, "of which the optimizer")
        return markdown_table(head, rows)

    def draw(self, folder: Path, name: str) -> tuple[Path, Path]:
        """The figure: loss, time, and the optimizer's part of it."""

        def fill(figure: Figure) -> None:
            left, middle, right = figure.subplots(1, 3)
            _panel(left, self.losses, title="loss", x=self.over, y="final validation loss")
            for axes, title, times in (
                (middle, "time of training", self.times()),
                (right, "the optimizer's part", self.times("optimizer")),
            ):
                _panel(axes, times, title=title, x=self.over, y=self.unit, from_zero=True)
            legend_below(figure, right)

        return draw(folder, name, (9.0, 3.7), fill)


# Batches in a step --------------------------------------------------------------------------------

STEPS: Final = "every method, from each number of batches to the next"
PAIRS: Final = "against each of the others, at every number of batches"


def show_batch(results: Sequence[Result], folder: Path) -> Shown:
    """Losses and times over the batches in a step, and the paper's claims about both."""
    numbers = sorted({result["settings"]["accumulate"] for result in results})
    steady = at_one_speed(results)
    runs = {
        label: {n: select(steady, optimizer=label, accumulate=n) for n in numbers}
        for label in METHODS
    }
    sweep = Sweep(runs, "batches in a step", "ms / 1,000 tokens", per_units=1000)
    losses, times, (first, last) = sweep.losses, sweep.times(), (numbers[0], numbers[-1])
    rise = {label: gap(own[first], own[last]) for label, own in losses.items()}
    others = max(rise[label] for label in METHODS if label != SOAP)
    wide, narrow = (gap(times[MUON][n], times[DEVA][n]) for n in (first, last))
    findings = [
        _everywhere("the loss of every method rises with the batches", STEPS, _steps(losses)),
        _everywhere("DeVA-S∞ is lowest for every number of batches", PAIRS, _ahead(losses, DEVA)),
        compared(
            "SOAP suffers most",
            f"rise of the loss from {first} to {last} batches",
            rise[SOAP] - others,
            noise=usual_noise(losses),
            how=", ".join(f"{NAMES[label]} {value:+.3f}" for label, value in rise.items()),
        ),
        _everywhere("Muon is fastest for every number of batches", PAIRS, _ahead(times, MUON)),
        _everywhere(
            "the time for a token falls with the batches", STEPS, _steps(times, falling=True)
        ),
        compared(
            "the gap between Muon and DeVA-S∞ narrows",
            f"ms for 1,000 tokens, with {first} and with {last} batches",
            wide - narrow,
            noise=usual_noise(times),
            how=f"{wide:.1f} and {narrow:.1f}",
        ),
    ]
    return shown(
        about(results),
        sweep.table(),
        findings,
        speeds(results),
        figures=sweep.draw(folder, "fig-batch"),
        caption="Validation loss at the end, time of training for 1,000 tokens, and the "
        "optimizer's part of it, over the batches in a step. All runs see the same number of "
        "tokens: more batches are fewer steps. Bars are deviations over seeds.",
        why=f"Steps: with {last} batches in a step a run here has "
        f"{min(r['settings']['steps'] for r in results):,} steps, and one of the paper's has "
        f"{PAPER_STEPS // 8:,} with 8. All methods have the common learning rate.",
    )


def _steps(series: Series[int], *, falling: bool = False) -> list[Finding]:
    """Whether a quantity rises, or falls, from each place to the next, for every method."""
    steps = [step for own in series.values() for step in pairwise(own.values())]
    spread = usual_noise(series)
    return [below(*(step[::-1] if falling else step), spread=spread) for step in steps]


def _ahead(series: Series[int], ours: str) -> list[Finding]:
    """Whether a method is below each of the others, everywhere."""
    spread = usual_noise(series)
    return [
        below(series[ours][n], series[label][n], spread=spread)
        for n in series[ours]
        for label in METHODS
        if label != ours
    ]


# Steps between two refreshes of a basis -----------------------------------------------------------

KNEE: Final = 100  # steps, beyond which the paper sees little gain in time


def show_frequency(results: Sequence[Result], folder: Path) -> Shown:
    """Losses and times over the steps between refreshes, and the paper's claims about both."""
    runs: dict[str, dict[int, list[Result]]] = {SOAP: {}, DEVA: {}}
    for result in at_one_speed(results):
        for label, method in ((SOAP, "soap"), (DEVA, "deva-sinf")):
            if steps := _option(result, method, "refresh_every", REFRESH_EVERY):
                runs[label].setdefault(steps, []).append(result)
    ordered = {label: dict(sorted(own.items())) for label, own in runs.items()}
    sweep = Sweep(ordered, "steps between refreshes", "ms a step")
    losses, times = sweep.losses, sweep.times("optimizer")
    findings = _frequency_losses(losses) + _frequency_times(times)
    steps, places = results[0]["settings"]["steps"], list(losses[DEVA])
    here, paper = (
        f"{number // places[-1]:,} to {number // places[0]:,} times"
        for number in (steps, PAPER_STEPS)
    )
    return shown(
        about(results),
        sweep.table(),
        findings,
        f"A run has {steps:,} steps: a basis that is renewed every {KNEE} of them is renewed about "
        f"{max(1, steps // KNEE)} times. {speeds(results)}",
        figures=sweep.draw(folder, "fig-freq"),
        caption="Validation loss at the end, mean time of a training step, and the optimizer's "
        "part of it, over the steps between two refreshes of the bases. Bars are deviations over "
        "seeds.",
        why=f"Steps: in a run here, of {steps:,} steps, bases are renewed {here}; in the paper's, "
        f"of {PAPER_STEPS:,}, {paper}.",
    )


def _frequency_losses(losses: Series[int]) -> list[Finding]:
    """DeVA-S∞ is below SOAP at every frequency, and hardly varies."""
    spread, varies = usual_noise(losses), _varies(losses[DEVA])
    parts = [below(loss, losses[SOAP][k], spread=spread) for k, loss in losses[DEVA].items()]
    means = [loss.mean for loss in losses[DEVA].values()]
    return [
        _everywhere("DeVA-S∞ ends below SOAP at every frequency", "final loss", parts),
        judged(
            "the loss of DeVA-S∞ hardly varies",
            f"highest over lowest, at most {percent(NARROW, 1)} apart",
            varies,
            most=NARROW,
            how=f"{percent(varies, 2)}: {min(means):.3f} to {max(means):.3f}",
        ),
    ]


def _frequency_times(times: Series[int]) -> list[Finding]:
    """Time falls from every 10 steps to every 100, and little beyond."""
    spread, first, last = usual_noise(times), min(times[DEVA]), max(times[DEVA])
    knee = max((k for k in times[DEVA] if k <= KNEE), default=last)
    falling = [below(own[knee], own[first], spread=spread, spec=".1f") for own in times.values()]
    early, late = (
        sum(gap(own[b], own[a]) for own in times.values()) / len(times)
        for a, b in ((first, knee), (knee, last))
    )
    return [
        throughout(
            f"a step takes less time with refreshes every {knee} steps than every {first}",
            "mean time of the optimizer's part, ms: SOAP; DeVA-S∞",
            falling,
        ),
        compared(
            "beyond that there is less to gain",
            f"ms gained from {first} to {knee}, and from {knee} to {last}",
            early - late,
            noise=spread,
            how=f"{early:.1f} and {late:.1f}",
        ),
    ]
