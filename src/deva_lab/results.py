"""Results of runs: how they are read again, their curves, and what several optimizers come to.

All of it is computed once, for table, chart and page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Final, Literal, NamedTuple, TypeGuard

from .errors import UsageError, unknown
from .files import read_lines
from .run.progress import Result

RESULTS: Final = "results.jsonl"


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


# --- Curves --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """The validation loss along the way: mean, lowest and highest over the runs of one entrant."""

    step: list[float]
    units: list[float]
    seconds: list[float]
    loss: list[float]
    low: list[float]
    high: list[float]


class Band(NamedTuple):
    """A line with what lies around it."""

    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


class Quantity(NamedTuple):
    """A quantity of telemetry."""

    key: str
    title: str
    text: str  # what it is, in a sentence
    of: tuple[str, ...]  # the names that it has in a result
    logarithmic: bool = False


_UPDATE = "The norm of an update over that of the weight, ‖ΔX‖ / ‖X‖."
_DRIFT = "The share of a covariance that is off the diagonal in its basis: near 1 the basis is old."
QUANTITIES: Final = (
    Quantity("update", "Update to weight", _UPDATE, ("update_ratio",), logarithmic=True),
    Quantity("gamma", "Norm of Γ", "‖Γ‖ of the variance adaptation.", ("gamma_norm",)),
    Quantity("drift", "Drift of the bases", _DRIFT, ("drift_left", "drift_right")),
    Quantity("msign", "Error of msign", "‖O Oᵀ − I‖ / √r of the matrix sign.", ("msign_error",)),
    Quantity("skipped", "Steps skipped", "So far: a gradient was not finite.", ("skipped",)),
)


def finite(value: float | None) -> TypeGuard[float]:
    """Whether a value of a curve is a number; JSON has null where it was not."""
    return value is not None and math.isfinite(value)


def final_loss(result: Result) -> float:
    """The loss at the end of a run, infinite where it diverged."""
    losses = result["curve"]["loss"]
    ended = result["status"] == "finished" and losses and finite(losses[-1])
    return float(losses[-1]) if ended else math.inf


def mean_curve(results: Sequence[Result]) -> Curve:
    """The mean over runs, at the steps where every run that has any loss has one.

    >>> run = {"curve": {"step": [0, 1], "units": [0, 8], "seconds": [0, 2], "loss": [3, None]}}
    >>> mean_curve([run]).loss
    [3.0]
    """
    curves = [result["curve"] for result in results]
    rows = [zip(c["step"], c["units"], c["seconds"], c["loss"], strict=True) for c in curves]
    found = [{step: row for step, *row in run if finite(row[2])} for run in rows]
    runs = [run for run in found if run]
    steps = sorted(set.intersection(*map(set, runs))) if runs else []
    losses = [[run[step][2] for run in runs] for step in steps]
    return Curve(
        step=steps,
        units=[fmean(run[step][0] for run in runs) for step in steps],
        seconds=[fmean(run[step][1] for run in runs) for step in steps],
        loss=[fmean(values) for values in losses],
        low=[min(values) for values in losses],
        high=[max(values) for values in losses],
    )


def reach(x: Sequence[float], loss: Sequence[float], target: float) -> float | None:
    """Where a curve first reaches the target, between two points linearly; None if it never does.

    >>> reach([0, 100, 200], [5.0, 3.0, 2.0], 4.0)
    50.0
    """
    after = next((index for index, value in enumerate(loss) if value <= target), None)
    if not after:
        return None if after is None else float(x[0])
    share = (loss[after - 1] - target) / (loss[after - 1] - loss[after])
    return float(x[after - 1] + share * (x[after] - x[after - 1]))


def telemetry_band(runs: Sequence[Result], quantity: Quantity) -> Band:
    """The median over all matrices and runs at each recorded step, and the middle half of them.

    Of skipped steps it is the most of any matrix, because most matrices have none.
    """
    found: dict[float, list[float]] = {}
    for record in (record for run in runs for record in run.get("telemetry") or ()):
        for row in record["matrices"].values():
            values = [row[key] for key in quantity.of if finite(row.get(key))]
            found.setdefault(record["step"], []).extend(values)
    steps = sorted(step for step, values in found.items() if values)
    if quantity.key == "skipped":
        found = {step: [max(found[step])] for step in steps}
    quarters = [
        quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        for values in map(found.__getitem__, steps)
    ]
    low, middle, high = ([quarter[index] for quarter in quarters] for index in range(3))
    return Band(steps, middle, low, high)


def loss_range(curves: Sequence[Curve]) -> tuple[float, float, bool]:
    """Lowest and highest loss to show, and whether the axis is logarithmic.

    The fall of the first steps, the same for all, would flatten what tells them apart. So the axis
    begins where the typical curve is after a seventh of its way, or higher if an end needs it. A
    loss that falls by more than two decades is shown whole, on a logarithmic axis.
    """
    curves = [curve for curve in curves if curve.loss]
    length = max((curve.step[-1] for curve in curves), default=0)
    curves = [curve for curve in curves if curve.step[-1] >= 0.9 * length]  # not the diverged
    if not curves:
        return 0.0, 1.0, False
    low = min(min(curve.low) for curve in curves)
    start = max(curve.loss[0] for curve in curves)
    if low > 0 and start > 100 * low:
        return low / 1.5, start * 1.5, True
    early = median(curve.loss[math.ceil((len(curve.loss) - 1) / 7)] for curve in curves)
    return *_with_margin(low, max(early, *(curve.high[-1] for curve in curves)), 0.05), False


def rate_range(losses: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest final loss to show over learning rates; far worse ones are out of view."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if len(known) > 2:
        high = min(high, low + 4 * (median(known) - low))
    return _with_margin(low, high, 0.08)


def _with_margin(low: float, high: float, share: float) -> tuple[float, float]:
    margin = share * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


# --- Optimizers ----------------------------------------------------------------------------------


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
        adamw = [x for x in rows if x.partition(":")[0] in ("adamw", "torch-adamw")]
        adamw.sort(key=lambda x: (x.startswith("torch-"), len(x)))
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
    def flops(self) -> dict[str, float]:
        """Label → FLOPs of the model in a step, where units are tokens: six a weight and token.

        That is the usual estimate for the forward and the backward pass, and too much for tables,
        of which a token reads one row.
        """
        runs = {row.label: row.runs[0] for row in self.rows if self.unit == "tokens"}
        return {label: 6.0 * run["parameters"] * run["units"] for label, run in runs.items()}


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
