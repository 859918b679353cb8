"""A text in tokens, split by document, and cached as shards by what it holds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from ..errors import UsageError
from ..files import number_of, read_record, replacing, write_record
from . import SHARD_TOKENS, Report, cache_folder, silent
from .shards import (
    AT_ONCE,
    NOTE,
    SHORT_IDS,
    Corpus,
    ShardFiles,
    bytes_a_token,
    find_shards,
    map_shard,
    read_shards,
    write_note,
    write_shard,
)
from .text_sources import NAMES, Texts, check_texts, find_texts
from .tokenizers import (
    BYTES,
    GPT2,
    ByteTokenizer,
    Ids,
    Tokenizer,
    byte_pairs,
    cut_words,
    gpt2,
    parse_vocabulary,
    train_byte_pairs,
)

FORMAT = 2  # raise it when the same text and tokenizer would give other files
ATTEMPTS = 3  # at a cache that other processes may be changing
PIECES = 128  # of documents that are encoded at once
USUAL_SPLIT = int(0.05 * 2**64)  # a share of 5 %


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
        return read_shards(name, shards, cache)
    parsed = parse_vocabulary(vocabulary)
    check_texts(name)
    folder = cache_folder(cache)
    texts = find_texts(name, folder, report)
    place = folder / f"{_plain(name)}-{parsed}-{_key(texts, parsed, folder)}"
    for _ in range(ATTEMPTS):
        corpus = _cached(name, place)
        if corpus is not None:
            return corpus
        split = find_split(texts)
        tokenizer = load_tokenizer(texts, split, parsed, cache=folder, report=report)
        report(f"tokenising into {place}{_again(place)}")
        with replacing(place, is_whole=lambda p: _cached(name, p) is not None) as partial:
            _tokenise(texts, split, tokenizer, partial)
    raise UsageError(f"the cache {place} does not hold what is written to it: check the disk")


def check_corpus(name: str, vocabulary: int | str) -> None:
    """Raise UsageError at once for an unknown name, a missing file or a missing extra."""
    if (shards := _shards(name)) is not None:
        for path in (*shards.train, *shards.validation):
            map_shard(path)
        return
    parse_vocabulary(vocabulary)
    check_texts(name)


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


def load_tokenizer(
    texts: Texts, split: int, vocabulary: int | str, *, cache: Path, report: Report = silent
) -> Tokenizer:
    """The tokenizer of that vocabulary; a BPE learns from the training documents, once."""
    if vocabulary == GPT2:
        return gpt2()
    if vocabulary == BYTES:
        return ByteTokenizer()
    path = cache / f"bpe-{vocabulary}-{_key(texts, vocabulary, cache)}.json"
    known = read_record(path)
    if known is None:
        report(f"training a byte-level BPE of {vocabulary:,} tokens{_again(path)}")
        training = (text for text in texts if number_of(text) >= split)
        known = {"bpe": train_byte_pairs(training, vocabulary=int(vocabulary))}
        write_record(path, known)
    return byte_pairs(known["bpe"])


def _again(place: Path) -> str:
    """What is said of a place of the cache whose content cannot be used."""
    return f": {place.name} was there and is damaged" if place.exists() else ""


def _cached(name: str, place: Path) -> Corpus | None:
    """The corpus that a folder of the cache holds, or None if it is not there or not whole."""
    try:
        shards = find_shards(str(place)) if (place / NOTE).is_file() else None
        return None if shards is None else read_shards(name, shards, place.parent)
    except (UsageError, OSError):
        return None


def _tokenise(texts: Texts, split: int, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the shards of both sides to a new folder, a few documents at a time."""
    sides = {
        "train.bin": (text for text in texts if number_of(text) >= split),
        "validation.bin": (text for text in texts if number_of(text) < split),
    }
    folder.mkdir()
    files = {
        name: write_shard(folder / name, _encoded(documents, tokenizer), tokenizer.vocabulary)
        for name, documents in sides.items()
    }
    held_out = map_shard(folder / "validation.bin", tokenizer.vocabulary)
    write_note(folder, tokenizer.vocabulary, bytes_a_token(tokenizer, held_out), files)


def _encoded(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[Ids]:
    """The tokens of documents, an end before each."""
    end = np.array([tokenizer.end], dtype=np.uint32)
    pieces = ((piece, at == 0) for text in documents for at, piece in enumerate(cut_words(text)))
    while chunk := list(islice(pieces, PIECES)):
        encoded = tokenizer.encode([piece for piece, _ in chunk])
        for (_, is_first), ids in zip(chunk, encoded, strict=True):
            if is_first:
                yield end
            yield ids


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
    if corpus.vocabulary > SHORT_IDS:
        raise UsageError(
            f"shards hold at most {SHORT_IDS:,} token ids, the vocabulary has {corpus.vocabulary:,}"
        )
    files: dict[str, str] = {}  # name → digest
    with replacing(out, is_whole=_holds_something) as new:
        new.mkdir()
        for side, tokens in {"val": corpus.validation, "train": corpus.train}.items():
            for start in range(0, len(tokens), shard_tokens):
                end = min(start + shard_tokens, len(tokens))
                parts = (tokens[at : min(at + AT_ONCE, end)] for at in range(start, end, AT_ONCE))
                name = f"{_plain(source)}_{side}_{len(files):06d}.bin"
                report(f"writing {name}")
                files[name] = write_shard(new / name, parts)
        write_note(new, corpus.vocabulary, corpus.bytes_per_token, files)
    return [out / name for name in files]


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()
