"""From the results of runs to what is said of them, computed once for table, chart and page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, stdev

from ..errors import UsageError, unknown
from ..files import read_lines
from ..progress import Result
from ..render.palette import Style, method, styles
from .curves import Band, Curve, final_loss, finite, mean_curve, reach
from .telemetry import QUANTITIES, bands

Point = tuple[float, float, float | None]  # learning rate, mean final loss, spread


def read_results(path: Path) -> list[Result]:
    """The finished runs of a results.jsonl; of two with the same id the later one.

    A line that is damaged, or that a kill cut short, is left out: that run has no result.

    Raises:
        UsageError: If there are several lines and none is a result.
    """
    lines = read_lines(path, begins=("id",))
    results: dict[str, Result] = {str(line["id"]): line for line in lines if "id" in line}
    if not results and path.read_bytes().count(b"\n") > 1:
        raise UsageError(
            f"{path} has no results: it must have one JSON object a line; remove it to start over"
        )
    return list(results.values())


@dataclass(frozen=True)
class Row:
    """What one optimizer did at the learning rate with its lowest mean final loss."""

    label: str
    lr: float
    seeds: int  # runs at that rate
    final: float  # mean validation loss at the end; infinite where a run diverged
    spread: float | None  # sample standard deviation of it; None for one seed
    best: float  # lowest loss along the way, mean over seeds
    accuracy: float | None  # at the end, mean
    units_to_target: float | None  # to the baseline's final loss, as a fraction of its units
    seconds_to_target: float | None  # likewise of its seconds
    model_ms: float | None  # medians of a step: forward and backward,
    optimizer_ms: float | None  # the optimizer's step,
    data_ms: float | None  # making the batch
    state_bytes: int
    peak_bytes: int  # the most that the device had in use; 0 where it was not measured
    parameters: int
    diverged: int  # runs at that rate that diverged
    rates: int  # learning rates tried
    lr_at_edge: bool  # the best rate is the least or the greatest of several
    baseline: bool


@dataclass(frozen=True)
class Failure:
    """Runs of one optimizer that ended with the same error."""

    label: str
    error: str
    rates: list[float]
    seeds: list[int]


class Summary:
    """Results, grouped and judged: each optimizer at its own best learning rate, over seeds.

    Attributes:
        results: The runs that ended, by finishing or by diverging.
        stopped: How many runs were stopped before their end; nothing else is said of them.
        failures: The runs that raised an error.
        by_rate: Label → learning rate, ascending → runs.
        chosen: Label → its runs at its best rate: that of the lowest mean final loss.
        curves: Label → the mean of these runs.
        sensitivity: Label → points over learning rates; the loss is infinite where one diverged.
        baseline: The label whose final loss is the target: the given one, else AdamW, else the
            first.
        rows: One an optimizer, lowest final loss first.
        looks: Label → how it is drawn.
        unit: What the models were fed with: tokens, images.

    Raises:
        UsageError: If there is no run with the label of the baseline.
    """

    def __init__(self, results: Sequence[Result], baseline: str | None = None) -> None:
        self.results = [run for run in results if run["status"] not in ("failed", "stopped")]
        self.stopped = sum(run["status"] == "stopped" for run in results)
        self.failures = _failures([run for run in results if run["status"] == "failed"])
        self.by_rate = _by_rate(self.results)
        self.chosen = {label: min(r.values(), key=_rank) for label, r in self.by_rate.items()}
        self.curves = {label: mean_curve(runs) for label, runs in self.chosen.items()}
        self.sensitivity: dict[str, list[Point]] = {
            label: [(rate, *_mean_and_spread(runs)) for rate, runs in rates.items()]
            for label, rates in self.by_rate.items()
        }
        self.baseline = _baseline(results, list(self.chosen), baseline)
        self.rows = sorted(map(self._row, self.chosen), key=lambda row: (row.final, row.best))
        self.looks: dict[str, Style] = styles(self.chosen)
        self.unit = str(self.results[0]["unit"]) if self.results else "units"

    @cached_property
    def varied(self) -> bool:
        """Whether an optimizer ran at more than one learning rate."""
        return any(row.rates > 1 for row in self.rows)

    @cached_property
    def noise(self) -> tuple[float, float] | None:
        """How much a final loss varies from seed to seed, and what two means differ by by chance.

        The spreads of all optimizers are pooled. In 19 of 20 cases chance makes two means differ by
        less than Student's t times the standard error of their difference. None with one seed.
        """
        known = [(row.spread, row.seeds) for row in self.rows if row.spread is not None]
        if not known:
            return None
        from scipy.stats import t  # takes a second to import

        freedom = sum(seeds - 1 for _, seeds in known)
        spread = math.sqrt(sum(s * s * (seeds - 1) for s, seeds in known) / freedom)
        error = spread * math.sqrt(2 / fmean(seeds for _, seeds in known))
        return spread, float(t.ppf(0.975, freedom)) * error

    def apart(self, one: Row, other: Row) -> bool:
        """Whether two final losses differ by more than chance; with one seed it counts as so."""
        return self.noise is None or abs(one.final - other.final) > self.noise[1]

    @cached_property
    def telemetry(self) -> dict[str, dict[str, Band]]:
        """Key of a quantity → label → curve, where there is any that is not zero throughout."""
        found: dict[str, dict[str, Band]] = {}
        for quantity in QUANTITIES:
            for label, runs in self.chosen.items():
                band = bands(runs, quantity)
                if any(band.high):
                    found.setdefault(quantity.key, {})[label] = band
        return found

    @cached_property
    def flops(self) -> tuple[dict[str, float], bool]:
        """Label → FLOPs of the model in a step, and whether they were counted.

        A result may have the number, counted. Where it does not, and units are tokens, it is six a
        weight and token, the usual estimate for the forward and the backward pass.
        """
        counted = {label: runs[0].get("flops") for label, runs in self.chosen.items()}
        if all(counted.values()):
            return {label: float(flops or 0) for label, flops in counted.items()}, True
        if self.unit != "tokens":
            return {}, False
        firsts = {label: runs[0] for label, runs in self.chosen.items()}
        return {x: 6.0 * run["parameters"] * run["units"] for x, run in firsts.items()}, False

    def _row(self, label: str) -> Row:
        runs, rates, curve = self.chosen[label], list(self.by_rate[label]), self.curves[label]
        lr = float(runs[0]["settings"]["lr"])
        final, spread = _mean_and_spread(runs)
        target, reference = self._target
        return Row(
            label=label,
            lr=lr,
            seeds=len(runs),
            final=final,
            spread=spread,
            best=_best(runs),
            accuracy=_accuracy(runs),
            units_to_target=_fraction(curve.units, curve.loss, target, reference.units),
            seconds_to_target=_fraction(curve.seconds, curve.loss, target, reference.seconds),
            model_ms=_milliseconds(runs, "model"),
            optimizer_ms=_milliseconds(runs, "optimizer"),
            data_ms=_milliseconds(runs, "data"),
            state_bytes=runs[0]["state_bytes"],
            peak_bytes=max(run.get("peak_memory_bytes") or 0 for run in runs),
            parameters=runs[0]["parameters"],
            diverged=sum(math.isinf(final_loss(run)) for run in runs),
            rates=len(rates),
            lr_at_edge=len(rates) > 1 and math.isfinite(final) and lr in (rates[0], rates[-1]),
            baseline=label == self.baseline,
        )

    @cached_property
    def _target(self) -> tuple[float, Curve]:
        """The final loss of the baseline and its curve; infinite where it has none."""
        if self.baseline not in self.chosen:
            return math.inf, mean_curve([])
        return _mean_and_spread(self.chosen[self.baseline])[0], self.curves[self.baseline]


def _by_rate(results: Sequence[Result]) -> dict[str, dict[float, list[Result]]]:
    groups: dict[str, dict[float, list[Result]]] = {run["label"]: {} for run in results}
    for run in sorted(results, key=lambda run: float(run["settings"]["lr"])):
        groups[run["label"]].setdefault(float(run["settings"]["lr"]), []).append(run)
    return groups


def _rank(runs: Sequence[Result]) -> tuple[float, int]:
    """What the best rate has the least of: the mean final loss, else the runs that diverged."""
    losses = [final_loss(run) for run in runs]
    return fmean(losses), losses.count(math.inf)


def _failures(results: Sequence[Result]) -> list[Failure]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for run in results:
        groups.setdefault((run["label"], str(run.get("error") or "unknown")), []).append(run)
    return [
        Failure(
            label,
            error,
            sorted({float(run["settings"]["lr"]) for run in runs}),
            sorted({int(run["settings"].get("seed", 0)) for run in runs}),
        )
        for (label, error), runs in groups.items()
    ]


def _baseline(results: Sequence[Result], ended: list[str], given: str | None) -> str | None:
    labels = dict.fromkeys(run["label"] for run in results)
    if given is not None and given not in labels:
        raise unknown("baseline", given, labels)
    adamw = sorted((label for label in ended if method(label) == "adamw"), key=len)
    return given or next(iter([*adamw, *ended]), None)


def _mean_and_spread(runs: Sequence[Result]) -> tuple[float, float | None]:
    losses = [final_loss(run) for run in runs]
    mean = fmean(losses)
    return mean, stdev(losses) if len(losses) > 1 and math.isfinite(mean) else None


def _best(runs: Sequence[Result]) -> float:
    losses = [[loss for loss in run["curve"]["loss"] if finite(loss)] for run in runs]
    return fmean(min(values, default=math.inf) for values in losses)


def _accuracy(runs: Sequence[Result]) -> float | None:
    curves = [run["curve"].get("accuracy") for run in runs]
    ends = [curve[-1] for curve in curves if curve and finite(curve[-1])]
    return fmean(ends) if ends else None


def _milliseconds(runs: Sequence[Result], part: str) -> float | None:
    times = [(run.get("milliseconds") or {}).get(part) for run in runs]
    known = [float(time) for time in times if time is not None]
    return median(known) if known else None


def _fraction(
    x: Sequence[float], loss: Sequence[float], target: float, reference: Sequence[float]
) -> float | None:
    at = reach(x, loss, target) if math.isfinite(target) else None
    return None if at is None or not reference or not reference[-1] else at / reference[-1]
