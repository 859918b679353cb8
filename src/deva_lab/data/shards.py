"""Tokens in files, as modded-nanogpt writes them, and in batches of windows.

A shard is 256 int32 of header and then uint16 tokens. What `deva data prepare` writes, and what the
cache holds, has a note beside it, by which it shows whether it is whole; where that says that the
vocabulary needs more, tokens are uint32.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import UsageError
from ..files import file_digest, file_digests, read_record, write_record
from . import cache_folder
from .tokenizers import GPT2_VOCABULARY, Tokenizer, gpt2, gpt2_folder

MAGIC, VERSION, HEADER = 20240520, 1, 256
NOTE = "shards.json"  # their vocabulary, bytes a token and digests
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
    """A text in tokens; every document stands behind an end-of-text token.

    Attributes:
        name: what the user called it.
        vocabulary: the number of token ids.
        train: the tokens to train on, memory-mapped.
        validation: the tokens of the documents held out.
        bytes_per_token: of the validation text; nats a token ÷ (it · ln 2) are bits a byte. NaN for
            shards without a note where GPT-2's vocabulary is not at hand.
    """

    name: str
    vocabulary: int
    train: Tokens
    validation: Tokens
    bytes_per_token: float


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


def read_shards(name: str, files: ShardFiles, cache: Path | None = None) -> Corpus:
    """The corpus of shards: in the vocabulary that is noted beside them, else in GPT-2's.

    Raises:
        UsageError: if one of them, or the note, is damaged.
    """
    check_digests(files, cache)
    note = _note(files.validation[0].parent)
    vocabulary = int(note["vocabulary"]) if note else GPT2_VOCABULARY
    parts = [[map_shard(path, vocabulary) for path in side] for side in files]
    train, validation = (side[0] if len(side) == 1 else Concatenated(side) for side in parts)
    bytes_per_token = float(note["bytes_per_token"]) if note else _gpt2_bytes(parts[1][0])
    return Corpus(name, vocabulary, train, validation, bytes_per_token)


def _gpt2_bytes(tokens: npt.NDArray[Any]) -> float:
    try:
        return math.nan if gpt2_folder() is None else bytes_a_token(gpt2(), tokens[:AT_ONCE])
    except UsageError:
        return math.nan


def bytes_a_token(tokenizer: Tokenizer, tokens: npt.NDArray[Any]) -> float:
    """The length of the text of tokens over their number."""
    parts = (tokens[start : start + AT_ONCE] for start in range(0, len(tokens), AT_ONCE))
    return sum(map(tokenizer.count_bytes, parts)) / len(tokens)


def check_digests(files: ShardFiles, cache: Path | None = None) -> None:
    """Raises UsageError for a shard of our own that is not as it was written."""
    paths = (*files.train, *files.validation)
    known = {path: (_note(path.parent) or {}).get("files", {}).get(path.name) for path in paths}
    own = [path for path, digest in known.items() if digest is not None]
    found = file_digests(own, cache_folder(cache)) if own else []
    for path, digest in zip(own, found, strict=True):
        if digest != known[path]:
            raise UsageError(
                f"{path} is damaged: its digest is not that of {NOTE} beside it; prepare the "
                "shards again, deva data prepare"
            )


def _note(folder: Path) -> dict[str, Any] | None:
    """What is noted beside shards, if anything is.

    Raises:
        UsageError: If it is damaged.
    """
    path = folder / NOTE
    if not path.is_file():
        return None
    note = read_record(path, begins=("vocabulary",))
    if note is None or not {"vocabulary", "bytes_per_token"} <= note.keys():
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
    with path.open("rb") as file:
        header = np.frombuffer(file.read(HEADER * 4), dtype="<i4")
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


def write_shard(
    path: Path, parts: Iterable[npt.NDArray[Any]], vocabulary: int = GPT2_VOCABULARY
) -> str:
    """Write a shard of tokens that come in parts; its digest is returned."""
    header = np.zeros(HEADER, dtype="<i4")
    header[:2] = MAGIC, VERSION
    with path.open("wb") as file:
        file.write(header.tobytes())
        for part in parts:
            file.write(part.astype(_dtype(vocabulary)).tobytes())
            header[2] += len(part)
        file.seek(0)
        file.write(header.tobytes())
    return file_digest(path)


def write_note(
    folder: Path, vocabulary: int, bytes_per_token: float, files: dict[str, str]
) -> None:
    """Note beside shards what reading them does not tell, and the digests of the files."""
    note = {"vocabulary": vocabulary, "bytes_per_token": bytes_per_token, "files": files}
    write_record(folder / NOTE, note)


# Windows ------------------------------------------------------------------------------------------


class Windows:
    """Training batches over disjoint windows, in a fresh random order every epoch.

    Every epoch cuts the tokens anew from a random offset and goes once through all the windows. A
    window has one token more than the context: the inputs and, one place on, the targets. A batch
    is a function of the seed and the step alone.

    Args:
        tokens: the text.
        context: the inputs in a window.
        batch: the windows in a batch.
        seed: what the order depends on, at least 0.

    >>> windows = Windows(np.arange(100), context=4, batch=3, seed=0)
    >>> windows.batch(7).shape, windows.batch(7).equal(windows.batch(7))
    (torch.Size([3, 5]), True)
    """

    def __init__(self, tokens: Tokens, *, context: int, batch: int, seed: int) -> None:
        # The last token of a window is the first of the next; the offset takes up to context - 1.
        self.windows = (len(tokens) - context) // context  # in an epoch
        if self.windows < batch:
            raise UsageError(
                f"the text has {len(tokens):,} tokens, but a batch of {batch} windows of {context} "
                f"needs {(batch + 1) * context:,}: take a longer text, a smaller batch or a "
                "shorter context"
            )
        self._tokens, self._context, self._batch, self._seed = tokens, context, batch, seed
        self._epoch, self._starts = 0, self._order(0)

    def batch(self, step: int) -> Tensor:
        """The windows of a step counted from 0: (batch, context + 1), int64."""
        first = step * self._batch
        starts = [self._start(index) for index in range(first, first + self._batch)]
        return _gather(self._tokens, starts, self._context + 1)

    def _start(self, index: int) -> int:
        """Where the window of that number, counted over all epochs, begins."""
        epoch, place = divmod(index, self.windows)
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._order(epoch)
        return int(self._starts[place])

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        # Raw bits, because numpy keeps those from version to version, and not its permutations.
        bits = np.random.PCG64(np.random.SeedSequence((self._seed, epoch)))
        offset = int(bits.random_raw()) % self._context
        order = np.argsort(bits.random_raw(self.windows), kind="stable")
        return order * self._context + offset


def held_out(tokens: Tokens, *, context: int, windows: int) -> Tensor:
    """Windows spread evenly over the validation tokens: (windows, context + 1), int64.

    They overlap only where the text is too short for that many.

    >>> held_out(np.arange(10), context=3, windows=3)
    tensor([[0, 1, 2, 3],
            [3, 4, 5, 6],
            [6, 7, 8, 9]])
    """
    last = len(tokens) - (context + 1)
    if last < 0:
        raise UsageError(
            f"the validation text has {len(tokens):,} tokens, fewer than one window of "
            f"{context + 1}: take a longer text or a shorter context"
        )
    starts = [last * window // max(windows - 1, 1) for window in range(windows)]
    return _gather(tokens, starts, context + 1)


def _gather(tokens: Tokens, starts: list[int], length: int) -> Tensor:
    rows = [tokens[start : start + length] for start in starts]
    return torch.from_numpy(np.stack(rows).astype(np.int64))
