"""Sets of images with labels: how files become pixels, and large sets in parquet files.

A parquet file is made of row groups, each of which can be read alone. An epoch takes the groups in
an order that depends on the seed and mixes the images of neighbours, so that a few groups are
enough for any batch: training begins at once, and a run that goes on from a checkpoint fetches no
more than it needs.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import UsageError
from . import Report

Found = TypeVar("Found")
File: TypeAlias = tuple[str, bytes]  # of an image: its name, for messages, and its content
SAMPLE: Final = 512  # images that mean and deviation are taken from where each has to be decoded
CHUNK: Final = 128  # images that are in float64 at once
SMALL_SIDE: Final = 64  # up to this many pixels a side, images are decoded once and kept in memory
STORED_SIDE: Final = 256  # larger ones are brought to this side …
SHOWN_SIDE: Final = 224  # … and a model sees so much of it


@dataclass(frozen=True)
class Lazy:
    """Images or labels that are read when they are asked for, by their indices, as of a tensor."""

    read: Callable[[Tensor], Tensor]  # indices (n,) → uint8 (n, c, h, w), or labels, int64 (n,)
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Tensor, /) -> Tensor:
        return self.read(index)


Rows: TypeAlias = Tensor | Lazy


@dataclass(eq=False)
class Images:
    """A set of images with labels, cut in two.

    Mean and deviation are those of the training images, or of a sample where these are lazy.
    """

    train: Rows  # uint8 (n, c, h, w), of indices (n,)
    train_labels: Rows  # int64 (n,)
    validation: Rows
    validation_labels: Rows
    classes: int
    side: int  # height and width of what a model sees of an image
    padding: int = 4  # around an image of which a random part is taken for training
    flip: bool = True  # whether an image may be mirrored for training
    groups: tuple[int, ...] = ()  # the sizes of groups that are read as a whole, if they are
    mean: Tensor = field(init=False)  # float32 (c,)
    std: Tensor = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.train)
        if self.groups:
            index = torch.arange(min(SAMPLE, count))  # of the first groups, which is quick
        else:
            index = evenly(count, count if isinstance(self.train, Tensor) else SAMPLE)
        number, total, squares = 0, torch.tensor(0.0), torch.tensor(0.0)
        for part in torch.split(index, CHUNK):
            x = self.train[part].double().transpose(0, 1).flatten(1)  # (c, n · h · w)
            number, total, squares = number + x.shape[1], total + x.sum(1), squares + (x * x).sum(1)
        mean = total / number
        # a channel that is constant, such as an empty one, stays finite
        variance = (squares / number - mean.square()).clamp(min=1e-6)
        self.mean, self.std = mean.float(), variance.sqrt().float()

    @property
    def channels(self) -> int:
        """1 or 3."""
        return len(self.mean)


def evenly(count: int, most: int) -> Tensor:
    """The indices of all of `count` images, or of so many of them at equal distances.

    Not of the first ones, since folders are in the order of their classes.

    >>> evenly(10, 4)
    tensor([0, 2, 5, 7])
    """
    used = min(count, most)
    return torch.arange(used) * count // used


# From files to pixels -----------------------------------------------------------------------------


class Files(NamedTuple):
    """The image files of one side."""

    read: Callable[[Tensor], list[File]]  # those of some indices
    labels: Rows  # of all


def images_in_files(
    sides: Sequence[Files], classes: int, report: Report, groups: tuple[int, ...] = ()
) -> Images:
    """The images of files for training and for validation, which are all brought to one form.

    Small ones are decoded into memory, larger ones when they are asked for.
    """
    train, validation = sides
    (first,) = train.read(torch.tensor([0]))
    side = _opened(first, lambda image: min(image.size))
    if side > SMALL_SIDE:
        rows = _decoded_later(train), train.labels, _decoded_later(validation), validation.labels
        return Images(*rows, classes, SHOWN_SIDE, padding=0, groups=groups)
    report("decoding the images")
    every = [torch.arange(len(files.labels)) for files in sides]
    read = [files.read(index) for files, index in zip(sides, every, strict=True)]
    labels = [files.labels[index] for files, index in zip(sides, every, strict=True)]
    grey = all(_opened(file, lambda image: image.mode in ("1", "L")) for file in read[0])
    pixels = [decode_all(files, side, "L" if grey else "RGB") for files in read]
    return Images(pixels[0], labels[0], pixels[1], labels[1], classes, side)


def _decoded_later(files: Files) -> Lazy:
    def read(index: Tensor) -> Tensor:
        return decode_all(files.read(index), STORED_SIDE, "RGB")

    return Lazy(read, len(files.labels))


def decode_all(files: Sequence[File], side: int, mode: str) -> Tensor:
    """The pixels of images, uint8 (n, c, side, side)."""
    # Pillow gives up the interpreter's lock while it decodes and scales
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return torch.stack(list(pool.map(lambda file: decode(file, side, mode), files)))


def decode(file: File, side: int, mode: str) -> Tensor:
    """The pixels of an image, uint8 (c, side, side): its shorter side scaled, its middle kept.

    The mode is "L" for grey or "RGB".
    """

    def fitted(image: Image.Image) -> Image.Image:
        image.draft(mode, (side, side))  # a JPEG may be decoded at half its size
        return ImageOps.fit(image.convert(mode), (side, side), Image.Resampling.BILINEAR)

    pixels = torch.from_numpy(np.array(_opened(file, fitted)))  # (side, side) or (side, side, 3)
    return pixels.view(side, side, -1).permute(2, 0, 1).contiguous()


def _opened(file: File, use: Callable[[Image.Image], Found]) -> Found:
    """What a function finds in an image, or a UsageError that names a file that is none."""
    name, data = file
    try:
        with Image.open(io.BytesIO(data)) as image:
            return use(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{name} is no image that can be read: {error}") from error


# Parquet ------------------------------------------------------------------------------------------

LABEL: Final = "label"
COLUMNS: Final = ("image", "img")
SIDES: Final = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
MIXED: Final = 4096  # images among which a batch is drawn
CONNECTIONS: Final = 16
VALIDATED: Final = 10_000  # images, about, that validation is made with


def parquet_images(roots: Sequence[str], report: Report) -> Images:
    """The images of the first folder or address of fsspec that has both sides in parquet files.

    Raises:
        UsageError: If none has, or there are no images in them.
    """
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    from pyarrow import dataset  # type: ignore[import-untyped]

    for root in roots:
        files, base = url_to_fs(root)
        sides = sides_of(files.glob(f"{base}/**/*.parquet"))
        paths = sides.get("train"), sides.get("validation") or sides.get("test")
        if all(paths):
            break
    else:
        raise UsageError(
            f"{roots[0]} has no parquet files for both sides: they are expected as train-… and "
            "validation-… (or test-…), or in folders of these names"
        )
    report(f"reading the contents of the parquet files below {root}")
    train, held = (dataset.dataset(side, filesystem=files, format="parquet") for side in paths)
    column, classes = _about(train)
    groups, tested = _groups(train), _groups(held)
    # groups for validation at equal distances that have about as many rows as are wanted
    tested = tested[:: max(1, sum(map(_rows, tested)) // VALIDATED)]
    # what a batch is drawn from, and the groups that are begun or not at their end
    drawn_from = 2 * MIXED + 3 * max(map(_rows, groups))
    stores = Store(groups, column, most=drawn_from), Store(tested, column)
    files_of = [store.files for store in stores]
    return images_in_files(files_of, classes, report, groups=stores[0].sizes)


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


def _about(data: Any) -> tuple[str, int]:
    """The column of the images, and how many classes there are.

    The library `datasets` notes the classes down; without that the labels are read.
    """
    names = data.schema.names
    column = next((each for each in COLUMNS if each in names), None)
    if column is None or LABEL not in names:
        raise UsageError(
            f"{data.files[0]} must have a column {' or '.join(COLUMNS)} and a column {LABEL}, "
            f"got {', '.join(names)}"
        )
    noted = json.loads((data.schema.metadata or {}).get(b"huggingface", b"{}"))
    label = noted.get("info", {}).get("features", {}).get(LABEL, {})
    if label.get("names"):
        return column, len(label["names"])
    return column, max(data.to_table(columns=[LABEL])[LABEL].to_pylist()) + 1


def _groups(data: Any) -> list[Any]:
    """The row groups of all files that have rows."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        files = pool.map(lambda file: file.split_by_row_group(), data.get_fragments())
        return [group for groups in files for group in groups if _rows(group)]


