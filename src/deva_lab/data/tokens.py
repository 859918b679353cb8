"""Rows of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Tokens(Protocol):
    """Token ids in a row: an array, a memory map, or several of them behind one another."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> npt.NDArray[Any]: ...


class Concatenated:
    """Several rows of tokens behind one another, without copying them.

    >>> Concatenated([np.arange(3), np.arange(3, 9)])[2:5]
    array([2, 3, 4])
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, where: slice, /) -> npt.NDArray[Any]:
        start, stop, stride = where.indices(len(self))
        pieces = []
        part = int(np.searchsorted(self._ends, start, side="right"))
        position = start
        while position < stop:
            offset = int(self._ends[part]) - len(self._parts[part])
            pieces.append(self._parts[part][position - offset : stop - offset])
            position, part = int(self._ends[part]), part + 1
        joined = np.concatenate(pieces) if pieces else self._parts[0][:0]
        return joined[::stride]
