"""A text in tokens, split by document, in shards as modded-nanogpt writes them.

A shard is 256 int32 of header and then uint16 tokens. What `deva data prepare` writes, and what the
cache holds, has a note beside it, by which it shows whether it is whole; where that says that the
vocabulary needs more, tokens are uint32.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..files import file_digest, file_digests, number_of, read_record, replacing, write_record
from . import SHARD_TOKENS, Report, cache_folder, silent, was_damaged
from .text_sources import NAMES, Texts, find_texts
from .tokenizers import (
    GPT2,
    GPT2_VOCABULARY,
    Ids,
    Tokenizer,
    cut_words,
    load_tokenizer,
    parse_vocabulary,
)

FORMAT = 2  # raise it when the same text and tokenizer would give other files
ATTEMPTS = 3  # at a cache that other processes may be changing
PIECES = 128  # of documents that are encoded at once
USUAL_SPLIT = int(0.05 * 2**64)  # a share of 5 %

MAGIC, VERSION, HEADER = 20240520, 1, 256
NOTE = "shards.json"  # their vocabulary and digests
SHORT_IDS = 1 << 16  # token ids that uint16 can tell apart
AT_ONCE = 1 << 20  # tokens that are looked at at once


class Concatenated:
    """Several rows of tokens behind one another, without copying them.

    >>> Concatenated([np.arange(3), np.arange(3, 9)])[2:5]
    array([2, 3, 4])
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, where: slice, /) -> npt.NDArray[Any]:
        start, stop, stride = where.indices(len(self))
        pieces = [self._parts[0][:0]]
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            offset = end - len(part)
            pieces.append(part[max(start - offset, 0) : max(stop - offset, 0)])
        return np.concatenate(pieces)[::stride]


Tokens: TypeAlias = npt.NDArray[Any] | Concatenated


@dataclass(frozen=True)
class Corpus:
    """A text in tokens; every document stands behind an end-of-text token."""

    vocabulary: int  # the number of token ids
    train: Tokens  # memory-mapped
    validation: Tokens  # of the documents held out


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
    if (shards := check_corpus(name, vocabulary)) is not None:
        return read_shards(shards, cache)
    vocabulary, folder = parse_vocabulary(vocabulary), cache_folder(cache)
    texts = find_texts(name)(folder, report)
    content = "\n".join((str(FORMAT), texts.fingerprint(folder), str(vocabulary)))
    key = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    place = folder / f"{_plain(name)}-{vocabulary}-{key}"
    for _ in range(ATTEMPTS):
        if (corpus := _cached(place)) is not None:
            return corpus
        split = find_split(texts)
        bpe = folder / f"bpe-{vocabulary}-{key}.json"
        tokenizer = load_tokenizer(vocabulary, _side(texts, split, "train"), bpe, report)
        report(f"tokenising into {place}{was_damaged(place)}")
        with replacing(place, is_whole=lambda path: _cached(path) is not None) as partial:
            sides = {
                f"{side}.bin": _encoded(_side(texts, split, side), tokenizer)
                for side in ("train", "validation")
            }
            write_shards(partial, sides.items(), tokenizer.vocabulary)
    raise UsageError(f"the cache {place} does not hold what is written to it: check the disk")


def check_corpus(name: str, vocabulary: int | str) -> ShardFiles | None:
    """The shards that a name means, if it means some.

    Raises:
        UsageError: At once, for an unknown name, a missing file or a missing extra.
    """
    if name not in NAMES and (shards := find_shards(name)) is not None:
        _map_all(shards)
        return shards
    parse_vocabulary(vocabulary)
    find_texts(name)
    return None


def _plain(name: str) -> str:
    """The name with nothing in it that a file's name should not have.

    >>> _plain("/data/My text.jsonl.xz")
    'My-text'
    """
    return re.sub(r"[^\w-]+", "-", Path(name).name.split(".")[0]) or "text"


