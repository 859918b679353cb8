"""From runs to numbers, and from numbers to verdicts on the claims of the paper.

Runs of one seed start from the same weights and see the same batches, so two methods are compared
seed by seed: the noise is the standard deviation of their difference over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean, median, stdev
from typing import Any, Final, Literal, TypeVar

from ..results import Curve, finite, mean_curve, reach
from ..run.progress import Result

# Claims -------------------------------------------------------------------------------------------

Verdict = Literal["holds", "holds in part", "open", "does not hold"]
"""Open is a difference that is smaller than the noise."""

WORDS: Final = {
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "open": ("is within the noise", "are within the noise"),
    "does not hold": ("does not hold", "do not hold"),
}


@dataclass(frozen=True)
class Finding:
    """What was found of a claim of the paper.

    Attributes:
        verdict: Whether it holds.
        how: By how much, or what holds in its place.
        value: The number behind `how`.
        claim: What the paper says, where the template of the page does not say it.
        computed: What was computed to see, likewise.
    """

    verdict: Verdict
    how: str
    value: float
    claim: str = ""
    computed: str = ""

    def __str__(self) -> str:
        """The last two cells of its row in a table."""
        return f"{self.verdict} | {self.how}"


def decided(holds: bool) -> Verdict:
    """The verdict on a claim that holds or does not."""
    return "holds" if holds else "does not hold"


def judged(value: float, *, most: float, how: str = "") -> Finding:
    """A finding that holds if its value, an error or a ratio, is at most `most`.

    >>> judged(0.0, most=1e-12, how="off by {:.0e}").how
    'off by 0e+00'
    """
    return Finding(decided(value <= most), how.format(value), value)


def compared(gap: float, *, noise: float | None = None, how: str = "") -> Finding:
    """A finding that holds if the gap is above zero by more than the noise; None: not known.

    >>> compared(0.01, noise=0.02).verdict
    'open'
    """
    within = noise or 0.0
    is_open = abs(gap) <= within and noise is not None
    return Finding("open" if is_open else decided(gap > within), how, gap)


def throughout(parts: Sequence[Finding], how: str = "") -> Finding:
    """What several places come to: the claim holds where it holds in all of them.

    >>> throughout([judged(error, most=1) for error in (0, 2)], "{} of {}").how
    '1 of 2'
    """
    told = how.format(holding(parts), len(parts)) or "; ".join(part.how for part in parts)
    return Finding(overall(parts), told, holding(parts) / len(parts))


def holding(findings: Iterable[Finding]) -> int:
    """How many of the findings hold."""
    return sum(finding.verdict == "holds" for finding in findings)


def overall(findings: Iterable[Finding]) -> Verdict:
    """What the findings come to: all of them hold, some, none for sure, or none."""
    verdicts = {finding.verdict for finding in findings}
    if verdicts != {"holds"} and verdicts & {"holds", "holds in part"}:
        return "holds in part"
    return verdicts.pop() if len(verdicts) == 1 else "does not hold"


def sentence(findings: Collection[Finding]) -> str:
    """The verdict in words: does it hold, and how many of its claims do.

    >>> one, other = Finding("holds", "", 1.0), Finding("does not hold", "", 0.0)
    >>> sentence([one, one]), sentence([other])
    ('holds: 2 of 2 claims hold', 'does not hold at this scale: 1 of 1 claims does not hold')
    """
    verdicts = [finding.verdict for finding in findings]
    parts = [
        f"{verdicts.count(verdict)} of {len(verdicts)} claims {words[verdicts.count(verdict) > 1]}"
        for verdict, words in WORDS.items()
        if verdict in verdicts
    ]
    word = overall(findings)
    head = word if word in ("holds", "holds in part") else "does not hold at this scale"
    return f"{head}: {', '.join(parts)}"


# Quantities over seeds ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A quantity, seed by seed.

    >>> Measured({0: 3.0, 1: 3.2}).text(), Measured({0: 3.0}).text()
    ('3.100 ± 0.141', '3.000')
    """

    values: Mapping[int, float]  # by seed; infinite where the run diverged

    @property
    def mean(self) -> float:
        """The mean over the seeds; infinite where a run diverged."""
        return fmean(self.values.values())

    @property
    def spread(self) -> float | None:
        """The sample standard deviation; None for one seed, and where a run diverged."""
        known = len(self.values) > 1 and all(map(math.isfinite, self.values.values()))
        return stdev(self.values.values()) if known else None

    def text(self, spec: str = ".3f") -> str:
        """The mean, and the spread if it is known."""
        if not math.isfinite(self.mean):
            return "diverged"
        spread = "" if self.spread is None else f" ± {self.spread:{spec}}"
        return f"{self.mean:{spec}}{spread}"


