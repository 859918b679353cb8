"""Language modelling: a GPT learns to say which token comes next in windows of a text."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .data.corpus import Corpus, Tokens
from .errors import UsageError
from .models.gpt import GPT, SIZES
from .run.ranks import ALONE, Ranks

CHUNK_TOKENS: Final = 16_384  # of an evaluation, which go through the model at once


class TextTask:
    """A GPT of a size on a corpus, `batch` windows at a time.

    Attributes:
        units: The tokens in a batch.
        validation: Windows that are not trained on, (windows, context + 1).
    """

    unit = "tokens"

    def __init__(self, corpus: Corpus, size: str, *, seed: int, batch: int) -> None:
        self.corpus, self.size, self.seed = corpus, SIZES[size], seed
        context, held = self.size.context, corpus.validation
        self.units = batch * context
        self.windows = Windows(corpus.train, context=context, batch=batch, seed=seed)
        count = min(self.size.validation, len(held)) // (context + 1)
        self.validation = held_out(held, context=context, windows=max(1, count))

    def model(self) -> nn.Module:
        """The GPT, initialised from the seed alone."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return GPT(self.size, self.corpus.vocabulary)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """The tokens of a step, (batch, context + 1)."""
        return (self.windows.batch(step),)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean cross-entropy of each token given those before it, in nats."""
        tokens = batch[0].to(next(model.parameters()).device, non_blocking=True)
        logits = model(tokens[:, :-1])  # (batch, context, vocabulary)
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        """The mean loss on the validation windows."""
        size = ranks.size * max(1, CHUNK_TOKENS // self.validation.shape[1])
        chunks = map(ranks.rows, torch.split(self.validation, size))
        total = sum(self.loss(model, (rows,)) * count for rows, count in chunks)
        (loss,) = ranks.total(float(total))
        return {"loss": loss / len(self.validation)}


class Windows:
    """Training batches over disjoint windows, in a fresh random order every epoch.

    Every epoch cuts the tokens anew from a random offset and goes once through all the windows. A
    window has one token more than the context: the inputs and, one place on, the targets. A batch
    is a function of the seed and the step alone.

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
        self.windows = (len(tokens) - context) // context  # in an epoch
        if self.windows < batch:
            raise UsageError(
                f"the text has {len(tokens):,} tokens, but a batch of {batch} windows of {context} "
                f"needs {(batch + 1) * context:,}: take a longer text, a smaller batch or a "
                "shorter context"
            )
        self._tokens, self._context, self._batch, self._seed = tokens, context, batch, seed

    def batch(self, step: int) -> Tensor:
        """The windows of a step counted from 0: (batch, context + 1), int64."""
        first = step * self._batch
        starts = []
        for index in range(first, first + self._batch):
            epoch, place = divmod(index, self.windows)
            starts.append(_starts(self._seed, epoch, self.windows, self._context)[place])
        return _gather(self._tokens, starts, self._context + 1)


@lru_cache(maxsize=4)
def _starts(seed: int, epoch: int, windows: int, context: int) -> npt.NDArray[np.int64]:
    """Where the windows of an epoch begin, in its order."""
    # Raw bits, because numpy keeps those from version to version, and not its permutations.
    bits = np.random.PCG64(np.random.SeedSequence((seed, epoch)))
    offset = int(bits.random_raw()) % context
    order = np.argsort(bits.random_raw(windows), kind="stable")
    return order * context + offset


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
    rows = [tokens[start : start + length] for start in starts]
    return torch.from_numpy(np.stack(rows).astype(np.int64))
