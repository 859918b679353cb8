"""Images in parquet files, from the hub or from a disk, that are fetched as they are needed.

A parquet file is made of row groups, each of which can be read alone. An epoch takes the groups in
an order that depends on the seed and mixes the images of neighbours, so that a few groups are
enough for any batch: training begins at once, and a run that goes on from a checkpoint fetches no
more than it needs.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import UsageError
from . import Report
from .image_files import CIFAR_SIDE
from .image_set import (
    LARGE,
    SHOWN_SIDE,
    SMALL_SIDE,
    Encoded,
    Form,
    Images,
    Labelled,
    decode_all,
    images_of,
    side_of,
)

LABEL: Final = "label"
COLUMNS: Final = ("image", "img")
SIDES: Final = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
MIXED: Final = 4096  # images among which a batch is drawn
CONNECTIONS: Final = 16
VALIDATED: Final = 10_000  # images, about, that validation is made with

Found = TypeVar("Found")


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
            self.kept.update(zip(missing, _side_by_side(self._read, missing), strict=True))
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


def _side_by_side(read: Callable[[Any], Found], each: Sequence[Any]) -> list[Found]:
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return list(pool.map(read, each))


@dataclass(frozen=True)
class StreamedImages:
    """The images of a store, decoded when they are asked for."""

    store: Store

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """The images of these rows, uint8 (n, 3, side, side)."""
        return decode_all(self.store.take(index)[0], LARGE)


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


# Which file is for what, and what is in it --------------------------------------------------------


def parquet_images(name: str, root: str, report: Report) -> Images:
    """The images below a folder or an address of fsspec: parquet files that tell train from others.

    Raises:
        UsageError: If one side has no file, or the images are none or small.
    """
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    files, base = url_to_fs(root)
    sides = sides_of(files.glob(f"{base}/**/*.parquet"))
    paths = sides.get("train"), sides.get("validation") or sides.get("test")
    if not paths[0] or not paths[1]:
        raise UsageError(
            f"{root} has no parquet files for both sides: they are expected as train-… and "
            "validation-… (or test-…), or in folders of these names"
        )
    report(f"reading the contents of {len(paths[0]) + len(paths[1])} files below {root}")
    groups, tested = _groups(files, paths[0]), _groups(files, paths[1])
    # groups for validation at equal distances that have about as many rows as are wanted
    tested = tested[:: max(1, sum(group.rows for group in tested) // VALIDATED)]
    column, classes = _about(files, paths[0])
    sizes = tuple(group.rows for group in groups)
    # what a batch is drawn from, and the groups that are begun or not at their end
    train = Store(files, groups, column, most=2 * MIXED + 3 * max(sizes))
    held = Store(files, tested, column, most=sum(group.rows for group in tested))
    side = side_of(train.take(torch.tensor([0]))[0][0])
    if side <= SMALL_SIDE:
        raise UsageError(
            f"{groups[0].path} has images of {side} pixels a side, and parquet files are read for "
            f"more than {SMALL_SIDE}: give a folder of image files"
        )
    stores = (Labelled(StreamedImages(store), StreamedLabels(store)) for store in (train, held))
    return images_of(name, *stores, classes=classes, side=SHOWN_SIDE, padding=0, groups=sizes)


def sides_of(paths: Sequence[str]) -> dict[str, list[str]]:
    """Side → its files, by what a file, or else its folder, is called at the beginning.

    >>> sides_of(["a/data/train-0.parquet", "a/default/validation/0.parquet"])
    {'train': ['a/data/train-0.parquet'], 'validation': ['a/default/validation/0.parquet']}
    """
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        *_, folder, name = ("", *PurePosixPath(path).parts)
        words = (part.replace(".", "-").partition("-")[0] for part in (name, folder))
        if side := next((SIDES[word] for word in words if word in SIDES), None):
            found.setdefault(side, []).append(path)
    return found


def _groups(files: Any, paths: Sequence[str]) -> list[Group]:
    from pyarrow import parquet

    def read(path: str) -> list[Group]:
        with files.open(path, "rb") as file:
            about = parquet.read_metadata(file)
        numbers = range(about.num_row_groups)
        return [Group(path, number, about.row_group(number).num_rows) for number in numbers]

    return [group for groups in _side_by_side(read, paths) for group in groups if group.rows]


def _about(files: Any, paths: Sequence[str]) -> tuple[str, int]:
    """The column of the images, and how many classes there are.

    The library `datasets` notes the classes down; without that the labels are read.
    """
    from pyarrow import parquet

    def greatest(path: str) -> int:
        with files.open(path, "rb") as file:
            return int(max(parquet.read_table(file, columns=[LABEL])[LABEL].to_pylist()))

    with files.open(paths[0], "rb") as file:
        schema = parquet.read_schema(file)
    column = next((each for each in COLUMNS if each in schema.names), None)
    if column is None or LABEL not in schema.names:
        raise UsageError(
            f"{paths[0]} must have a column {' or '.join(COLUMNS)} and a column {LABEL}, "
            f"got {', '.join(schema.names)}"
        )
    noted = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    label = noted.get("info", {}).get("features", {}).get(LABEL, {})
    return column, len(label.get("names", ())) or max(_side_by_side(greatest, paths)) + 1


# The hub ------------------------------------------------------------------------------------------


class HubSet(NamedTuple):
    """A set of images of the Hugging Face hub."""

    repository: str
    image: str  # the column of the images
    validation: str  # the split to validate on
    in_memory: bool  # images of CIFAR-10's size, held in memory; else it is streamed


HUB: Final = {
    "cifar10": HubSet("uoft-cs/cifar10", "img", "test", in_memory=True),
    "imagenet-1k": HubSet("ILSVRC/imagenet-1k", "image", "validation", in_memory=False),
}
# Where a set has its parquet files: as they were uploaded, or as the hub has converted them.
ROOTS: Final = ("hf://datasets/{}", "hf://datasets/{}@refs/convert/parquet")


def fetched(name: str, report: Report) -> Images:
    """A set of the hub: a small one whole, by the library `datasets`, a large one as needed."""
    source = HUB[name]
    try:
        return (_downloaded if source.in_memory else _streamed)(name, source, report)
    except UsageError:
        raise
    # The libraries let through whatever their transports raise, of several packages.
    except Exception as error:
        raise UsageError(
            f"{source.repository} cannot be fetched ({type(error).__name__}: {error}); without a "
            "network, or where the set asks for a login, give the path of a folder of images"
        ) from error


def _downloaded(name: str, source: HubSet, report: Report) -> Images:
    import datasets  # type: ignore[import-untyped]

    report(f"fetching {source.repository}, unless the library datasets has it already")
    splits = {
        split: datasets.load_dataset(source.repository, split=split)
        for split in ("train", source.validation)
    }
    report(f"decoding {name}")
    return hub_images(name, source, splits)


def _streamed(name: str, source: HubSet, report: Report) -> Images:
    first, second = (root.format(source.repository) for root in ROOTS)
    try:
        return parquet_images(name, first, report)
    except UsageError:
        return parquet_images(name, second, report)


def hub_images(name: str, source: HubSet, splits: Mapping[str, Any]) -> Images:
    """The images of splits, which are a `datasets.Dataset` each with a column "label"."""
    sides = (_split(source, splits[key]) for key in ("train", source.validation))
    classes = splits["train"].features[LABEL].num_classes
    return images_of(name, *sides, classes=classes, side=CIFAR_SIDE)


def _split(source: HubSet, split: Any) -> Labelled:
    import datasets

    files = split.cast_column(source.image, datasets.Image(decode=False))
    # the file of an entry is inside the table or beside it
    encoded = [
        Encoded(entry["path"] or "an image", entry["bytes"] or Path(entry["path"]).read_bytes())
        for entry in files[source.image][:]
    ]
    return Labelled(decode_all(encoded, Form(CIFAR_SIDE, "RGB")), torch.tensor(files[LABEL][:]))
