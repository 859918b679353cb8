"""A paired t-test: whether two entries differ by more than seeds alone would make them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Paired:
    """What the differences of pairs say.

    Attributes:
        gap: Their mean.
        t: Their mean over its standard error; infinite where all are the same and not zero.
        p: How often |t| would be as large if there were no difference (two-sided).
        pairs: How many there are.
    """

    gap: float
    t: float
    p: float
    pairs: int


def paired(differences: Sequence[float]) -> Paired | None:
    """The test of these differences; None with fewer than two, or where one is infinite.

    >>> found = paired([1.0, 2.0, 3.0])
    >>> round(found.t, 3), round(found.p, 3)
    (3.464, 0.074)
    """
    count = len(differences)
    if count < 2 or not all(map(math.isfinite, differences)):
        return None
    gap, error = fmean(differences), stdev(differences) / math.sqrt(count)
    if error == 0:
        return Paired(gap, math.copysign(math.inf, gap), 0.0, count) if gap else None
    return Paired(gap, gap / error, 1 - within(abs(gap / error), count - 1), count)


def within(t: float, freedom: int) -> float:
    """The probability that Student's t is between −t and t (Abramowitz & Stegun 26.7.3–4).

    >>> round(within(4.302653, 2), 6), round(within(12.7062, 1), 6)
    (0.95, 0.95)
    """
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2 == 1
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * math.cos(angle) ** 2
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if odd else series
