"""What a step and a refresh of a matrix cost, and one greedy rule that shares costs out.

The rule decides which rank owns which matrix, and at which step which parameter renews its bases.
Costs are multiplications up to a common factor; only ratios matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from torch import Tensor

from .bases import sides_with_basis
from .directions import soft_steps
from .matrices import Part
from .methods import Method
from .parameters import Reading

# Renewing a basis, in units of n³: a product and a QR for a refresh, or a full decomposition.
_REFRESH: Final = 4
_DECOMPOSITION: Final = 12


def share_out(costs: Sequence[int], load: list[int]) -> list[int]:
    """For each cost the place that takes it; the load of each place is brought up to date.

    The largest cost goes first, each to the place that has least so far.

    >>> share_out([1, 8, 4, 4, 1], [0, 0])
    [0, 0, 1, 1, 1]
    """
    found = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        found[i] = load.index(min(load))
        load[found[i]] += costs[i]
    return found


def first_phases(readings: Iterable[Reading]) -> dict[Tensor, int]:
    """Where the clocks of all parameters start, so that the refreshes are spread over the steps."""
    costs: defaultdict[int, dict[Tensor, int]] = defaultdict(dict)  # by period
    for r in readings:
        if r.group["stagger"] and r.method.basis is not None:
            costs[r.group["refresh_every"]][r.param] = _refresh_cost(r.parts, r.group)
    return {
        param: phase
        for period, cost in costs.items()
        for param, phase in zip(cost, share_out(list(cost.values()), [0] * period), strict=True)
    }


def step_cost(parts: Iterable[Part], method: Method, group: dict[str, Any]) -> int:
    """What a step of a parameter costs on average, its refreshes included."""
    cost = 0
    for part in parts:
        *_, n, m = part.shape
        each = 8 * n * m  # what is done entry by entry
        if method.direction == "msign":
            each += _msign_cost(min(n, m), max(n, m), group["msign"])
        if method.basis is not None:
            left, right = sides_with_basis(n, m, sides=group["sides"], max_dim=group["max_dim"])
            turn = n * m * (left * n + right * m)  # into the basis, or out of it
            renewal = _REFRESH if method.basis.tracked else _DECOMPOSITION
            renewed = renewal * (left * n**3 + right * m**3) // group["refresh_every"]
            each += 2 * turn + turn + renewed  # in and out, the covariances, and their bases
        cost += part.matrices * each
    return cost


def _refresh_cost(parts: Iterable[Part], group: dict[str, Any]) -> int:
    """What renewing the bases of a parameter costs: n³ for a side of size n."""
    cost = 0
    for part in parts:
        *_, n, m = part.shape
        left, right = sides_with_basis(n, m, sides=group["sides"], max_dim=group["max_dim"])
        cost += part.matrices * (left * n**3 + right * m**3)
    return cost


def _msign_cost(n: int, m: int, kind: str) -> int:
    """The steps of an n×m matrix, n ≤ m: on the matrix itself, or on its Gram matrix."""
    steps = soft_steps(n) if kind == "soft" else 5
    if kind == "soft" or m > 1.5 * n:
        return 2 * n * n * m + (4 * steps - 3) * n**3
    return steps * (2 * n * n * m + n**3)