Place = TypeVar("Place", int, float)
Series = Mapping[str, Mapping[Place, Measured]]
"""Label → where in a sweep, ascending → a quantity."""


def select(results: Iterable[Result], **settings: Any) -> list[Result]:
    """The runs that have these settings: `select(results, optimizer="muon", lr=0.01)`."""
    return [run for run in results if settings.items() <= run["settings"].items()]


def over_seeds(results: Sequence[Result], values: Iterable[float]) -> Measured:
    """The values of these runs, one a seed."""
    seeds = [result["settings"]["seed"] for result in results]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"runs must differ in their seed alone, got the seeds {seeds}")
    return Measured(dict(zip(seeds, values, strict=True)))


def final(results: Sequence[Result], column: str = "loss") -> Measured:
    """What a column of the curves ends at: "loss", "train_loss" or "accuracy"."""
    worst = -math.inf if column == "accuracy" else math.inf
    ended = [run["curve"][column] if run["status"] == "finished" else [] for run in results]
    return over_seeds(results, (float(c[-1]) if c and finite(c[-1]) else worst for c in ended))


def at(results: Sequence[Result], index: int, column: str = "loss") -> Measured:
    """A column of the curves at one of the evaluations."""
    columns = [run["curve"][column] for run in results]
    return over_seeds(
        results, (c[index] if len(c) > index and finite(c[index]) else math.inf for c in columns)
    )


def lowest(results: Sequence[Result]) -> Measured:
    """The lowest validation loss along the way."""
    known = [filter(finite, run["curve"]["loss"]) for run in results]
    return over_seeds(results, (min(losses, default=math.inf) for losses in known))


def best(losses: Mapping[Place, Measured]) -> Place:
    """Where in a sweep the mean is lowest."""
    return min(losses, key=lambda place: losses[place].mean)


def curve_of(results: Sequence[Result], column: str = "loss") -> Curve:
    """The mean curve over seeds of a column, with the lowest and highest."""
    return mean_curve(
        [{**run, "curve": {**run["curve"], "loss": run["curve"][column]}} for run in results]
    )


def share_to(target: float, curve: Curve) -> float | None:
    """The share of its tokens, or images, after which a curve has reached a loss."""
    place = reach(curve.units, curve.loss, target) if math.isfinite(target) else None
    return None if place is None else place / curve.units[-1]


# Times --------------------------------------------------------------------------------------------


def milliseconds(results: Sequence[Result], *parts: str, per_units: int = 0) -> Measured:
    """The mean time of a step, or of so many units, whole or of some parts of it alone."""
    chosen = parts or ("model", "optimizer", "data")
    times = (
        sum(run["mean_milliseconds"][part] for part in chosen)
        * (per_units / run["units"] if per_units else 1.0)
        for run in results
    )
    return over_seeds(results, times)