def find_split(documents: Iterable[str]) -> int:
    """The number below which `number_of` a document is if that is held out for validation.

    It depends on the content of a document alone, so that copies are on one side, whatever the
    order of the documents and whatever else is in the corpus. It is the usual one unless one side
    would be empty, and is moved by one document then.

    Raises:
        UsageError: if there are fewer than two different documents.
    """
    lowest, highest = 2**64, -1
    for number in map(number_of, documents):
        lowest, highest = min(lowest, number), max(highest, number)
        if lowest < USUAL_SPLIT <= highest:
            return USUAL_SPLIT
    if lowest >= highest:
        count = "one document" if highest >= 0 else "no document"
        raise UsageError(f"a corpus needs two different documents to be split, this has {count}")
    return lowest + 1 if lowest >= USUAL_SPLIT else highest


def _side(texts: Texts, split: int, side: str) -> Iterator[str]:
    """The documents for "train" or for "validation"."""
    return (text for text in texts if (number_of(text) < split) == (side == "validation"))


def _encoded(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[Ids]:
    """The tokens of documents, an end before each."""
    end = np.array([tokenizer.vocabulary - 1], dtype=np.uint32)
    pieces = ((piece, at == 0) for text in documents for at, piece in enumerate(cut_words(text)))
    while chunk := list(islice(pieces, PIECES)):
        encoded = tokenizer.encode([piece for piece, _ in chunk])
        for (_, is_first), ids in zip(chunk, encoded, strict=True):
            if is_first:
                yield end
            yield ids


def _cached(place: Path) -> Corpus | None:
    """The corpus that a folder of the cache holds, or None if it is not there or not whole."""
    try:
        shards = find_shards(str(place)) if (place / NOTE).is_file() else None
        return None if shards is None else read_shards(shards, place.parent)
    except (UsageError, OSError):
        return None


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
    corpus = load_corpus(source, vocabulary=vocabulary, cache=cache, report=report)
    if corpus.vocabulary > SHORT_IDS:
        raise UsageError(
            f"shards hold at most {SHORT_IDS:,} token ids, the vocabulary has {corpus.vocabulary:,}"
        )

    def shards() -> Iterator[tuple[str, Iterator[npt.NDArray[Any]]]]:
        number = count()
        for side, tokens in (("val", corpus.validation), ("train", corpus.train)):
            for start in range(0, len(tokens), shard_tokens):
                end = min(start + shard_tokens, len(tokens))
                parts = (tokens[at : min(at + AT_ONCE, end)] for at in range(start, end, AT_ONCE))
                name = f"{_plain(source)}_{side}_{next(number):06d}.bin"
                report(f"writing {name}")
                yield name, parts

    with replacing(out, is_whole=_holds_something) as new:
        names = write_shards(new, shards(), corpus.vocabulary)
    return [out / name for name in names]


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


# Shards -------------------------------------------------------------------------------------------


class ShardFiles(NamedTuple):
    """The shards of a corpus, by side."""

    train: list[Path]
    validation: list[Path]


def find_shards(pattern: str) -> ShardFiles | None:
    """The shards that a path, a glob or a folder means, or None if it means no .bin files.

    A file with `val` in its name is for validation; where none is meant, those beside the training
    shards are.

    Raises:
        UsageError: if shards for training or for validation are missing.
    """
    path, found = Path(pattern).expanduser(), list[Path]()
    if path.is_dir():
        found = sorted(path.glob("*.bin"))
    elif path.suffix == ".bin":
        name = glob.escape(str(path)) if path.is_file() else str(path)
        found = sorted(map(Path, glob.glob(name, recursive=True)))
        if not found:
            raise UsageError(f"there is no shard at {path}")
    if not found:
        return None
    train = [file for file in found if not _is_validation(file)]
    beside = sorted({file for path in train for file in path.parent.glob("*.bin")})
    validation = [*filter(_is_validation, found)] or [*filter(_is_validation, beside)]
    if not train or not validation:
        lacking = "*val*.bin to validate on" if train else "*train*.bin to train on"
        raise UsageError(f"at {pattern} there is no {lacking}: give a folder or a glob with both")
    return ShardFiles(train, validation)


def _is_validation(path: Path) -> bool:
    """Whether the last of the words train and val in its name is val."""
    sides = re.findall(r"(?<![a-z])(train|val)", path.name.lower())
    return sides[-1:] == ["val"]


def read_shards(files: ShardFiles, cache: Path | None = None) -> Corpus:
    """The corpus of shards: in the vocabulary that is noted beside them, else in GPT-2's.

    Raises:
        UsageError: if one of them, or the note, is damaged.
    """
    check_digests(files, cache)
    vocabulary, sides = _map_all(files)
    train, validation = (side[0] if len(side) == 1 else Concatenated(side) for side in sides)
    return Corpus(vocabulary, train, validation)


def _map_all(files: ShardFiles) -> tuple[int, list[list[npt.NDArray[Any]]]]:
    """The vocabulary of shards, and the tokens of each, by side."""
    vocabulary = int(_note(files.validation[0].parent).get("vocabulary", GPT2_VOCABULARY))
    return vocabulary, [[map_shard(path, vocabulary) for path in side] for side in files]


def check_digests(files: ShardFiles, cache: Path | None = None) -> None:
    """Raises UsageError for a shard of our own that is not as it was written."""
    paths = (*files.train, *files.validation)
    noted = {path: _note(path.parent).get("files", {}).get(path.name) for path in paths}
    own = [path for path, digest in noted.items() if digest is not None]
    found = file_digests(own, cache_folder(cache)) if own else []
    for path, digest in zip(own, found, strict=True):
        if digest != noted[path]:
            raise UsageError(
                f"{path} is damaged: its digest is not that of {NOTE} beside it; prepare the "
                "shards again, deva data prepare"
            )


def _note(folder: Path) -> dict[str, Any]:
    """What is noted beside shards, if anything is; a UsageError if it is damaged."""
    path = folder / NOTE
    if not path.is_file():
        return {}
    note = read_record(path, begins=("vocabulary",))
    if note is None or "vocabulary" not in note:
        raise UsageError(
            f"{path} is damaged: remove it if the shards are in GPT-2's vocabulary, else prepare "
            "them again"
        )
    return note


def map_shard(path: Path, vocabulary: int = GPT2_VOCABULARY) -> npt.NDArray[Any]:
    """The tokens of one shard, memory-mapped.

    Raises:
        UsageError: if the header is another's, or promises other tokens than there are.
    """
    header = np.fromfile(path, dtype="<i4", count=HEADER)
    if len(header) < HEADER or tuple(header[:2]) != (MAGIC, VERSION):
        raise UsageError(
            f"{path} is no token shard: it must begin with {MAGIC} and version {VERSION}"
        )
    dtype = _dtype(vocabulary)
    present = (path.stat().st_size - HEADER * 4) / dtype.itemsize
    if header[2] != present or header[2] < 1:
        raise UsageError(
            f"{path} is damaged: its header says {header[2]:,} tokens, there are {present:,.0f}"
        )
    return np.memmap(path, dtype=dtype, mode="r", offset=HEADER * 4)


def _dtype(vocabulary: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocabulary <= SHORT_IDS else "<u4")


def write_shards(
    folder: Path, shards: Iterable[tuple[str, Iterable[npt.NDArray[Any]]]], vocabulary: int
) -> list[str]:
    """The names of the files written to a new folder, each given with its tokens in parts."""
    folder.mkdir()
    digests: dict[str, str] = {}
    for name, parts in shards:
        header = np.zeros(HEADER, dtype="<i4")
        header[:2] = MAGIC, VERSION
        with (folder / name).open("wb") as file:
            file.write(header.tobytes())
            for part in parts:
                file.write(part.astype(_dtype(vocabulary)).tobytes())
                header[2] += len(part)
            file.seek(0)
            file.write(header.tobytes())
        digests[name] = file_digest(folder / name)
    write_record(folder / NOTE, {"vocabulary": vocabulary, "files": digests})
    return list(digests)
