"""A tiny GPT on made-up tokens, the same in every process, for tests of several ranks."""

import numpy as np

from deva_lab.data.corpus import Corpus
from deva_lab.language import TextTask
from deva_lab.models.gpt import SIZES
from deva_lab.run.settings import RunSettings

CONTEXT = SIZES["tiny"].context
TOKENS = (np.arange(20_000) ** 2 // 7 % 61).astype(np.uint16)


def settings_of(optimizer: str, **changes: object) -> RunSettings:
    settings = RunSettings(
        task="gpt",
        size="tiny",
        data="made",
        optimizer=optimizer,
        lr=0.01,
        seed=0,
        steps=8,
        batch=8,
        vocabulary=64,
        accumulate=2,
        clip=1.0,
        evaluate_every=4,
    )
    return settings.changed(**changes)


def task_of(settings: RunSettings, kind: type[TextTask] = TextTask) -> TextTask:
    """The task; three windows of validation, so that the last of four ranks has none."""
    held_out = 3 * (CONTEXT + 1)
    corpus = Corpus(64, TOKENS[:-held_out], TOKENS[-held_out:])
    return kind(corpus, "tiny", seed=settings.seed, batch=settings.batch)
