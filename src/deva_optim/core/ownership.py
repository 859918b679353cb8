"""Which rank owns which matrix: what a step of each costs, and who takes it.

An owner alone keeps the state of its matrices and computes their updates, so that N ranks do each
about 1/N of the work. Costs are multiplications up to a common factor; only ratios matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from .bases import sides_with_basis
from .directions import soft_steps
from .matrices import Part
from .methods import Method

# Renewing a basis, in units of n³: a product and a QR for a refresh, or a full decomposition.
_REFRESH: Final = 4
_DECOMPOSITION: Final = 12


def step_cost(parts: Iterable[Part], method: Method, group: dict[str, Any]) -> int:
    """What a step of a parameter costs on average, its refreshes included."""
    return sum(part.matrices * _matrix_cost(part, method, group) for part in parts)


def owners(costs: Sequence[int], load: list[int]) -> list[int]:
    """For each cost the rank that takes it; the load of each rank is brought up to date.

    The largest goes first, each to the rank that has least so far.

    >>> owners([1, 8, 4, 4, 1], [0, 0])
    [0, 0, 1, 1, 1]
    """
    found = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        found[i] = load.index(min(load))
        load[found[i]] += costs[i]
    return found


def _matrix_cost(part: Part, method: Method, group: dict[str, Any]) -> int:
    *_, n, m = part.shape
    cost = 0
    if method.direction == "msign":
        cost += _msign_cost(min(n, m), max(n, m), group["msign"])
    if method.basis is not None:
        left, right = sides_with_basis(n, m, sides=group["sides"], max_dim=group["max_dim"])
        turn = n * m * (left * n + right * m)  # into the basis, or out of it
        renewal = _REFRESH if method.basis.tracked else _DECOMPOSITION
        renewed = renewal * (left * n**3 + right * m**3) // group["refresh_every"]
        cost += 2 * turn + turn + renewed  # in and out, the covariances, and their bases
    return cost + 8 * n * m  # what is done entry by entry


def _msign_cost(n: int, m: int, kind: str) -> int:
    """The steps of an n×m matrix, n ≤ m: on the matrix itself, or on its Gram matrix."""
    steps = soft_steps(n) if kind == "soft" else 5
    if kind == "soft" or m > 1.5 * n:
        return 2 * n * n * m + (4 * steps - 3) * n**3
    return steps * (2 * n * n * m + n**3)
