"""Language modelling: a GPT learns to say which token comes next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .data.corpus import check_corpus, load_corpus
from .data.shards import Corpus, Windows, held_out
from .models.gpt import GPT, SIZES
from .run.ranks import ALONE, Ranks
from .run.settings import RunSettings

# Tokens in an evaluation, at most: a small part of what it costs to train that size.
VALIDATION_TOKENS: Final = {
    "tiny": 16_384,
    "small": 32_768,
    "small-wide": 32_768,
    "small-deep": 32_768,
    "medium": 131_072,
    "large": 524_288,
    "paper": 10_485_760,
}
CHUNK_TOKENS: Final = 16_384  # of which go through the model at once


def check(data: str, vocabulary: int | str) -> None:
    """Raises UsageError if there is no such text, or its vocabulary cannot be had."""
    check_corpus(data, vocabulary)


@dataclass(frozen=True)
class TextTask:
    """A GPT on a corpus."""

    corpus: Corpus
    windows: Windows
    validation: Tensor  # (windows, context + 1)
    size: str
    seed: int
    units: int  # tokens in a batch
    unit: str = "tokens"

    @classmethod
    def load(cls, settings: RunSettings, report: Callable[[str], None]) -> TextTask:
        """The task of a run, its text tokenised if it is the first time."""
        corpus = load_corpus(settings.data, vocabulary=settings.vocabulary, report=report)
        context = SIZES[settings.size].context
        windows = Windows(corpus.train, context=context, batch=settings.batch, seed=settings.seed)
        count = min(VALIDATION_TOKENS[settings.size], len(corpus.validation)) // (context + 1)
        validation = held_out(corpus.validation, context=context, windows=max(1, count))
        units = settings.batch * context
        return cls(corpus, windows, validation, settings.size, settings.seed, units)

    def model(self) -> nn.Module:
        """The GPT, initialised from the seed alone."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return GPT(SIZES[self.size], self.corpus.vocabulary)

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
