"""What a step did: the numbers that it left behind for each matrix, under names that can be logged.

A step that is recorded (every hundredth, unless the optimizer is told otherwise) keeps a few
numbers of what it computed. Reading them computes nothing again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .core.batch import Batch

Telemetry = dict[str, dict[str, float]]
"""Name of the matrix → name of the quantity → value."""

Rows = dict[str, list[dict[str, float]]]
"""Name of the parameter → for each of its matrices, name of the quantity → value."""


def scalars(telemetry: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The numbers in one dictionary, under quantity/matrix, as TensorBoard groups its charts.

    >>> scalars({"layers.0.weight": {"gamma_mean": 0.9, "skipped": 0.0}})
    {'gamma_mean/layers.0.weight': 0.9, 'skipped/layers.0.weight': 0.0}
    """
    return {f"{key}/{name}": x for name, row in telemetry.items() for key, x in row.items()}


def finite_scalars(telemetry: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """`scalars` without the numbers that are not finite, which some loggers refuse.

    The ratio of update to weight is infinite while the weight is zero, as LoRA's B is at first.

    >>> finite_scalars({"B": {"update_ratio": math.inf, "skipped": 0.0}})
    {'skipped/B': 0.0}
    """
    return {tag: x for tag, x in scalars(telemetry).items() if math.isfinite(x)}


def check_every(every: int) -> None:
    """Raise an error if this cannot be a number of steps from one row of a log to the next."""
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a whole number of at least 1, got {every!r}")


class Records:
    """The numbers of the last recorded step of each matrix, on the device until they are read.

    Attributes:
        every: How many steps lie between two that are recorded.
    """

    every: int = 100

    def __init__(self) -> None:
        self._found: dict[str, dict[int, tuple[tuple[str, ...], Tensor]]] = {}

    def add(self, batch: Batch) -> None:
        """Keep what a batch has recorded, for each parameter and part."""
        if not batch.record:
            return
        count = len(batch.items)
        table = torch.stack([x.reshape(count, -1) for x in batch.record.values()], -1)
        for item, matrices in zip(batch.items, table, strict=True):
            parts = self._found.setdefault(item.reading.name, {})
            parts[batch.index] = tuple(batch.record), matrices

    def rows(self) -> Rows:
        """Everything that was recorded, read from the device."""
        return {
            name: [
                dict(zip(keys, row, strict=True))
                for _, (keys, matrices) in sorted(parts.items())
                for row in matrices.tolist()
            ]
            for name, parts in self._found.items()
        }


def numbered(rows: Rows, skipped: Callable[[str], int]) -> Telemetry:
    """Each row under a name of its own; `skipped` counts what a parameter has left out.

    A parameter that is several matrices has a row for each, numbered: `experts.weight[3]`.
    """
    return {
        f"{name}[{i}]" if len(of) > 1 else name: {**row, "skipped": float(skipped(name))}
        for name, of in rows.items()
        for i, row in enumerate(of)
    }
