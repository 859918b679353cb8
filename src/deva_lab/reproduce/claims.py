"""What the paper claims, and what was found: a row a claim."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["holds", "holds in part", "does not hold"]


@dataclass(frozen=True)
class Finding:
    """A claim of the paper and what was computed of it.

    Attributes:
        claim: What the paper says, in a few words.
        computed: What was computed to see.
        verdict: Whether it holds.
        how: By how much, or what holds in its place.
        value: The number behind `how`.
    """

    claim: str
    computed: str
    verdict: Verdict
    how: str
    value: float

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return asdict(self)


def judged(claim: str, computed: str, value: float, *, most: float, how: str) -> Finding:
    """A finding that holds if its value, an error or a ratio, is at most `most`.

    >>> judged("2 + 2 = 4", "the difference", 0.0, most=1e-12, how="off by {:.0e}").how
    'off by 0e+00'
    """
    verdict: Verdict = "holds" if value <= most else "does not hold"
    return Finding(claim, computed, verdict, how.format(value), value)
