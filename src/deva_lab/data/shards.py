"""Token shards as modded-nanogpt writes them: 256 int32 of header, then uint16 tokens."""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..atomic import replacing
from ..digests import file_digests, hasher
from ..errors import UsageError
from ..files import read_record, write_record
from . import cache_path
from .tokenizers import GPT2_VOCABULARY, gpt2, gpt2_folder

MAGIC, VERSION, HEADER = 20240520, 1, 256
DESCRIPTION = "shards.json"  # beside shards of our own: their vocabulary and bytes a token
MEASURED_TOKENS = 1 << 20  # of validation, to find the bytes a token of shards not our own
AT_ONCE = 1 << 20  # tokens that are written at once


class Tokens(Protocol):
    """Token ids in a row: an array, a memory map, or several of them behind one another."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> npt.NDArray[Any]: ...


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


@dataclass(frozen=True)
class ShardFiles:
    """The shards of a corpus, by side."""

    train: tuple[Path, ...]
    validation: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        """Those of both sides."""
        return self.train + self.validation


def find_shards(pattern: str) -> ShardFiles | None:
    """The shards that a path, a glob or a folder means, or None if it means no .bin files.

    A file with `val` in its name is for validation; where none is meant, those beside the training
    shards are.

    Raises:
        UsageError: if shards for training or for validation are missing.
    """
    path = Path(pattern).expanduser()
    found = sorted(path.glob("*.bin")) if path.is_dir() else _matches(path)
    if not found:
        return None
    train = tuple(file for file in found if not _is_validation(file))
    beside = {file for path in train for file in path.parent.glob("*.bin")}
    validation = tuple(filter(_is_validation, found)) or tuple(
        sorted(filter(_is_validation, beside))
    )
    if not train or not validation:
        lacking = "*val*.bin to validate on" if train else "*train*.bin to train on"
        raise UsageError(f"at {pattern} there is no {lacking}: give a folder or a glob with both")
    return ShardFiles(train, validation)


def _is_validation(path: Path) -> bool:
    """Whether the last of the words train and val in its name is val."""
    sides = re.findall(r"(?<![a-z])(train|val)", path.name.lower())
    return sides[-1:] == ["val"]


def _matches(path: Path) -> list[Path]:
    if path.suffix != ".bin":
        return []
    found = glob.glob(glob.escape(str(path))) or glob.glob(str(path), recursive=True)
    if not found:
        raise UsageError(f"there is no shard at {path}")
    return sorted(map(Path, found))


def map_shards(paths: Sequence[Path]) -> Tokens:
    """The tokens of the shards, memory-mapped one behind the other."""
    parts = [map_shard(path) for path in paths]
    return parts[0] if len(parts) == 1 else Concatenated(parts)


def map_shard(path: Path) -> npt.NDArray[np.uint16]:
    """The tokens of one shard, memory-mapped.

    Raises:
        UsageError: if the header is another's, or promises other tokens than there are.
    """
    with path.open("rb") as file:
        header = np.frombuffer(file.read(HEADER * 4), dtype="<i4")
    if len(header) < HEADER or tuple(header[:2]) != (MAGIC, VERSION):
        raise UsageError(
            f"{path} is no token shard: it must begin with {MAGIC} and version {VERSION}"
        )
    present = (path.stat().st_size - HEADER * 4) / 2
    if header[2] != present or header[2] < 1:
        raise UsageError(
            f"{path} is damaged: its header says {header[2]:,} tokens, there are {present:,.0f}"
        )
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER * 4)


def write_shard(path: Path, tokens: npt.NDArray[Any]) -> str:
    """Write a shard, which a kill leaves whole or absent; its digest is returned."""
    header = np.zeros(HEADER, dtype="<i4")
    header[:3] = MAGIC, VERSION, len(tokens)
    parts = (tokens[start : start + AT_ONCE] for start in range(0, len(tokens), AT_ONCE))
    digest = hasher()
    with replacing(path) as partial, partial.open("wb") as file:
        for data in (header, *(part.astype("<u2") for part in parts)):
            digest.update(data.tobytes())
            file.write(data.tobytes())
    return digest.hexdigest()


def write_description(
    folder: Path, vocabulary: int, bytes_per_token: float, files: Mapping[str, str]
) -> None:
    """Note beside shards what reading them does not tell, and the digests of the files."""
    note = {"vocabulary": vocabulary, "bytes_per_token": bytes_per_token, "files": dict(files)}
    write_record(folder / DESCRIPTION, note)


def check_digests(files: ShardFiles, cache: Path | None = None) -> None:
    """Raises UsageError for a shard of our own that is not as it was written."""
    known = {path: (_note(path.parent) or {}).get("files", {}).get(path.name) for path in files.all}
    own = [path for path, digest in known.items() if digest is not None]
    for path, digest in zip(own, file_digests(own, cache_path(cache)), strict=True):
        if digest.hex() != known[path]:
            raise UsageError(
                f"{path} is damaged: its digest is not that of {DESCRIPTION} beside it; prepare "
                "the shards again, deva data prepare"
            )


def _note(folder: Path) -> dict[str, Any] | None:
    """What is noted beside shards, if anything is.

    Raises:
        UsageError: If it is damaged.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    note = read_record(path, begins=("vocabulary",))
    if note is None:
        raise UsageError(
            f"{path} is damaged: remove it if the shards are in GPT-2's vocabulary, else prepare "
            "them again"
        )
    return note


def describe(files: ShardFiles) -> tuple[int, float]:
    """The vocabulary and the bytes a token of shards: as noted beside them, else GPT-2's.

    Without a note and without GPT-2's files on this machine, the bytes a token are NaN.
    """
    folder = files.validation[0].parent
    note = _note(folder)
    if note is not None:
        try:
            return int(note["vocabulary"]), float(note["bytes_per_token"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder / DESCRIPTION} lacks a number: remove it if the shards are in GPT-2's "
                "vocabulary"
            ) from error
    tokens = map_shard(files.validation[0])[:MEASURED_TOKENS]
    try:
        at_hand = gpt2_folder() is not None
        return GPT2_VOCABULARY, gpt2().count_bytes(tokens) / len(tokens) if at_hand else math.nan
    except UsageError:
        return GPT2_VOCABULARY, math.nan
