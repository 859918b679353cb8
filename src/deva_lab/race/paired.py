"""A paired t-test: whether two entries differ by more than seeds alone would make them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


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
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return None
    gap = fmean(differences)
    if len(set(differences)) == 1:
        return Paired(gap, math.copysign(math.inf, gap), 0.0, len(differences)) if gap else None
    from scipy.stats import ttest_1samp  # takes a second to import

    found = ttest_1samp(differences, 0.0)
    return Paired(gap, float(found.statistic), float(found.pvalue), len(differences))
