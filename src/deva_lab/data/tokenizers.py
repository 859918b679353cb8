"""Text to token ids and back: plain bytes, a byte-level BPE of our own, GPT-2's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError, require
from . import data_folder

if TYPE_CHECKING:
    import tokenizers

BYTES = 256
GPT2 = "gpt2"
GPT2_VOCABULARY = 50_257
GPT2_FILES = ("encoder.json", "vocab.bpe")
PIECE_CHARACTERS = 1 << 16
WORD_BORDER = re.compile(r"(?<=\S)(?=[ \n])")
TRAINING_BYTES = 64 << 20  # of text that a BPE learns from; more changes it little

Ids = npt.NDArray[np.unsignedinteger[Any]]


class ByteTokenizer:
    """The bytes of UTF-8; the end is 255, a byte that UTF-8 never uses.

    >>> ByteTokenizer().encode(["aé"])
    [array([ 97, 195, 169], dtype=uint8)]
    """

    vocabulary = BYTES
    end = 255

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The bytes of each text."""
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def count_bytes(self, ids: Ids) -> int:
        """The number of ids that are not an end."""
        return int(np.count_nonzero(ids != self.end))


class BytePairTokenizer:
    """A byte-level BPE, whose words are those of GPT-2.

    Attributes:
        inner: the tokenizer of the library.
        vocabulary: the number of ids.
        end: the last id, which stands before each document, and in none.
    """

    def __init__(self, inner: tokenizers.Tokenizer, vocabulary: int) -> None:
        self.inner, self.vocabulary, self.end = inner, vocabulary, vocabulary - 1
        self._lengths = np.zeros(vocabulary, dtype=np.int64)
        for token, index in inner.get_vocab().items():
            self._lengths[index] = len(token)  # a character stands for a byte
        self._lengths[self.end] = 0

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text; what looks like a special token is text."""
        encoded = self.inner.encode_batch_fast(list(texts))
        return [np.array(text.ids, dtype=np.uint32) for text in encoded]

    def count_bytes(self, ids: Ids) -> int:
        """The length of the text of ids in UTF-8."""
        return int(self._lengths[ids].sum())


Tokenizer = ByteTokenizer | BytePairTokenizer


def parse_vocabulary(vocabulary: int | str) -> int | str:
    """The vocabulary as a size or as "gpt2".

    >>> parse_vocabulary("4096"), parse_vocabulary(256), parse_vocabulary("gpt2")
    (4096, 256, 'gpt2')

    Raises:
        UsageError: If there is none such, or it cannot be had here; nothing is downloaded.
    """
    if vocabulary == GPT2:
        require("tokenizers")
        gpt2_folder()
        return GPT2
    if isinstance(vocabulary, str) and not vocabulary.isdecimal():
        raise UsageError(
            f"unknown vocabulary {vocabulary!r}: it is {GPT2!r} or a number, from {BYTES}"
        )
    if int(vocabulary) < BYTES:
        raise UsageError(
            f"vocabulary must be at least {BYTES}, which is plain bytes, got {vocabulary}"
        )
    if int(vocabulary) > BYTES:
        require("tokenizers")
    return int(vocabulary)


def cut_words(text: str, *, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """The text in pieces whose tokens are, one behind the other, those of the text.

    A piece ends where a space or a new line follows something seen, which is where every tokenizer
    here ends a word, so that a long document need not be encoded as a whole.

    >>> list(cut_words("one two  three", size=2))
    ['one', ' two', '  three']
    """
    start = 0
    while start + size < len(text):
        border = WORD_BORDER.search(text, start + size)
        if border is None:
            break
        yield text[start : border.start()]
        start = border.start()
    yield text[start:]


# A BPE of our own ---------------------------------------------------------------------------------


def train_byte_pairs(texts: Iterable[str], *, vocabulary: int) -> str:
    """A byte-level BPE of at most that many tokens, the end included, serialised.

    It depends on the texts alone. Where they are short it has fewer tokens.
    """
    from tokenizers import models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner = _byte_level(models.BPE())
    pieces = (piece for text in texts for piece in cut_words(text))
    inner.train_from_iterator(_first(pieces, size=TRAINING_BYTES), trainer)
    return str(inner.to_str())


def byte_pairs(serialised: str) -> BytePairTokenizer:
    """The tokenizer that `train_byte_pairs` has returned; its end is behind the last token."""
    import tokenizers

    inner = tokenizers.Tokenizer.from_str(serialised)
    return BytePairTokenizer(inner, inner.get_vocab_size() + 1)


def _byte_level(model: tokenizers.models.BPE) -> tokenizers.Tokenizer:
    import tokenizers

    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    return inner


def _first(texts: Iterable[str], *, size: int) -> Iterator[str]:
    for text in texts:
        if size <= 0:
            return
        size -= len(text)
        yield text


# GPT-2's ------------------------------------------------------------------------------------------


def gpt2_folder() -> Path | None:
    """The folder with GPT-2's files that DEVA_GPT2_BPE names or DEVA_DATA holds, if any."""
    named, data = os.environ.get("DEVA_GPT2_BPE"), data_folder()
    folder = Path(named).expanduser() if named else data / "gpt2-bpe" if data else None
    missing = [name for name in GPT2_FILES if folder and not (folder / name).is_file()]
    if named and missing:
        raise UsageError(f"DEVA_GPT2_BPE names {folder}, where there is no {missing[0]}")
    return None if missing else folder


def gpt2() -> BytePairTokenizer:
    """GPT-2's tokenizer, from local files where there are some, else from the hub."""
    require("tokenizers")
    folder = gpt2_folder()
    return _local_gpt2(folder) if folder else _downloaded_gpt2()


@lru_cache(maxsize=1)
def _local_gpt2(folder: Path) -> BytePairTokenizer:
    from tokenizers import models

    vocabulary, merges = (folder / name for name in GPT2_FILES)
    try:
        inner = _byte_level(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises no narrower one
        raise UsageError(f"{vocabulary} and {merges} cannot be read: {error}") from error
    if inner.get_vocab_size() != GPT2_VOCABULARY:
        raise UsageError(f"{vocabulary} is not GPT-2's: that has {GPT2_VOCABULARY:,} tokens")
    return BytePairTokenizer(inner, GPT2_VOCABULARY)


def _downloaded_gpt2() -> BytePairTokenizer:
    import tokenizers

    try:
        parts = json.loads(tokenizers.Tokenizer.from_pretrained(GPT2).to_str())
    except Exception as error:  # the library raises no narrower one
        raise UsageError(
            f"GPT-2's vocabulary cannot be downloaded ({type(error).__name__}): set DEVA_GPT2_BPE "
            f"to a folder with its {' and '.join(GPT2_FILES)} "
            "(from https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/)"
        ) from error
    parts["added_tokens"] = []  # what looks like a special token is text
    return BytePairTokenizer(tokenizers.Tokenizer.from_str(json.dumps(parts)), GPT2_VOCABULARY)