def _rows(group: Any) -> int:
    return int(group.row_groups[0].num_rows)


class Store:
    """The rows of groups, of which those asked for last are in memory.

    Args:
        groups: Fragments of pyarrow of a row group each, in the order in which rows are counted.
        column: The column of the images.
        most: How many rows stay in memory, about; unless given, all.
    """

    def __init__(self, groups: Sequence[Any], column: str, most: int | None = None) -> None:
        self.groups, self.column = groups, column
        self.sizes = tuple(map(_rows, groups))
        self.ends = torch.tensor(self.sizes).cumsum(0)
        count = int(self.ends[-1])
        self.read = lru_cache(None if most is None else -(-most * len(groups) // count))(self._read)
        labels = Lazy(lambda index: torch.tensor([label for _, label in self.take(index)]), count)
        self.files = Files(lambda index: [file for file, _ in self.take(index)], labels)

    def take(self, index: Tensor) -> list[tuple[File, int]]:
        """The image files and the labels of these rows."""
        numbers = torch.searchsorted(self.ends, index, right=True).tolist()
        wanted = sorted(set(numbers))
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            groups = dict(zip(wanted, pool.map(self.read, wanted), strict=True))
        from_end = (index - self.ends[numbers]).tolist()  # of its group: -1 is its last row
        return [groups[n][place] for n, place in zip(numbers, from_end, strict=True)]

    def _read(self, number: int) -> list[tuple[File, int]]:
        group = self.groups[number]
        table = group.to_table(columns=[self.column, LABEL]).to_pydict()
        name = f"an image of {group.path}"
        files = [(entry["path"] or name, entry["bytes"]) for entry in table[self.column]]
        return list(zip(files, table[LABEL], strict=True))


def neighbours_mixed(sizes: Tensor, mixed: int, generator: torch.Generator) -> Tensor:
    """All rows of groups of these sizes: groups in random order, each row moved by chance.

    No row is moved by more than `mixed` places, so a batch has rows of few groups.
    """
    places = torch.arange(int(sizes.sum()))
    groups = torch.split(places, sizes.tolist())
    rows = torch.cat([groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()])
    moved = mixed * torch.rand(len(places), generator=generator, dtype=torch.double)
    return rows[(places + moved).argsort()]
