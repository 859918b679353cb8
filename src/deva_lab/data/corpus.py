"""A text in tokens, split by document, memory-mapped and cached by what it holds."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from ..atomic import replacing_folder
from ..digests import read_sealed, write_sealed
from ..errors import UsageError
from . import SHARD_TOKENS
from .documents import Texts
from .shards import (
    ShardFiles,
    check_digests,
    describe,
    find_shards,
    map_shards,
    write_description,
    write_shard,
)
from .split import Split, find_split
from .text_sources import NAMES, Report, find_source
from .token_cache import (
    FORMAT,
    Entry,
    cache_folder,
    map_tokens,
    read_entry,
    write_entry,
)
from .tokenizers import (
    BYTES,
    GPT2,
    BytePairTokenizer,
    ByteTokenizer,
    Gpt2Tokenizer,
    Tokenizer,
    check_vocabulary,
    parse_vocabulary,
    train_byte_pairs,
)
from .tokens import Tokens

ATTEMPTS = 3  # at a cache that other processes may be changing


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


def silent(message: str) -> None:
    """Nothing: for those who want no report."""


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
    shards = _shards(name)
    if shards is not None:
        return _load_shards(name, shards)
    parsed = parse_vocabulary(vocabulary)
    source = find_source(name)
    source.check()
    folder = cache_folder(cache)
    texts = source.fetch(folder, report)
    key = _key(texts.fingerprint, str(parsed))
    place = folder / f"{_plain(source.name)}-{parsed}-{key}"
    entry = _entry(place, texts, parsed, report)
    return Corpus(
        name=name,
        vocabulary=entry.vocabulary,
        train=map_tokens(place, entry, "train"),
        validation=map_tokens(place, entry, "validation"),
        bytes_per_token=entry.bytes_per_token,
    )


def check_corpus(name: str, vocabulary: int | str) -> None:
    """Raise UsageError at once for an unknown name, a missing file or a missing extra."""
    shards = _shards(name)
    if shards is not None:
        map_shards(shards.all)
        return
    check_vocabulary(vocabulary)
    find_source(name).check()


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
    if out.exists() and not _is_empty(out):
        raise UsageError(f"{out} is there and not empty: give a new folder")
    check_corpus(source, vocabulary)
    corpus = load_corpus(source, vocabulary=vocabulary, cache=cache, report=report)
    if corpus.vocabulary > 1 << 16:
        raise UsageError(
            f"shards hold at most {1 << 16:,} token ids, the vocabulary has {corpus.vocabulary:,}"
        )
    with replacing_folder(out, is_whole=lambda path: path.exists() and not _is_empty(path)) as new:
        files = _write_shards(new, _plain(source), corpus, shard_tokens, report)
        write_description(
            new,
            vocabulary=corpus.vocabulary,
            bytes_per_token=corpus.bytes_per_token,
            files=files,
        )
    return [out / name for name in files]


def _write_shards(
    folder: Path, stem: str, corpus: Corpus, shard_tokens: int, report: Report
) -> dict[str, str]:
    """The names of the shards, each with its digest."""
    files: dict[str, str] = {}
    for side, tokens in {"val": corpus.validation, "train": corpus.train}.items():
        for start in range(0, len(tokens), shard_tokens):
            name = f"{stem}_{side}_{len(files):06d}.bin"
            report(f"writing {name}")
            files[name] = write_shard(folder / name, tokens[start : start + shard_tokens])
    return files


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def load_tokenizer(
    texts: Texts, split: Split, vocabulary: int | str, *, cache: Path, report: Report = silent
) -> Tokenizer:
    """The tokenizer of that vocabulary; a BPE learns from the training documents, once."""
    if vocabulary == GPT2:
        return Gpt2Tokenizer()
    if vocabulary == BYTES:
        return ByteTokenizer()
    path = cache / f"bpe-{vocabulary}-{_key(texts.fingerprint, str(vocabulary))}.json"
    known = read_sealed(path)
    if known is None:
        report(f"training a byte-level BPE of {vocabulary:,} tokens{_again(path)}")
        training = (text for text in texts if not split.is_validation(text))
        known = train_byte_pairs(training, vocabulary=int(vocabulary))
        write_sealed(path, known)
    return BytePairTokenizer(known)


def _shards(name: str) -> ShardFiles | None:
    return None if name in NAMES else find_shards(name)


def _load_shards(name: str, files: ShardFiles) -> Corpus:
    check_digests(files)
    vocabulary, bytes_per_token = describe(files)
    return Corpus(
        name=name,
        vocabulary=vocabulary,
        train=map_shards(files.train),
        validation=map_shards(files.validation),
        bytes_per_token=bytes_per_token,
    )


def _entry(place: Path, texts: Texts, vocabulary: int | str, report: Report) -> Entry:
    """What the cache holds at that place, after tokenising where it holds nothing whole."""
    for _ in range(ATTEMPTS):
        entry = read_entry(place)
        if entry is not None:
            return entry
        split = find_split(texts)
        tokenizer = load_tokenizer(texts, split, vocabulary, cache=place.parent, report=report)
        report(f"tokenising into {place}{_again(place)}")
        with replacing_folder(place, is_whole=_is_whole) as partial:
            write_entry(partial, texts, split, tokenizer)
    raise UsageError(f"the cache {place} does not hold what is written to it: check the disk")


def _again(place: Path) -> str:
    """What is said of a place of the cache whose content cannot be used."""
    return f": {place.name} was there and is damaged" if place.exists() else ""


def _is_whole(place: Path) -> bool:
    return read_entry(place) is not None


def _key(*parts: str) -> str:
    content = "\n".join((str(FORMAT), *parts))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _plain(name: str) -> str:
    """The name with nothing in it that a file's name should not have.

    >>> _plain("/data/My text.jsonl.xz")
    'My-text'
    """
    return re.sub(r"[^\w-]+", "-", Path(name).name.split(".")[0]) or "text"
