"""A tiny GPT on made-up tokens, the same in every process, for tests of several ranks."""

import numpy as np

from deva_lab.data.shards import Corpus, Windows, held_out
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
    corpus = Corpus("made", 64, TOKENS[:-1000], TOKENS[-1000:], bytes_per_token=1.0)
    windows = Windows(corpus.train, context=CONTEXT, batch=settings.batch, seed=settings.seed)
    validation = held_out(corpus.validation, context=CONTEXT, windows=3)
    return kind(corpus, windows, validation, "tiny", settings.seed, settings.batch * CONTEXT)
