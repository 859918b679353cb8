"""What the optimizers did in their steps, as curves over the steps that were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles
from typing import Final, NamedTuple

from ..progress import Result
from .curves import Band, finite


class Quantity(NamedTuple):
    """A quantity of telemetry."""

    key: str
    title: str
    text: str  # what it is, in a sentence
    of: tuple[str, ...]  # the names that it has in a result
    logarithmic: bool = False


QUANTITIES: Final = (
    Quantity(
        "update",
        "Update to weight",
        "The norm of an update over that of the weight, ‖ΔX‖ / ‖X‖.",
        ("update_ratio",),
        logarithmic=True,
    ),
    Quantity("gamma", "Norm of Γ", "‖Γ‖ of the variance adaptation.", ("gamma_norm",)),
    Quantity(
        "drift",
        "Drift of the bases",
        "The share of a covariance that is off the diagonal in its basis: near 1 the basis is old.",
        ("drift_left", "drift_right"),
    ),
    Quantity("msign", "Error of msign", "‖O Oᵀ − I‖ / √r of the matrix sign.", ("msign_error",)),
    Quantity("skipped", "Steps skipped", "So far: a gradient was not finite.", ("skipped",)),
)


def bands(runs: Sequence[Result], quantity: Quantity) -> Band:
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
        most = [max(found[step]) for step in steps]
        return Band(steps, most, most, most)
    quarters = [_quarters(found[step]) for step in steps]
    low, middle, high = ([quarter[index] for quarter in quarters] for index in range(3))
    return Band(steps, middle, low, high)


def _quarters(values: list[float]) -> list[float]:
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
