"""Batches of windows of tokens, each a function of the seed and the step alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import UsageError
from .shards import Tokens


class Windows:
    """Training batches over disjoint windows, in a fresh random order every epoch.

    Every epoch cuts the tokens anew from a random offset and goes once through all the windows. A
    window has one token more than the context: the inputs and, one place on, the targets.

    Args:
        tokens: the text.
        context: the inputs in a window.
        batch: the windows in a batch.
        seed: what the order depends on, at least 0.

    >>> windows = Windows(np.arange(100), context=4, batch=3, seed=0)
    >>> windows.batch(7).shape, windows.batch(7).equal(windows.batch(7))
    (torch.Size([3, 5]), True)
    """

    def __init__(self, tokens: Tokens, *, context: int, batch: int, seed: int) -> None:
        # The last token of a window is the first of the next; the offset takes up to context - 1.
        count = (len(tokens) - context) // context
        if count < batch:
            raise UsageError(
                f"the text has {len(tokens):,} tokens, but a batch of {batch} windows of {context} "
                f"needs {(batch + 1) * context:,}: take a longer text, a smaller batch or a "
                "shorter context"
            )
        self._tokens, self._context, self._batch, self._seed = tokens, context, batch, seed
        self._count = count
        self._epoch, self._starts = 0, self._order(0)

    @property
    def windows(self) -> int:
        """The number of windows in an epoch."""
        return self._count

    def batch(self, step: int) -> Tensor:
        """The windows of a step counted from 0: (batch, context + 1), int64."""
        first = step * self._batch
        starts = [self._start(index) for index in range(first, first + self._batch)]
        return _gather(self._tokens, starts, self._context + 1)

    def _start(self, index: int) -> int:
        """Where the window of that number, counted over all epochs, begins."""
        epoch, place = divmod(index, self._count)
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._order(epoch)
        return int(self._starts[place])

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        # Raw bits, because numpy keeps those from version to version, and not its permutations.
        bits = np.random.PCG64(np.random.SeedSequence((self._seed, epoch)))
        offset = int(bits.random_raw()) % self._context
        order = np.argsort(bits.random_raw(self._count), kind="stable")
        return order * self._context + offset


def held_out(tokens: Tokens, *, context: int, windows: int) -> Tensor:
    """Windows spread evenly over the validation tokens: (windows, context + 1), int64.

    They overlap only where the text is too short for that many.

    >>> held_out(np.arange(10), context=3, windows=3)
    tensor([[0, 1, 2, 3],
            [3, 4, 5, 6],
            [6, 7, 8, 9]])
    """
    last = len(tokens) - (context + 1)
    if last < 0:
        raise UsageError(
            f"the validation text has {len(tokens):,} tokens, fewer than one window of "
            f"{context + 1}: take a longer text or a shorter context"
        )
    starts = [last * window // max(windows - 1, 1) for window in range(windows)]
    return _gather(tokens, starts, context + 1)


def _gather(tokens: Tokens, starts: list[int], length: int) -> Tensor:
    rows = np.empty((len(starts), length), dtype=np.int64)
    for row, start in zip(rows, starts, strict=True):
        row[:] = tokens[start : start + length]
    return torch.from_numpy(rows)
