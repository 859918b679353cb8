"""What the paper claims, and what was found: a row a claim, and a verdict over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from .experiment import markdown_table

Verdict = Literal["holds", "holds in part", "open", "does not hold"]
"""Open is a difference that is smaller than the noise."""

WORDS: Final = {
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "open": ("is within the noise", "are within the noise"),
    "does not hold": ("does not hold", "do not hold"),
}


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


def compared(
    claim: str, computed: str, gap: float, *, noise: float | None = None, how: str
) -> Finding:
    """A finding that holds if the gap is above zero by more than the noise; None: not known.

    >>> compared("a < b", "b − a", 0.01, noise=0.02, how="").verdict
    'open'
    """
    within = noise or 0.0
    verdict: Verdict = "holds" if gap > within else "open" if gap >= -within else "does not hold"
    if noise is None and gap == 0:
        verdict = "does not hold"
    return Finding(claim, computed, verdict, how, gap)


def throughout(claim: str, computed: str, parts: Sequence[Finding], how: str = "") -> Finding:
    """A claim that is made of several places at once: it holds where it holds in all of them."""
    held = sum(part.verdict == "holds" for part in parts)
    told = how or "; ".join(part.how for part in parts)
    return Finding(claim, computed, overall(parts), told, held / len(parts))


def overall(findings: Sequence[Finding]) -> Verdict:
    """What the findings come to: all of them hold, some, none for sure, or none."""
    verdicts = {finding.verdict for finding in findings}
    if verdicts == {"holds"}:
        return "holds"
    if verdicts & {"holds", "holds in part"}:
        return "holds in part"
    return "open" if verdicts == {"open"} else "does not hold"


def sentence(findings: Sequence[Finding]) -> str:
    """The verdict in words: does it hold, and how many of its claims do.

    >>> one = Finding("a", "", "holds", "", 1.0)
    >>> sentence([one, one]), sentence([Finding("b", "", "does not hold", "", 0.0)])
    ('holds: 2 of 2 claims hold', 'does not hold at this scale: 1 of 1 claims does not hold')
    """
    verdicts = [finding.verdict for finding in findings]
    parts = [
        f"{verdicts.count(verdict)} of {len(verdicts)} claims {words[verdicts.count(verdict) > 1]}"
        for verdict, words in WORDS.items()
        if verdict in verdicts
    ]
    word = overall(findings)
    head = word if word in ("holds", "holds in part") else "does not hold at this scale"
    return f"{head}: {', '.join(parts)}"


def findings_table(findings: Sequence[Finding]) -> str:
    """The findings as a table."""
    rows = [(f.claim, f.computed, f.verdict, f.how) for f in findings]
    return markdown_table(("the paper", "what was computed", "here", "by how much"), rows)
