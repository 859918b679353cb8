"""Text to token ids and back: plain bytes, a byte-level BPE of our own, GPT-2's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ..errors import UsageError
from ..files import read_record, write_record
from . import Report, data_folder, fetching, silent, was_damaged

BYTES = 256
GPT2 = "gpt2"
GPT2_VOCABULARY = 50_257
GPT2_FILES = ("encoder.json", "vocab.bpe")
GPT2_PLACE = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
PIECE_CHARACTERS = 1 << 16
WORD_BORDER = re.compile(r"(?<=\S)(?=[ \n])")
TRAINING_BYTES = 64 << 20  # of text that a BPE learns from; more changes it little

Ids = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Tokenizer:
    """Plain bytes of UTF-8, or a byte-level BPE whose words are those of GPT-2.

    The last id stands before each document, and in none: UTF-8 never uses the byte 255.

    >>> Tokenizer(BYTES).encode(["aé"])
    [array([ 97, 195, 169], dtype=uint8)]
    """

    vocabulary: int  # the number of ids
    byte_pairs: tokenizers.Tokenizer | None = None  # of the library; None for plain bytes

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text; what looks like a special token is text."""
        if self.byte_pairs is None:
            return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
        encoded = self.byte_pairs.encode_batch_fast(list(texts))
        return [np.array(text.ids, dtype=np.uint32) for text in encoded]


def parse_vocabulary(vocabulary: int | str) -> int | str:
    """The vocabulary as a size or as "gpt2".

    >>> parse_vocabulary("4096"), parse_vocabulary(256), parse_vocabulary("gpt2")
    (4096, 256, 'gpt2')

    Raises:
        UsageError: If there is none such, or it cannot be had here; nothing is downloaded.
    """
    if vocabulary == GPT2:
        gpt2_folder()
    elif not str(vocabulary).isdecimal() or int(vocabulary) < BYTES:
        raise UsageError(
            f"--vocabulary must be at least {BYTES}, which is plain bytes, or {GPT2!r}, "
            f"got {vocabulary!r}"
        )
    return vocabulary if vocabulary == GPT2 else int(vocabulary)


def load_tokenizer(
    vocabulary: int | str, training: Iterable[str], path: Path, report: Report = silent
) -> Tokenizer:
    """The tokenizer of that vocabulary; a BPE learns from the training texts, and is kept there."""
    if vocabulary == GPT2:
        return gpt2()
    if vocabulary == BYTES:
        return Tokenizer(BYTES)
    known = read_record(path)
    if known is None:
        report(f"training a byte-level BPE of {vocabulary:,} tokens{was_damaged(path)}")
        known = {"bpe": train_byte_pairs(training, int(vocabulary)).to_str()}
        write_record(path, known)
    byte_pairs = tokenizers.Tokenizer.from_str(known["bpe"])
    return Tokenizer(byte_pairs.get_vocab_size() + 1, byte_pairs)  # its end is behind the others


def cut_words(text: str, *, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """The text in pieces whose tokens are, one behind the other, those of the text.

    A piece ends where a space or a new line follows something seen, which is where every tokenizer
    here ends a word, so that a long document need not be encoded as a whole.

    >>> list(cut_words("one two  three", size=2))
    ['one', ' two', '  three']
    """
    start = 0
    while border := WORD_BORDER.search(text, start + size):
        yield text[start : border.start()]
        start = border.start()
    yield text[start:]


def train_byte_pairs(texts: Iterable[str], vocabulary: int) -> tokenizers.Tokenizer:
    """A byte-level BPE of at most that many tokens, with an end that is not in it.

    It depends on the texts alone. Where they are short it has fewer tokens.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def first_pieces() -> Iterator[str]:
        left = TRAINING_BYTES
        for piece in (piece for text in texts for piece in cut_words(text)):
            if left <= 0:
                return
            left -= len(piece)
            yield piece

    byte_pairs = _byte_level(models.BPE())
    byte_pairs.train_from_iterator(first_pieces(), trainer)
    return byte_pairs


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    byte_pairs = tokenizers.Tokenizer(model)
    byte_pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_pairs.decoder = decoders.ByteLevel()
    return byte_pairs


def gpt2_folder() -> Path | None:
    """The folder with GPT-2's files that DEVA_GPT2_BPE names or DEVA_DATA holds, if any."""
    named, data = os.environ.get("DEVA_GPT2_BPE"), data_folder()
    folder = Path(named).expanduser() if named else data / "gpt2-bpe" if data else None
    missing = [name for name in GPT2_FILES if folder and not (folder / name).is_file()]
    if named and missing:
        raise UsageError(f"DEVA_GPT2_BPE names {folder}, where there is no {missing[0]}")
    return None if missing else folder


def gpt2() -> Tokenizer:
    """GPT-2's tokenizer, from local files where there are some, else from the hub."""
    if (folder := gpt2_folder()) is None:
        remedy = f"set DEVA_GPT2_BPE to a folder with its {' and '.join(GPT2_FILES)} ({GPT2_PLACE})"
        with fetching("GPT-2's vocabulary", remedy):
            parts = json.loads(tokenizers.Tokenizer.from_pretrained(GPT2).to_str())
        parts["added_tokens"] = []  # what looks like a special token is text
        return Tokenizer(GPT2_VOCABULARY, tokenizers.Tokenizer.from_str(json.dumps(parts)))
    vocabulary, merges = (str(folder / name) for name in GPT2_FILES)
    try:
        byte_pairs = _byte_level(models.BPE.from_file(vocabulary, merges))
    except Exception as error:  # the library raises no narrower one
        raise UsageError(f"{vocabulary} and {merges} cannot be read: {error}") from error
    if byte_pairs.get_vocab_size() != GPT2_VOCABULARY:
        raise UsageError(f"{vocabulary} is not GPT-2's: that has {GPT2_VOCABULARY:,} tokens")
    return Tokenizer(GPT2_VOCABULARY, byte_pairs)
