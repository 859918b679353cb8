"""A text in tokens, split by document, memory-mapped and cached by what it holds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ..atomic import replacing_folder
from ..digests import file_digests, hasher, number_of, read_sealed, write_sealed
from ..errors import UsageError
from . import SHARD_TOKENS, Report, cache_folder, silent
from .documents import Texts
from .shards import (
    ShardFiles,
    Tokens,
    check_digests,
    describe,
    find_shards,
    map_shards,
    write_description,
    write_shard,
)
from .text_sources import NAMES, find_source
from .tokenizers import (
    BYTES,
    GPT2,
    ByteTokenizer,
    Ids,
    Tokenizer,
    byte_pairs,
    check_vocabulary,
    cut_words,
    gpt2,
    parse_vocabulary,
    train_byte_pairs,
)

FORMAT = 1  # raise it when the same text and tokenizer would give other files
ATTEMPTS = 3  # at a cache that other processes may be changing
CHUNK_CHARACTERS = 1 << 20
SIDES = ("train", "validation")


@dataclass(frozen=True)
class Corpus:
    """A text in tokens; every document stands behind an end-of-text token.

    Attributes:
        name: what the user called it.
        vocabulary: the number of token ids.
        train: the tokens to train on, memory-mapped.
        validation: the tokens of the documents held out.
        bytes_per_token: of the validation text; nats a token ÷ (it · ln 2) are bits a byte.
    """

    name: str
    vocabulary: int
    train: Tokens
    validation: Tokens
    bytes_per_token: float


def load_corpus(
    name: str,
    *,
    vocabulary: int | str = 4096,
    cache: Path | None = None,
    report: Report = silent,
) -> Corpus:
    """The corpus of that name or path, tokenised now or before.

    Args:
        name: one of `NAMES` (the hub's also with a number of documents, `fineweb:50000`), or the
            path of a text, a folder, an archive, or modded-nanogpt shards, which keep their own
            vocabulary.
        vocabulary: the size of a byte-level BPE trained on the training documents; 256 for plain
            bytes; or "gpt2".
        cache: where tokens are kept; by default DEVA_CACHE or deva in the user's cache.
        report: told what takes time.

    Raises:
        UsageError: if there is no such text, it cannot be read, or it is too short to be split.
    """
    if (shards := _shards(name)) is not None:
        check_digests(shards, cache)
        ids, bytes_per_token = describe(shards)
        sides = map_shards(shards.train), map_shards(shards.validation)
        return Corpus(name, ids, *sides, bytes_per_token)
    parsed = parse_vocabulary(vocabulary)
    source = find_source(name)
    source.check()
    folder = cache_folder(cache)
    texts = source.fetch(folder, report)
    key = _key(texts, parsed, folder)
    place = folder / f"{_plain(source.name)}-{parsed}-{key}"
    entry = _entry(place, texts, parsed, report)
    train, validation = (
        np.memmap(place / f"{side}.bin", dtype=entry.dtype, mode="r") for side in SIDES
    )
    return Corpus(name, entry.vocabulary, train, validation, entry.bytes_per_token)


def check_corpus(name: str, vocabulary: int | str) -> None:
    """Raise UsageError at once for an unknown name, a missing file or a missing extra."""
    if (shards := _shards(name)) is not None:
        map_shards(shards.all)
        return
    check_vocabulary(vocabulary)
    find_source(name).check()


def _shards(name: str) -> ShardFiles | None:
    return None if name in NAMES else find_shards(name)


def _key(texts: Texts, vocabulary: int | str, folder: Path) -> str:
    content = "\n".join((str(FORMAT), texts.fingerprint(folder), str(vocabulary)))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _plain(name: str) -> str:
    """The name with nothing in it that a file's name should not have.

    >>> _plain("/data/My text.jsonl.xz")
    'My-text'
    """
    return re.sub(r"[^\w-]+", "-", Path(name).name.split(".")[0]) or "text"


# Which documents are for validation ---------------------------------------------------------------

_USUAL = int(0.05 * 2**64)  # a share of 5 %


@dataclass(frozen=True)
class Split:
    """The rule that a document is for validation if its hash is below a threshold.

    The hash is that of the content alone, so that copies of a document are on one side, whatever
    the order of the documents and whatever else is in the corpus.
    """

    threshold: int = _USUAL

    def is_validation(self, text: str) -> bool:
        """Whether a document is held out."""
        return number_of(text) < self.threshold


def find_split(documents: Iterable[str]) -> Split:
    """The usual split, moved only where one side would be empty: then by one document.

    Raises:
        UsageError: if there are fewer than two different documents.
    """
    lowest, highest = 2**64, -1
    for number in map(number_of, documents):
        lowest, highest = min(lowest, number), max(highest, number)
        if lowest < _USUAL <= highest:
            return Split()
    if lowest >= highest:
        count = "one document" if highest >= 0 else "no document"
        raise UsageError(f"a corpus needs two different documents to be split, this has {count}")
    return Split(lowest + 1 if lowest >= _USUAL else highest)


# Tokens in the cache: a folder each, checked when it is opened -----------------------------------


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


def read_entry(place: Path) -> Entry | None:
    """What the folder holds if it is whole, or None."""
    try:
        files = [place / f"{side}.bin" for side in SIDES]
        found = [digest.hex() for digest in file_digests(files, place.parent)]
    except OSError:
        return None
    note = read_sealed(place / "entry.json")
    entry = None if note is None else Entry(**json.loads(note))
    return entry if entry and found == entry.digests else None


def _entry(place: Path, texts: Texts, vocabulary: int | str, report: Report) -> Entry:
    """What the cache holds at that place, after tokenising where it holds nothing whole."""
    for _ in range(ATTEMPTS):
        entry = read_entry(place)
        if entry is not None:
            return entry
        split = find_split(texts)
        tokenizer = load_tokenizer(texts, split, vocabulary, cache=place.parent, report=report)
        report(f"tokenising into {place}{_again(place)}")
        with replacing_folder(place, is_whole=lambda p: read_entry(p) is not None) as partial:
            write_entry(partial, texts, split, tokenizer)
    raise UsageError(f"the cache {place} does not hold what is written to it: check the disk")


def load_tokenizer(
    texts: Texts, split: Split, vocabulary: int | str, *, cache: Path, report: Report = silent
) -> Tokenizer:
    """The tokenizer of that vocabulary; a BPE learns from the training documents, once."""
    if vocabulary == GPT2:
        return gpt2()
    if vocabulary == BYTES:
        return ByteTokenizer()
    path = cache / f"bpe-{vocabulary}-{_key(texts, vocabulary, cache)}.json"
    known = read_sealed(path)
    if known is None:
        report(f"training a byte-level BPE of {vocabulary:,} tokens{_again(path)}")
        training = (text for text in texts if not split.is_validation(text))
        known = train_byte_pairs(training, vocabulary=int(vocabulary))
        write_sealed(path, known)
    return byte_pairs(known)


def _again(place: Path) -> str:
    """What is said of a place of the cache whose content cannot be used."""
    return f": {place.name} was there and is damaged" if place.exists() else ""


def write_entry(folder: Path, texts: Iterable[str], split: Split, tokenizer: Tokenizer) -> None:
    """Tokenise the texts into the folder, a chunk at a time."""
    dtype = "<u2" if tokenizer.vocabulary <= 1 << 16 else "<u4"
    with ExitStack() as stack:
        sides = [
            _Side(stack.enter_context((folder / f"{side}.bin").open("wb")), dtype) for side in SIDES
        ]
        train, validation = sides
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
        digests=[side.digest.hexdigest() for side in sides],
    )
    write_sealed(folder / "entry.json", json.dumps(asdict(entry)))


class _Side:
    """A file of tokens, with its length, its digest and the bytes of text it stands for."""

    def __init__(self, file: IO[bytes], dtype: str) -> None:
        self._file, self._dtype = file, dtype
        self.tokens, self.bytes = 0, 0
        self.digest = hasher()

    def write(self, ids: Ids) -> None:
        """Append tokens."""
        data = ids.astype(self._dtype).tobytes()
        self._file.write(data)
        self.digest.update(data)
        self.tokens += len(ids)


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


# Shards -------------------------------------------------------------------------------------------


def prepare(
    source: str,
    out: Path,
    vocabulary: int | str = GPT2,
    shard_tokens: int = SHARD_TOKENS,
    report: Report = silent,
    *,
    cache: Path | None = None,
) -> list[Path]:
    """The shards written to `out` for modded-nanogpt: validation first, then training.

    Raises:
        UsageError: also if the vocabulary does not fit uint16, or `out` is not empty.
    """
    if shard_tokens < 1:
        raise UsageError(f"shard_tokens must be at least 1, got {shard_tokens}")
    if _holds_something(out):
        raise UsageError(f"{out} is there and not empty: give a new folder")
    check_corpus(source, vocabulary)
    corpus = load_corpus(source, vocabulary=vocabulary, cache=cache, report=report)
    if corpus.vocabulary > 1 << 16:
        raise UsageError(
            f"shards hold at most {1 << 16:,} token ids, the vocabulary has {corpus.vocabulary:,}"
        )
    files: dict[str, str] = {}  # name → digest
    with replacing_folder(out, is_whole=_holds_something) as new:
        for side, tokens in {"val": corpus.validation, "train": corpus.train}.items():
            for start in range(0, len(tokens), shard_tokens):
                name = f"{_plain(source)}_{side}_{len(files):06d}.bin"
                report(f"writing {name}")
                files[name] = write_shard(new / name, tokens[start : start + shard_tokens])
        write_description(new, corpus.vocabulary, corpus.bytes_per_token, files)
    return [out / name for name in files]


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()
