"""Text to token ids and back: plain bytes, a byte-level BPE of our own, GPT-2's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..extras import require
from .folder import data_folder

if TYPE_CHECKING:
    import tiktoken

BYTES = 256
GPT2 = "gpt2"
GPT2_VOCABULARY = 50_257
GPT2_END = 50_256
# What GPT-2 takes for a word: contractions, letters, digits, other marks, space.
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PIECE_CHARACTERS = 1 << 16
WORD_BORDER = re.compile(r"(?<=\S)(?=[ \n])")
TRAINING_BYTES = 64 << 20  # of text that a BPE learns from; more changes it little

Ids = npt.NDArray[np.unsignedinteger[Any]]


class Tokenizer(Protocol):
    """Token ids of texts.

    Attributes:
        vocabulary: the number of ids.
        end: the id that stands before each document, and in none.
    """

    vocabulary: int
    end: int

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without the ends."""

    def count_bytes(self, ids: Ids) -> int:
        """The length of the text of ids in UTF-8."""


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

    def decode(self, ids: Iterable[int]) -> str:
        """The text of bytes."""
        return bytes(i for i in ids if i != self.end).decode("utf-8", "replace")

    def count_bytes(self, ids: Ids) -> int:
        """The number of ids that are not an end."""
        return int(np.count_nonzero(ids != self.end))


class BytePairTokenizer:
    """A byte-level BPE; the end is the id behind the last token.

    Args:
        serialised: what `train_byte_pairs` has returned.
    """

    def __init__(self, serialised: str) -> None:
        require("tokenizers")
        import tokenizers

        self._inner = tokenizers.Tokenizer.from_str(serialised)
        self.end = self._inner.get_vocab_size()
        self.vocabulary = self.end + 1
        self._lengths = np.zeros(self.vocabulary, dtype=np.int64)
        for token, index in self._inner.get_vocab().items():
            self._lengths[index] = len(token)  # a character stands for a byte

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        encoded = self._inner.encode_batch_fast(list(texts))
        return [np.array(text.ids, dtype=np.uint32) for text in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without the ends."""
        return str(self._inner.decode([int(i) for i in ids if i != self.end]))

    def count_bytes(self, ids: Ids) -> int:
        """The length of the text of ids in UTF-8."""
        return int(self._lengths[ids].sum())


class Gpt2Tokenizer:
    """GPT-2's vocabulary through tiktoken, from local files where there are some."""

    vocabulary = GPT2_VOCABULARY
    end = GPT2_END

    def __init__(self) -> None:
        require("tiktoken")
        folder = gpt2_folder()
        self._inner = _gpt2_encoding(folder) if folder else _downloaded_gpt2()
        self._lengths = np.zeros(self.vocabulary, dtype=np.int64)
        for index in range(self.end):
            self._lengths[index] = len(self._inner.decode_single_token_bytes(index))

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text; what looks like a special token is text."""
        encoded = self._inner.encode_ordinary_batch(list(texts), num_threads=os.cpu_count() or 1)
        return [np.array(ids, dtype=np.uint32) for ids in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without the ends."""
        return self._inner.decode([int(i) for i in ids if i != self.end])

    def count_bytes(self, ids: Ids) -> int:
        """The length of the text of ids in UTF-8."""
        return int(self._lengths[ids].sum())


def parse_vocabulary(vocabulary: int | str) -> int | str:
    """The vocabulary as a size or as "gpt2", or a UsageError.

    >>> parse_vocabulary("4096"), parse_vocabulary(256), parse_vocabulary("gpt2")
    (4096, 256, 'gpt2')
    """
    if isinstance(vocabulary, str) and not vocabulary.lstrip("-").isdecimal():
        if vocabulary != GPT2:
            raise UsageError(
                f"unknown vocabulary {vocabulary!r}: it is {GPT2!r} or a number, from {BYTES}"
            )
        return GPT2
    if int(vocabulary) < BYTES:
        raise UsageError(
            f"vocabulary must be at least {BYTES}, which is plain bytes, got {vocabulary}"
        )
    return int(vocabulary)


def check_vocabulary(vocabulary: int | str) -> None:
    """Raise UsageError where such a tokenizer cannot be had; nothing is downloaded."""
    parsed = parse_vocabulary(vocabulary)
    if parsed == GPT2:
        require("tiktoken")
        gpt2_folder()
    elif parsed != BYTES:
        require("tokenizers")


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


def train_byte_pairs(texts: Iterable[str], *, vocabulary: int) -> str:
    """A byte-level BPE of at most that many tokens, the end included, serialised.

    It depends on the texts alone. Where they are short it has fewer tokens.
    """
    require("tokenizers")
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in cut_words(text))
    inner.train_from_iterator(_first(pieces, size=TRAINING_BYTES), trainer)
    return str(inner.to_str())


def _first(texts: Iterable[str], *, size: int) -> Iterator[str]:
    for text in texts:
        if size <= 0:
            return
        size -= len(text)
        yield text


def gpt2_folder() -> Path | None:
    """The folder with encoder.json that DEVA_GPT2_BPE names or DEVA_DATA holds, if there is one."""
    named, data = os.environ.get("DEVA_GPT2_BPE"), data_folder()
    if named:
        folder = Path(named).expanduser()
        if not (folder / "encoder.json").is_file():
            raise UsageError(f"DEVA_GPT2_BPE names {folder}, where there is no encoder.json")
        return folder
    beside = data / "gpt2-bpe" if data else None
    return beside if beside and (beside / "encoder.json").is_file() else None


@lru_cache(maxsize=1)
def _gpt2_encoding(folder: Path) -> tiktoken.Encoding:
    import tiktoken

    # Token ids follow the order of the merges, so vocab.bpe would add nothing to encoder.json.
    to_byte = {character: byte for byte, character in enumerate(_byte_characters())}
    ranks = _read_ranks(folder / "encoder.json")
    return tiktoken.Encoding(
        name=GPT2,
        pat_str=GPT2_WORDS,
        mergeable_ranks={bytes(to_byte[c] for c in token): i for token, i in ranks.items()},
        special_tokens={"<|endoftext|>": GPT2_END},
        explicit_n_vocab=GPT2_VOCABULARY,
    )


def _read_ranks(path: Path) -> dict[str, int]:
    try:
        ranks = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if len(ranks) != GPT2_VOCABULARY or ranks.pop("<|endoftext|>", None) != GPT2_END:
        raise UsageError(f"{path} is not GPT-2's: that has {GPT2_VOCABULARY:,} tokens")
    return ranks


def _byte_characters() -> list[str]:
    """The character that stands for each byte in GPT-2's files: itself, if it can be seen."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(256 + hidden.index(b)) for b in range(256)]


def _downloaded_gpt2() -> tiktoken.Encoding:
    import tiktoken

    try:
        return tiktoken.get_encoding(GPT2)
    except (OSError, ValueError) as error:
        raise UsageError(
            "GPT-2's vocabulary cannot be downloaded "
            f"({type(error).__name__}): set DEVA_GPT2_BPE to a folder with its encoder.json "
            "(https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/encoder.json)"
        ) from error
