"""From the results of runs to what is said of them, computed once for table, chart and page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from statistics import fmean, median, stdev
from typing import Literal, NamedTuple

from ..errors import unknown
from ..run.progress import Result
from .curves import QUANTITIES, Band, final_loss, finite, mean_curve, reach, telemetry_band


class Row:
    """What one optimizer did at the learning rate with its lowest mean final loss."""

    def __init__(self, label: str, by_rate: dict[float, list[Result]]) -> None:
        self.label = label
        self.by_rate = by_rate  # learning rate, ascending → runs
        # Learning rate → mean final loss, infinite where a run diverged, and its spread.
        self.sensitivity = {lr: _mean_and_spread(runs) for lr, runs in by_rate.items()}
        self.lr = min(by_rate, key=lambda lr: (self.sensitivity[lr][0], _lost(by_rate[lr])))
        self.runs = runs = by_rate[self.lr]
        self.curve = mean_curve(runs)
        self.final, self.spread = self.sensitivity[self.lr]
        self.diverged = _lost(runs)
        edges = (min(by_rate), max(by_rate)) if len(by_rate) > 1 else ()
        self.lr_at_edge = self.lr in edges and math.isfinite(self.final)  # the grid is too narrow
        lowest = (filter(finite, run["curve"]["loss"]) for run in runs)
        self.best = fmean(min(losses, default=math.inf) for losses in lowest)  # along the way
        ends = [(run["curve"].get("accuracy") or [None])[-1] for run in runs]
        self.accuracy = fmean(known) if (known := list(filter(finite, ends))) else None
        times = [run["milliseconds"] for run in runs if run.get("milliseconds")]
        # Part of a step → its median.
        self.milliseconds = {x: median(each[x] for each in times) for x in (times or [{}])[0]}
        self.step_ms = sum(self.milliseconds.values())
        self.state_bytes: int = runs[0]["state_bytes"]
        self.parameters: int = runs[0]["parameters"]
        self.peak_bytes = max(run.get("peak_memory_bytes") or 0 for run in runs)  # if measured


class Failure(NamedTuple):
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
        labels = dict.fromkeys(run["label"] for run in results)
        if baseline is not None and baseline not in labels:
            raise unknown("baseline", baseline, labels)
        self.results = [run for run in results if run["status"] not in ("failed", "stopped")]
        self.stopped = sum(run["status"] == "stopped" for run in results)
        self.failures = _failures([run for run in results if run["status"] == "failed"])
        groups: dict[str, dict[float, list[Result]]] = {run["label"]: {} for run in self.results}
        for run in sorted(self.results, key=lambda run: float(run["settings"]["lr"])):
            groups[run["label"]].setdefault(float(run["settings"]["lr"]), []).append(run)
        rows = {label: Row(label, by_rate) for label, by_rate in groups.items()}
        self.rows = sorted(rows.values(), key=lambda row: (row.final, row.best))
        adamw = sorted((x for x in rows if x.partition(":")[0] == "adamw"), key=len)
        self.baseline = baseline or next(iter([*adamw, *rows]), "")
        self.target = rows.get(self.baseline)
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
        if self.target is None or self.target.diverged:
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


def _mean_and_spread(runs: Sequence[Result]) -> tuple[float, float | None]:
    """The mean of the final losses, and their sample standard deviation where there is one."""
    losses = [final_loss(run) for run in runs]
    mean = fmean(losses)
    return mean, stdev(losses) if len(losses) > 1 and math.isfinite(mean) else None


def _lost(runs: Sequence[Result]) -> int:
    return sum(math.isinf(final_loss(run)) for run in runs)


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
