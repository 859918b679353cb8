"""Tokenised texts on disk: a folder each, checked when opened and memory-mapped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..digests import file_digest, hasher, read_sealed, write_sealed
from ..errors import UsageError
from .split import Split
from .tokenizers import Ids, Tokenizer, cut_words

FORMAT = 1  # raise it when the same text and tokenizer would give other files
CHUNK_CHARACTERS = 1 << 20
SIDES = ("train", "validation")


@dataclass(frozen=True)
class Entry:
    """What a folder of the cache says of its token files.

    Attributes:
        vocabulary: the number of token ids.
        dtype: of the files, in numpy's words.
        bytes_per_token: of the validation text.
        digests: of train.bin and validation.bin.
    """

    vocabulary: int
    dtype: str
    bytes_per_token: float
    digests: list[str]


def cache_folder(cache: Path | None) -> Path:
    """The folder given, or that of DEVA_CACHE, or deva in the user's cache; made if need be."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = (cache or Path(os.environ.get("DEVA_CACHE") or Path(home) / "deva")).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the cache {folder} cannot be made ({error.strerror}): set DEVA_CACHE to another"
        ) from error
    return folder


def read_entry(folder: Path) -> Entry | None:
    """What the folder holds if it is whole, or None."""
    try:
        found = [file_digest(folder / f"{side}.bin").hex() for side in SIDES]
    except OSError:
        return None
    note = read_sealed(folder / "entry.json")
    entry = None if note is None else Entry(**json.loads(note))
    return entry if entry and found == entry.digests else None


def map_tokens(folder: Path, entry: Entry, side: str) -> npt.NDArray[Any]:
    """The memory map of one side's tokens."""
    return np.memmap(folder / f"{side}.bin", dtype=entry.dtype, mode="r")


def write_entry(folder: Path, texts: Iterable[str], split: Split, tokenizer: Tokenizer) -> None:
    """Tokenise the texts into the folder, a chunk at a time."""
    dtype = "<u2" if tokenizer.vocabulary <= 1 << 16 else "<u4"
    with (
        _Writer(folder / "train.bin", dtype) as train,
        _Writer(folder / "validation.bin", dtype) as validation,
    ):
        for chunk in _chunks(_pieces(texts, split)):
            encoded = tokenizer.encode([piece.text for piece in chunk])
            for piece, ids in zip(chunk, encoded, strict=True):
                side = validation if piece.is_validation else train
                if piece.is_first:
                    side.write(np.array([tokenizer.end], dtype=np.uint32))
                side.write(ids)
                side.bytes += len(piece.text.encode())
    entry = Entry(
        vocabulary=tokenizer.vocabulary,
        dtype=dtype,
        bytes_per_token=validation.bytes / validation.tokens,
        digests=[train.digest.hexdigest(), validation.digest.hexdigest()],
    )
    write_sealed(folder / "entry.json", json.dumps(asdict(entry)))


class _Writer:
    """A file of tokens, with its length, its digest and the bytes of text it stands for."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._file, self._dtype = path.open("wb"), dtype
        self.tokens, self.bytes = 0, 0
        self.digest = hasher()

    def write(self, ids: Ids) -> None:
        """Append tokens."""
        data = ids.astype(self._dtype).tobytes()
        self._file.write(data)
        self.digest.update(data)
        self.tokens += len(ids)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


@dataclass(frozen=True)
class _Piece:
    """A document or a part of one."""

    text: str
    is_first: bool
    is_validation: bool


def _pieces(texts: Iterable[str], split: Split) -> Iterator[_Piece]:
    for text in texts:
        held_out = split.is_validation(text)
        for number, piece in enumerate(cut_words(text)):
            yield _Piece(piece, is_first=number == 0, is_validation=held_out)


def _chunks(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    chunk: list[_Piece] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece.text)
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
