"""Which documents are for training and which for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import UsageError

VALIDATION_SHARE = 0.05
_USUAL = int(VALIDATION_SHARE * 2**64)


@dataclass(frozen=True)
class Split:
    """The rule that a document is for validation if its hash is below a threshold.

    The hash is that of the content alone, so that copies of a document are on one side, whatever
    the order of the documents and whatever else is in the corpus.
    """

    threshold: int = _USUAL

    def is_validation(self, text: str) -> bool:
        """Whether a document is held out."""
        return _number(text) < self.threshold


def find_split(documents: Iterable[str]) -> Split:
    """The usual split, moved only where one side would be empty: then by one document.

    Raises:
        UsageError: if there are fewer than two different documents.
    """
    lowest, highest = 2**64, -1
    for text in documents:
        number = _number(text)
        lowest, highest = min(lowest, number), max(highest, number)
        if lowest < _USUAL <= highest:
            return Split()
    if lowest >= highest:
        count = "one document" if highest >= 0 else "no document"
        raise UsageError(f"a corpus needs two different documents to be split, this has {count}")
    return Split(lowest + 1 if lowest >= _USUAL else highest)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
