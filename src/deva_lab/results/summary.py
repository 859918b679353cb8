"""From the results of runs to what is said of them, computed once for table, chart and page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median, stdev
from typing import Literal

from ..errors import unknown
from ..progress import Result
from .curves import QUANTITIES, Band, final_loss, finite, mean_curve, reach, telemetry_band


class Row:
    """What one optimizer did at the learning rate with its lowest mean final loss.

    Attributes:
        by_rate: Learning rate, ascending → runs.
        runs: Those at the best rate.
        curve: Their mean.
        final: Their mean validation loss at the end; infinite where one diverged.
        spread: The sample standard deviation of that; None for one seed.
        best: The lowest loss along the way, mean over seeds.
        accuracy: At the end, mean.
        milliseconds: Part of a step → its median.
        peak_bytes: The most that the device had in use; 0 where it was not measured.
        diverged: How many of the runs diverged.
        lr_at_edge: Whether the best rate is the least or the greatest of several.
    """

    def __init__(self, label: str, by_rate: dict[float, list[Result]]) -> None:
        self.label, self.by_rate = label, by_rate
        self.lr = min(by_rate, key=lambda lr: _rank(by_rate[lr]))
        self.runs = by_rate[self.lr]
        self.curve = mean_curve(self.runs)
        self.final, self.spread = mean_and_spread(self.runs)
        curves = [run["curve"] for run in self.runs]
        lowest = (min(filter(finite, curve["loss"]), default=math.inf) for curve in curves)
        self.best = fmean(lowest)
        ends = [(curve.get("accuracy") or [None])[-1] for curve in curves]
        self.accuracy = fmean(known) if (known := list(filter(finite, ends))) else None
        self.milliseconds = _milliseconds(self.runs)
        self.state_bytes: int = self.runs[0]["state_bytes"]
        self.parameters: int = self.runs[0]["parameters"]
        self.peak_bytes = max(run.get("peak_memory_bytes") or 0 for run in self.runs)
        self.diverged = sum(math.isinf(final_loss(run)) for run in self.runs)
        ended = len(by_rate) > 1 and math.isfinite(self.final)
        self.lr_at_edge = ended and self.lr in (min(by_rate), max(by_rate))

    @cached_property
    def sensitivity(self) -> dict[float, tuple[float, float | None]]:
        """Learning rate → mean final loss and its spread; infinite where a run diverged."""
        return {lr: mean_and_spread(runs) for lr, runs in self.by_rate.items()}


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
        rows: One an optimizer, lowest final loss first.
        baseline: The label whose final loss is the target: the given one, else AdamW, else the
            first.
        target: The row of that label; None where it has no run that ended.
        unit: What the models were fed with: tokens, images.

    Raises:
        UsageError: If there is no run with the label of the baseline.
    """

    def __init__(self, results: Sequence[Result], baseline: str | None = None) -> None:
        self.results = [run for run in results if run["status"] not in ("failed", "stopped")]
        self.stopped = sum(run["status"] == "stopped" for run in results)
        self.failures = _failures([run for run in results if run["status"] == "failed"])
        rows = {label: Row(label, rates) for label, rates in _by_rate(self.results).items()}
        self.rows = sorted(rows.values(), key=lambda row: (row.final, row.best))
        self.baseline = _baseline(results, list(rows), baseline)
        self.target = rows.get(self.baseline or "")
        self.unit = str(self.results[0]["unit"]) if self.results else "units"

    @cached_property
    def varied(self) -> bool:
        """Whether an optimizer ran at more than one learning rate."""
        return any(len(row.by_rate) > 1 for row in self.rows)

    @cached_property
    def noise(self) -> tuple[float, float] | None:
        """How much a final loss varies from seed to seed, and what two means differ by by chance.

        The spreads of all optimizers are pooled. In 19 of 20 cases chance makes two means differ by
        less than Student's t times the standard error of their difference. None with one seed.
        """
        known = [(row.spread, len(row.runs)) for row in self.rows if row.spread is not None]
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

    def to_target(self, row: Row, along: Literal["units", "seconds"]) -> float | None:
        """What a row took to the target's final loss, as a fraction of what the target took."""
        if self.target is None or math.isinf(self.target.final):
            return None
        at = reach(getattr(row.curve, along), row.curve.loss, self.target.final)
        whole = max(getattr(self.target.curve, along), default=0.0)
        return at / whole if at is not None and whole else None

    @cached_property
    def telemetry(self) -> dict[str, dict[str, Band]]:
        """Key of a quantity → label → curve, where there is any that is not zero throughout."""
        found: dict[str, dict[str, Band]] = {}
        for quantity in QUANTITIES:
            bands = {row.label: telemetry_band(row.runs, quantity) for row in self.rows}
            if shown := {label: band for label, band in bands.items() if any(band.high)}:
                found[quantity.key] = shown
        return found

    @cached_property
    def flops(self) -> tuple[dict[str, float], bool]:
        """Label → FLOPs of the model in a step, and whether they were counted.

        A result may have the number, counted. Where it does not, and units are tokens, it is six a
        weight and token, the usual estimate for the forward and the backward pass.
        """
        firsts = {row.label: row.runs[0] for row in self.rows}
        if all(run.get("flops") for run in firsts.values()):
            return {label: float(run["flops"]) for label, run in firsts.items()}, True
        if self.unit != "tokens":
            return {}, False
        return {x: 6.0 * run["parameters"] * run["units"] for x, run in firsts.items()}, False


def mean_and_spread(runs: Sequence[Result]) -> tuple[float, float | None]:
    """The mean of the final losses, and their sample standard deviation where there is one."""
    losses = [final_loss(run) for run in runs]
    mean = fmean(losses)
    return mean, stdev(losses) if len(losses) > 1 and math.isfinite(mean) else None


def _by_rate(results: Sequence[Result]) -> dict[str, dict[float, list[Result]]]:
    groups: dict[str, dict[float, list[Result]]] = {run["label"]: {} for run in results}
    for run in sorted(results, key=lambda run: float(run["settings"]["lr"])):
        groups[run["label"]].setdefault(float(run["settings"]["lr"]), []).append(run)
    return groups


def _rank(runs: Sequence[Result]) -> tuple[float, int]:
    """What the best rate has the least of: the mean final loss, else the runs that diverged."""
    losses = [final_loss(run) for run in runs]
    return fmean(losses), losses.count(math.inf)


def _milliseconds(runs: Sequence[Result]) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for run in runs:
        for part, time in (run.get("milliseconds") or {}).items():
            times.setdefault(part, []).append(float(time))
    return {part: median(known) for part, known in times.items()}


def _failures(results: Sequence[Result]) -> list[Failure]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for run in results:
        groups.setdefault((run["label"], str(run.get("error") or "unknown")), []).append(run)
    found = []
    for (label, error), runs in groups.items():
        rates = sorted({float(run["settings"]["lr"]) for run in runs})
        seeds = sorted({int(run["settings"].get("seed", 0)) for run in runs})
        found.append(Failure(label, error, rates, seeds))
    return found


def _baseline(results: Sequence[Result], ended: list[str], given: str | None) -> str | None:
    labels = dict.fromkeys(run["label"] for run in results)
    if given is not None and given not in labels:
        raise unknown("baseline", given, labels)
    adamw = sorted((label for label in ended if label.partition(":")[0] == "adamw"), key=len)
    return given or next(iter([*adamw, *ended]), None)
