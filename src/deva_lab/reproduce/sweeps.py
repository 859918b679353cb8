"""`fig-lr`, `table-lr`, `table-beta3`, `fig-batch` and `fig-freq`: runs on text over a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..render import markdown_table, percent, rate
from ..render.figures import draw
from ..run.entrants import Entrant
from ..run.progress import Result
from .experiment import Shown, shown
from .losses import about, legend_below, points_panel, scale_of
from .measures import (
    Finding,
    Measured,
    Place,
    Series,
    at_one_speed,
    below,
    best,
    compared,
    final,
    gap,
    judged,
    milliseconds,
    noise,
    order,
    select,
    speeds,
    throughout,
    usual_noise,
)
from .paper import (
    BETA,
    DEVA,
    LOOKS,
    METHODS,
    MUON,
    NAMES,
    PAPER_STEPS,
    PRINTED,
    REFRESH_EVERY,
    SOAP,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROW: Final = 0.005  # of the loss; the paper has 0.0019 over β₃, and little over frequencies
COMPARISONS: Final = "{} of {} comparisons"


def _panel(axes: Axes, series: Series[Place], **options: str) -> None:
    points_panel(axes, {LOOKS[label]: own for label, own in series.items()}, **options)


def in_bold(cells: Mapping[Place, str], chosen: Place) -> list[str]:
    """The cells of a row, that of a place in bold."""
    return [f"**{cell}**" if place == chosen else cell for place, cell in cells.items()]


def _narrow(claim: str, losses: Mapping[Place, Measured], paper: str, how: str) -> Finding:
    """The losses over a setting hardly vary; {} in `how` is by how much they do."""
    means = [loss.mean for loss in losses.values()]
    varies = max(means) / min(means) - 1
    computed = f"highest over lowest loss, at most {percent(NARROW, 1)} apart{paper}"
    return judged(claim, computed, varies, most=NARROW, how=how.format(percent(varies, 2)))


def _option(result: Result, method: str, option: str, usual: Any) -> Any:
    """What a run of a method has for an option; None for a run of another method."""
    entrant = Entrant.parse(result["label"])
    return dict(entrant.options).get(option, usual) if entrant.name == method else None


# Learning rates -----------------------------------------------------------------------------------

PAPER_RATES: Final = {
    label: {lr: Measured({0: loss}) for lr, loss in own.items()}
    for label, own in PRINTED["table-lr"].items()
}
PAPER_RATE: Final = 1e-3  # the one that the paper uses elsewhere, for all methods


def _losses_of(results: Sequence[Result]) -> dict[str, dict[float, Measured]]:
    """Label → learning rate → final loss."""
    rates = sorted({result["settings"]["lr"] for result in results})
    return {
        label: {lr: final(select(results, optimizer=label, lr=lr)) for lr in rates}
        for label in METHODS
    }


def show_rates_figure(results: Sequence[Result], folder: Path) -> Shown:
    """The losses over the rate, and whether the grid holds a best rate for each."""
    losses = _losses_of(results)

    def fill(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for axes, title, table in ((left, "paper", PAPER_RATES), (right, "here", losses)):
            _panel(axes, table, title=title, x="learning rate", y="final validation loss")
        legend_below(figure, left)

    return shown(
        about(results),
        [_inside(losses), *_common(results, losses)],
        _best_rates(losses),
        figures=draw(folder, "fig-lr", (8.4, 3.8), fill),
        caption="Validation loss at the end, in nats a token, over the learning rate. Left the "
        "paper's numbers, right ours; bars are deviations over seeds, a cross is a run that "
        "diverged. The grid has the paper's spacing around our usual rate.",
        why=_apart(results, losses),
    )


def show_rates_table(results: Sequence[Result], folder: Path) -> Shown:
    """The same in numbers, each method at its best."""
    losses = _losses_of(results)
    spread = usual_noise(losses)
    least, printed = (
        {NAMES[label]: own[best(own)] for label, own in table.items()}
        for table in (losses, PAPER_RATES)
    )
    findings = [
        below(
            least[NAMES[DEVA]],
            least[NAMES[other]],
            f"each at its best rate, DeVA-S∞ ends below {NAMES[other]}",
            f"final loss at rates {rate(best(losses[DEVA]))} and {rate(best(losses[other]))}",
            spread=spread,
        )
        for other in (MUON, SOAP)
    ]
    return shown(
        about(results),
        _rates_table("paper", PAPER_RATES, ".4f"),
        _rates_table("here", losses, ".3f"),
        f"Order, each at its best rate: in the paper {order(printed)}; here "
        f"{order(least, spread)}.",
        _best_rates(losses),
        [*findings, *_common(results, losses)],
        why=_apart(results, losses),
    )


def _apart(results: Sequence[Result], losses: Series[float]) -> str:
    """Why a common rate suits the methods otherwise than in the paper."""
    ours, theirs = (
        max(map(best, table.values())) / min(map(best, table.values()))
        for table in (losses, PAPER_RATES)
    )
    return (
        f"{scale_of(results)} The best rates of the methods are up to {ours:g} times apart here "
        f"and {theirs:g} times in the paper, and a common rate suits some of them more."
    )


def _inside(losses: Series[float]) -> Finding:
    """Both ends of the grid are worse than the best rate, for all methods."""
    parts = [
        below(own[best(own)], own[end], spread=usual_noise(losses))
        for own in losses.values()
        for end in (min(own), max(own))
    ]
    inner = [NAMES[label] for label, own in losses.items() if min(own) < best(own) < max(own)]
    return throughout(
        "every method has its best rate inside the grid",
        "the loss at the best rate against that at either end",
        parts,
        f"inside for {', '.join(inner) or 'none'}",
    )


def _common(results: Sequence[Result], losses: Series[float]) -> list[Finding]:
    """DeVA-S∞ is below both others at the usual rate."""
    lr = results[0]["settings"]["lr"]
    computed = f"final loss at rate {rate(lr)} (paper: {rate(PAPER_RATE)})"
    return [
        below(
            losses[DEVA][lr],
            losses[other][lr],
            f"at the common rate DeVA-S∞ ends below {NAMES[other]}",
            computed,
        )
        for other in (MUON, SOAP)
    ]


def _rates_table(where: str, losses: Series[float], spec: str) -> str:
    rows = [
        (NAMES[label], *in_bold({lr: one.text(spec) for lr, one in own.items()}, best(own)))
        for label, own in losses.items()
    ]
    return markdown_table((f"{where}: rate", *map(rate, losses[DEVA])), rows)


def _best_rates(losses: Series[float]) -> str:
    texts = [
        f"{NAMES[label]} {rate(best(PAPER_RATES[label]))} and {rate(best(own))}"
        for label, own in losses.items()
    ]
    return f"Best rates, in the paper and here: {', '.join(texts)}."


# β₃, the decay of the covariances of DeVA-S∞ ------------------------------------------------------

PAPER_BETA3: Final = PRINTED["table-beta3"]
SOAP_BEST: Final = min(PRINTED["table-lr"][SOAP].values())


def show_beta3(results: Sequence[Result], folder: Path) -> Shown:
    """The losses, how much they vary, and whether they are below the best of SOAP."""
    runs: dict[float, list[Result]] = {}
    for result in results:
        if betas := _option(result, "deva-sinf", "betas", (BETA,) * 3):
            runs.setdefault(betas[2], []).append(result)
    losses = {beta3: final(runs[beta3]) for beta3 in sorted(runs)}
    soap = select(results, optimizer=SOAP)
    over_rates = {lr: final(select(soap, lr=lr)) for lr in {r["settings"]["lr"] for r in soap}}
    target = over_rates[best(over_rates)]
    ours = select(results, optimizer=DEVA)
    usual = noise(final(ours), over_rates[ours[0]["settings"]["lr"]])
    low, high = (end(loss.mean for loss in losses.values()) for end in (min, max))
    spreads = [loss.spread for loss in losses.values() if loss.spread is not None]
    seeds = f"; over seeds up to {max(spreads):.3f}" if spreads else ""
    printed = percent(max(PAPER_BETA3.values()) / min(PAPER_BETA3.values()) - 1, 2)
    findings = [
        _narrow(
            f"{NAMES[DEVA]} is robust to β₃",
            losses,
            f" (paper: {printed})",
            f"{{}}, that is {high - low:.3f}{seeds}",
        ),
        throughout(
            "every β₃ ends below the best of SOAP",
            "final loss against SOAP's at its best learning rate",
            [below(loss, target, spread=usual) for loss in losses.values()],
            f"{{}} of {{}}: {low:.3f} to {high:.3f} against {target.text()}",
        ),
    ]
    paper = [f"{PAPER_BETA3[value]:.4f}" if value in PAPER_BETA3 else "–" for value in losses]
    rows = [("paper", *paper), ("here", *(loss.text() for loss in losses.values()))]
    last = max(losses)
    return shown(
        about(results),
        markdown_table(("β₃", *(f"{value:g}" for value in losses)), rows),
        findings,
        f"The best of SOAP over learning rates: {SOAP_BEST:.4f} in the paper, {target.text()} "
        "here.",
        why=f"Steps: β₃ = {last:g} averages over {1 / (1 - last):.0f} steps, and a run "
        f"here has {results[0]['settings']['steps']:,} of them, where the paper's has "
        f"{PAPER_STEPS:,}. All β₃ have the common learning rate, SOAP its best.",
    )


# Losses and times over a setting ------------------------------------------------------------------


class Sweep:
    """What a sweep measures, label by label: losses at the end, and times in milliseconds.

    Args:
        runs: Label → where → the runs there, one a seed, their times at one speed of the machine.
        over: What is swept, in words.
        unit: What the times are.
        per_units: Of how many tokens they are; 0 for those of a step.
    """

    def __init__(
        self,
        runs: Mapping[str, Mapping[int, Sequence[Result]]],
        *,
        over: str,
        unit: str,
        per_units: int = 0,
    ) -> None:
        self.over, self.unit = over, unit
        self.losses = {k: {n: final(r) for n, r in own.items()} for k, own in runs.items()}
        self.times, self.optimizer_times = (
            {
                label: {n: milliseconds(r, *parts, per_units=per_units) for n, r in own.items()}
                for label, own in runs.items()
            }
            for parts in ((), ("optimizer",))
        )

    def table(self) -> str:
        """A row a method and place."""
        rows = [
            (
                NAMES[label],
                str(n),
                loss.text(),
                self.times[label][n].text(".1f"),
                self.optimizer_times[label][n].text(".1f"),
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
            _panel(middle, self.times, title="time of training", x=self.over, y=self.unit)
            title = "the optimizer's part"
            _panel(right, self.optimizer_times, title=title, x=self.over, y=self.unit)
            for axes in (middle, right):
                axes.set_ylim(bottom=0)
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
    sweep = Sweep(runs, over="batches in a step", unit="ms / 1,000 tokens", per_units=1000)
    losses, times, (first, last) = sweep.losses, sweep.times, (numbers[0], numbers[-1])
    rise = {label: gap(own[first], own[last]) for label, own in losses.items()}
    others = max(rise[label] for label in METHODS if label != SOAP)
    wide, narrow = (gap(times[MUON][n], times[DEVA][n]) for n in (first, last))
    findings = [
        _steps("the loss of every method rises with the batches", losses),
        _ahead("DeVA-S∞ is lowest for every number of batches", losses, DEVA),
        compared(
            "SOAP suffers most",
            f"rise of the loss from {first} to {last} batches",
            rise[SOAP] - others,
            noise=usual_noise(losses),
            how=", ".join(f"{NAMES[label]} {value:+.3f}" for label, value in rise.items()),
        ),
        _ahead("Muon is fastest for every number of batches", times, MUON),
        _steps("the time for a token falls with the batches", times, falling=True),
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


def _steps(claim: str, series: Series[int], *, falling: bool = False) -> Finding:
    """A quantity rises, or falls, from each place to the next, for every method."""
    steps = [step for own in series.values() for step in pairwise(own.values())]
    spread = usual_noise(series)
    parts = [below(*(step[::-1] if falling else step), spread=spread) for step in steps]
    return throughout(claim, STEPS, parts, COMPARISONS)


def _ahead(claim: str, series: Series[int], ours: str, computed: str = PAIRS) -> Finding:
    """A method is below each of the others, everywhere."""
    parts = [
        below(one, own[n], spread=usual_noise(series))
        for n, one in series[ours].items()
        for label, own in series.items()
        if label != ours
    ]
    return throughout(claim, computed, parts, COMPARISONS)


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
    sweep = Sweep(ordered, over="steps between refreshes", unit="ms a step")
    losses, (first, *_, last) = sweep.losses, sweep.losses[DEVA]
    low, high = (end(loss.mean for loss in losses[DEVA].values()) for end in (min, max))
    findings = [
        _ahead("DeVA-S∞ ends below SOAP at every frequency", losses, DEVA, "final loss"),
        _narrow(
            "the loss of DeVA-S∞ hardly varies", losses[DEVA], "", f"{{}}: {low:.3f} to {high:.3f}"
        ),
        *_times_fall(sweep.optimizer_times),
    ]
    steps = results[0]["settings"]["steps"]
    here, paper = (
        f"{number // last:,} to {number // first:,} times" for number in (steps, PAPER_STEPS)
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


def _times_fall(times: Series[int]) -> list[Finding]:
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
