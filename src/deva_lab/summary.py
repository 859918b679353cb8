"""From finished runs to the table: each optimizer at its own best learning rate, over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev

from .curves import Curve, final_loss, finite, mean_curve, reach
from .errors import UsageError, unknown
from .files import read_lines
from .palette import method
from .progress import Result, is_failed
from .tables import Row, markdown, table

__all__ = ["Row", "markdown", "read_results", "sensitivity", "summarise", "table"]


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


def by_rate(results: Sequence[Result]) -> dict[str, dict[float, list[Result]]]:
    """Label → learning rate, ascending → runs."""
    groups: dict[str, dict[float, list[Result]]] = {}
    for result in sorted(results, key=lambda result: float(result["settings"]["lr"])):
        rates = groups.setdefault(result["label"], {})
        rates.setdefault(float(result["settings"]["lr"]), []).append(result)
    order = dict.fromkeys(result["label"] for result in results)
    return {label: groups[label] for label in order}


def best_runs(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Label → its runs at its best rate: the lowest mean final loss, else the fewest lost."""

    def badness(runs: list[Result]) -> tuple[float, int]:
        losses = [final_loss(run) for run in runs]
        return fmean(losses), losses.count(math.inf)

    return {label: min(rates.values(), key=badness) for label, rates in by_rate(results).items()}


def sensitivity(results: Sequence[Result]) -> dict[str, list[tuple[float, float, float | None]]]:
    """Label → (learning rate, mean final loss, spread), ascending; infinite where one diverged."""
    return {
        label: [(rate, *_mean_and_spread(runs)) for rate, runs in rates.items()]
        for label, rates in by_rate(results).items()
    }


def baseline_of(results: Sequence[Result], baseline: str | None = None) -> str:
    """The label to compare with: the given one, else AdamW, else the first."""
    labels = list(dict.fromkeys(result["label"] for result in results))
    if baseline is not None and baseline not in labels:
        raise unknown("baseline", baseline, labels)
    adamw = sorted((label for label in labels if method(label) == "adamw"), key=len)
    return baseline or next(iter(adamw + labels))


def summarise(results: Sequence[Result], baseline: str | None = None) -> list[Row]:
    """One row an optimizer, lowest final loss first."""
    if not results:
        return []
    groups = by_rate(results)
    chosen = best_runs(results)
    standard = baseline_of(results, baseline)
    target, _ = _mean_and_spread(chosen[standard])
    reference = mean_curve(chosen[standard])
    rows = [
        _row(runs, groups[label], target, reference, label == standard)
        for label, runs in chosen.items()
    ]
    return sorted(rows, key=lambda row: (row.final, row.best))


def _row(
    runs: list[Result],
    groups: dict[float, list[Result]],
    target: float,
    reference: Curve,
    baseline: bool,
) -> Row:
    first, rates = runs[0], list(groups)
    lr = float(first["settings"]["lr"])
    final, spread = _mean_and_spread(runs)
    curve = mean_curve(runs)
    return Row(
        label=first["label"],
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
        state_bytes=first["state_bytes"],
        parameters=first["parameters"],
        diverged=sum(math.isinf(final_loss(run)) and not is_failed(run) for run in runs),
        rates=len(rates),
        lr_at_edge=len(rates) > 1 and math.isfinite(final) and lr in (rates[0], rates[-1]),
        baseline=baseline,
        unit=first["unit"],
        failures=_failures(groups),
    )


def _failures(rates: dict[float, list[Result]]) -> tuple[str, ...]:
    """What became of each run that failed, to be read behind the name of the optimizer."""
    return tuple(
        f"failed at lr {rate:g}, seed {run['settings']['seed']}: {run['error'].splitlines()[0]}"
        for rate, runs in rates.items()
        for run in runs
        if is_failed(run)
    )


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