def at_one_speed(results: Sequence[Result]) -> list[Result]:
    """The runs with their times scaled so that the model's part takes the same in all of them.

    That part is the same work for a token whatever the optimizer, so how long it took says how fast
    the machine was just then. A run that ended before its first step stays as it is.
    """
    usual, found = _usual(results), []
    for run in results:
        own, curve = _model_time(run), run["curve"]
        scale = usual / own if own else 1.0
        times = {part: scale * time for part, time in run["mean_milliseconds"].items()}
        seconds = [scale * time for time in curve["seconds"]]
        found.append({**run, "mean_milliseconds": times, "curve": {**curve, "seconds": seconds}})
    return found


def _model_time(run: Result) -> float:
    """Milliseconds for a token, or an image."""
    return float(run["mean_milliseconds"]["model"] / run["units"])


def _usual(results: Sequence[Result]) -> float:
    return median([time for run in results if (time := _model_time(run))] or [0.0])


def speeds(results: Sequence[Result]) -> str:
    """What `at_one_speed` does to the times of these runs, in words."""
    least, most = (1000 * end(map(_model_time, results)) for end in (min, max))
    return (
        "Times are brought to one speed of the machine: the model's part, the same work for "
        f"1,000 {results[0]['unit']} whatever the optimizer, took from {least:.0f} to {most:.0f} "
        f"ms, and each run is scaled to the median, {1000 * _usual(results):.0f} ms."
    )


# Which of two is the lower one --------------------------------------------------------------------


def _difference(one: Measured, other: Measured) -> Measured:
    """The other less the one, for each seed that both have."""
    shared = one.values.keys() & other.values.keys()
    return Measured({seed: other.values[seed] - one.values[seed] for seed in sorted(shared)})


def noise(one: Measured, other: Measured) -> float | None:
    """The standard deviation over the seeds of the difference; None with fewer than two.

    >>> noise(Measured({0: 1.0, 1: 2.0}), Measured({0: 1.5, 1: 2.5}))
    0.0
    """
    return _difference(one, other).spread


def usual_noise(series: Series[Place]) -> float | None:
    """What a difference between single runs has to exceed: the noise where there are seeds."""
    known = [
        noise(one[place], other[place])
        for one, other in combinations(series.values(), 2)
        for place in one
        if place in other
    ]
    return max((value for value in known if value is not None), default=None)


def gap(one: Measured, other: Measured) -> float:
    """By how much the other is above the one, over the seeds that both have.

    Where a run diverged it is infinite, and NaN where each of them is ahead for some seed.
    """
    differences = [*_difference(one, other).values.values()] or [other.mean - one.mean]
    return fmean(differences) if all(map(math.isfinite, differences)) else sum(differences)


def below(
    one: Measured,
    other: Measured,
    *,
    spread: float | None = None,
    spec: str = ".3f",
    how: str = "",
) -> Finding:
    """The finding that one is lower than the other by more than the noise.

    Args:
        one: The one that is to be lower.
        other: The one that is to be higher.
        spread: For two that share one seed: the noise of something like them.
        spec: How to write them.
        how: What to write in their place.
    """
    known = noise(one, other)
    how = how or f"{one.text(spec)} against {other.text(spec)}"
    return compared(gap(one, other), noise=spread if known is None else known, how=how)


def order(values: Mapping[str, Measured], spread: float | None = None) -> str:
    """The names from the lowest on; ≈ where the difference to the next is within the noise.

    >>> order({"b": Measured({0: 2.0, 1: 2.2}), "a": Measured({0: 1.0, 1: 1.2})})
    'a < b'
    """
    names = sorted(values, key=lambda name: values[name].mean)
    text = names[0]
    for before, name in pairwise(names):
        known = noise(values[before], values[name])
        within = (spread if known is None else known) or 0.0
        text += f" {'≈' if gap(values[before], values[name]) <= within else '<'} {name}"
    return text


def orders(printed: Mapping[str, float], here: Mapping[str, Measured], **options: Any) -> str:
    """The paper's order of some names, from the lowest on, and ours in words."""
    theirs = order({name: Measured({0: value}) for name, value in printed.items()})
    ours = order({name: here[name] for name in printed}, **options)
    return f"in the paper {theirs}; here {ours}"
