"""When which parameter renews its bases: each every so many steps, but not all in the same one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from .bases import sides_with_basis
from .matrices import Part
from .parameters import members


def first_phases(groups: list[dict[str, Any]]) -> dict[Tensor, int]:
    """Where the clocks of all parameters start, so that the refreshes are spread over the steps."""
    costs: defaultdict[int, dict[Tensor, int]] = defaultdict(dict)  # by period
    for m in members(groups, lambda _: True):
        if m.group["stagger"] and m.method.basis is not None:
            costs[m.group["refresh_every"]][m.param] = refresh_cost(m.parts, m.group)
    return {
        param: phase
        for period, cost in costs.items()
        for param, phase in zip(cost, phases(list(cost.values()), period), strict=True)
    }


def refresh_cost(parts: Iterable[Part], group: dict[str, Any]) -> int:
    """What renewing the bases of a parameter costs, up to a factor: n³ for a side of size n."""
    cost = 0
    for part in parts:
        *_, n, m = part.shape
        left, right = sides_with_basis(n, m, sides=group["sides"], max_dim=group["max_dim"])
        cost += part.matrices * (left * n**3 + right * m**3)
    return cost


def phases(costs: Sequence[int], period: int) -> list[int]:
    """For each cost one of `period` steps, so that no step gets much more than its share.

    The largest goes first, each to the step that has least so far; the first of them to step 0.

    >>> phases([1, 8, 4, 4, 1], 3)
    [1, 0, 1, 2, 2]
    """
    load, found = [0] * period, [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        found[i] = load.index(min(load))
        load[found[i]] += costs[i]
    return found
