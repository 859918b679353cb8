"""Images in parquet files that are fetched as they are needed, from the hub or from a disk.

A parquet file is made of row groups, each of which can be read alone. An epoch takes the groups in
an order that depends on the seed and mixes the images of neighbours, so that a few groups are
enough for any batch: training begins at once, and a run that goes on from a checkpoint fetches no
more than it needs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from .decoding import STORED_SIDE, Encoded, Form, decode_all

LABEL: Final = "label"
MIXED: Final = 4096  # images among which a batch is drawn
CONNECTIONS: Final = 16


class Group(NamedTuple):
    """A row group: where it is, and how many images it has."""

    path: str
    number: int
    rows: int


class Rows(NamedTuple):
    """What is in a row group."""

    files: list[Encoded]
    labels: Tensor  # int64 (rows,)


class Store:
    """The rows of groups, of which those asked for last are in memory.

    Args:
        files: What opens the files, of fsspec.
        groups: The groups, in the order in which rows are counted.
        column: The column of the images.
        most: How many rows stay in memory, about.
    """

    def __init__(self, files: Any, groups: Sequence[Group], column: str, most: int) -> None:
        self.files, self.groups, self.column, self.most = files, groups, column, most
        self.ends = torch.tensor([group.rows for group in groups]).cumsum(0)
        self.kept: OrderedDict[int, Rows] = OrderedDict()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def take(self, index: Tensor) -> tuple[list[Encoded], Tensor]:
        """The files and labels of these rows."""
        numbers = torch.searchsorted(self.ends, index, right=True)
        self._fetch(sorted(set(numbers.tolist())))
        picked = []
        for row, number in zip(index.tolist(), numbers.tolist(), strict=True):
            first = int(self.ends[number]) - self.groups[number].rows
            picked.append((self.kept[number], row - first))
        files = [rows.files[place] for rows, place in picked]
        labels = torch.stack([rows.labels[place] for rows, place in picked])
        self._forget()
        return files, labels

    def _fetch(self, numbers: list[int]) -> None:
        missing = [number for number in numbers if number not in self.kept]
        if missing:
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                self.kept.update(zip(missing, pool.map(self._read, missing), strict=True))
        for number in numbers:
            self.kept.move_to_end(number)

    def _forget(self) -> None:
        rows = sum(self.groups[number].rows for number in self.kept)
        while rows > self.most:
            number, _ = self.kept.popitem(last=False)
            rows -= self.groups[number].rows

    def _read(self, number: int) -> Rows:
        from pyarrow import parquet  # type: ignore[import-untyped]

        path, place, _ = self.groups[number]
        with self.files.open(path, "rb") as file:
            columns = [self.column, LABEL]
            table = parquet.ParquetFile(file).read_row_group(place, columns).to_pydict()
        name = f"an image of {path}"
        encoded = [Encoded(entry["path"] or name, entry["bytes"]) for entry in table[self.column]]
        return Rows(encoded, torch.tensor(table[LABEL]))


@dataclass(frozen=True)
class StreamedImages:
    """The images of a store, decoded when they are asked for."""

    store: Store

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """The images of these rows, uint8 (n, 3, side, side)."""
        return decode_all(self.store.take(index)[0], Form(STORED_SIDE, "RGB"))


@dataclass(frozen=True)
class StreamedLabels:
    """The labels of a store."""

    store: Store

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """The labels of these rows, int64 (n,)."""
        return self.store.take(index)[1]


def neighbours_mixed(sizes: Tensor, mixed: int, generator: torch.Generator) -> Tensor:
    """All rows of groups of these sizes: groups in random order, each row moved by chance.

    No row is moved by more than `mixed` places, so a batch has rows of few groups.
    """
    starts, count = sizes.cumsum(0) - sizes, int(sizes.sum())
    chosen = torch.randperm(len(sizes), generator=generator)
    ends = sizes[chosen].cumsum(0)
    # the first row of its group, less the place at which the group begins, for every place
    shift = (starts[chosen] - ends + sizes[chosen]).repeat_interleave(sizes[chosen])
    rows = torch.arange(count) + shift
    moved = torch.arange(count) + mixed * torch.rand(count, generator=generator, dtype=torch.double)
    return rows[moved.argsort()]
