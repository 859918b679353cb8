"""What a step and a refresh of a matrix cost, and one greedy rule that shares costs out.

The rule decides which rank owns which matrix, and at which step which parameter renews its bases.
Costs are multiplications up to a common factor; only ratios matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from torch import Tensor

from .batch import LARGE
from .directions import SOFT, soft_quintics, soft_steps, softness_of
from .matrices import Part
from .methods import Method, basis_sides, covariance_period
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
    """Where the clocks of all parameters start, so that the refreshes are spread over the steps.

    Frozen ones take no part. Small matrices of the lean variant that are one batch stay together,
    as one batch is cheaper.
    """
    units: defaultdict[int, dict[object, list[Reading]]] = defaultdict(dict)  # by period
    for r in readings:
        if r.group["stagger"] and r.method.basis is not None and r.param.requires_grad:
            together = r.method.lean and max(min(part.shape[-2:]) for part in r.parts) < LARGE
            unit = (id(r.group), r.parts) if together else r.param
            units[r.group["refresh_every"]].setdefault(unit, []).append(r)
    found = {}
    for period, members in units.items():
        costs = [sum(map(_refresh_cost, some)) for some in members.values()]
        for some, phase in zip(members.values(), share_out(costs, [0] * period), strict=True):
            found.update({r.param: phase for r in some})
    return found


def step_cost(parts: Iterable[Part], method: Method, group: dict[str, Any]) -> int:
    """What a step of a parameter costs on average, its refreshes included."""
    cost = 0
    for part in parts:
        *_, n, m = part.shape
        each = 8 * n * m  # what is done entry by entry
        if method.lean:
            period = covariance_period(method, group)
            each += _lean_cost(min(n, m), max(n, m), group["msign"], period)
        elif method.direction == "msign":
            each += _msign_cost(min(n, m), max(n, m), group["msign"])
        if method.basis is not None:
            left, right = basis_sides(method, group, part.shape)
            turn = n * m * (left * n + right * m)  # into the basis, or out of it
            renewal = _REFRESH if method.basis.tracked else _DECOMPOSITION
            renewed = renewal * (left * n**3 + right * m**3) // group["refresh_every"]
            # in and out, the covariances, and their bases
            each += renewed if method.lean else 2 * turn + turn + renewed
        cost += part.matrices * each
    return cost


def _refresh_cost(r: Reading) -> int:
    """What renewing the bases of a parameter costs: n³ for a side of size n."""
    cost = 0
    for part in r.parts:
        *_, n, m = part.shape
        left, right = basis_sides(r.method, r.group, part.shape)
        cost += part.matrices * (left * n**3 + right * m**3)
    return cost


def _lean_cost(n: int, m: int, kind: str, covariance_every: int) -> int:
    """The update of an n×m matrix, n ≤ m, and its share of the covariance."""
    covariance = (n * n * m + n**3) // covariance_every
    if kind not in SOFT:  # into the basis, the sign, and out of it
        return 2 * n * n * m + _msign_cost(n, m, kind) + covariance
    quintics = len(soft_quintics(n, softness_of(kind, n)))
    on_gram = 4 * quintics + 1  # whitening, the sign, what is on B
    return 2 * n * n * m + on_gram * n**3 + covariance


def _msign_cost(n: int, m: int, kind: str) -> int:
    """The steps of an n×m matrix, n ≤ m: on the matrix itself, or on its Gram matrix."""
    steps = soft_steps(n, softness_of(kind, n)) if kind in SOFT else 5
    if kind in SOFT or m > 1.5 * n:
        return 2 * n * n * m + (4 * steps - 3) * n**3
    return steps * (2 * n * n * m + n**3)
