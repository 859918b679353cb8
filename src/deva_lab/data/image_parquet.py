"""Images in parquet files, from the hub or from a disk; large ones are fetched as they are needed.

A parquet file is made of row groups, each of which can be read alone. An epoch takes the groups in
an order that depends on the seed and mixes the images of neighbours, so that a few groups are
enough for any batch: training begins at once, and a run that goes on from a checkpoint fetches no
more than it needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Final

import torch
from torch import Tensor

from ..errors import UsageError
from . import Report
from .image_set import (
    LARGE,
    SHOWN_SIDE,
    SMALL_SIDE,
    Encoded,
    Images,
    Lazy,
    decode_all,
    side_of,
    small_images,
)

LABEL: Final = "label"
COLUMNS: Final = ("image", "img")
SIDES: Final = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
MIXED: Final = 4096  # images among which a batch is drawn
CONNECTIONS: Final = 16
VALIDATED: Final = 10_000  # images, about, that validation is made with

# Name → the repository on the hub, and whether it is fetched as a whole.
HUB: Final = {"cifar10": ("uoft-cs/cifar10", True), "imagenet-1k": ("ILSVRC/imagenet-1k", False)}
# Where a set has its parquet files: as they were uploaded, or as the hub has converted them.
ROOTS: Final = ("hf://datasets/{}", "hf://datasets/{}@refs/convert/parquet")


class Store:
    """The rows of groups, of which those asked for last are in memory.

    Args:
        groups: Fragments of pyarrow of a row group each, in the order in which rows are counted.
        column: The column of the images.
        most: How many rows stay in memory, about; unless given, all.
    """

    def __init__(self, groups: Sequence[Any], column: str, most: int | None = None) -> None:
        self.groups, self.column = groups, column
        self.sizes = tuple(_rows(group) for group in groups)
        self.ends = torch.tensor(self.sizes).cumsum(0)
        kept = None if most is None else -(-most * len(groups) // len(self))
        self.read = lru_cache(kept)(self._read)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def take(self, index: Tensor) -> tuple[list[Encoded], Tensor]:
        """The image files and the labels of these rows."""
        numbers = torch.searchsorted(self.ends, index, right=True).tolist()
        wanted = sorted(set(numbers))
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            groups = dict(zip(wanted, pool.map(self.read, wanted), strict=True))
        rows = []
        for row, number in zip(index.tolist(), numbers, strict=True):
            first = int(self.ends[number]) - self.sizes[number]
            rows.append(groups[number][row - first])
        return [file for file, _ in rows], torch.tensor([label for _, label in rows])

    def _read(self, number: int) -> list[tuple[Encoded, int]]:
        group = self.groups[number]
        table = group.to_table(columns=[self.column, LABEL]).to_pydict()
        name = f"an image of {group.path}"
        files = [Encoded(entry["path"] or name, entry["bytes"]) for entry in table[self.column]]
        return list(zip(files, table[LABEL], strict=True))


def _rows(group: Any) -> int:
    return int(group.row_groups[0].num_rows)


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


def parquet_images(name: str, root: str, report: Report) -> Images:
    """The images below a folder or an address of fsspec: parquet files that tell train from others.

    Raises:
        UsageError: If one side has no file, or there are no images in them.
    """
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    from pyarrow import dataset  # type: ignore[import-untyped]

    files, base = url_to_fs(root)
    sides = sides_of(files.glob(f"{base}/**/*.parquet"))
    paths = sides.get("train", []), sides.get("validation") or sides.get("test", [])
    if not all(paths):
        raise UsageError(
            f"{root} has no parquet files for both sides: they are expected as train-… and "
            "validation-… (or test-…), or in folders of these names"
        )
    report(f"reading the contents of {len(paths[0]) + len(paths[1])} files below {root}")
    train, held = (dataset.dataset(side, filesystem=files, format="parquet") for side in paths)
    column, classes = _about(train, paths[0][0])
    groups, tested = _groups(train), _groups(held)
    # groups for validation at equal distances that have about as many rows as are wanted
    tested = tested[:: max(1, sum(map(_rows, tested)) // VALIDATED)]
    # what a batch is drawn from, and the groups that are begun or not at their end
    stores = (
        Store(groups, column, most=2 * MIXED + 3 * max(map(_rows, groups))),
        Store(tested, column),
    )
    if side_of(stores[0].take(torch.tensor([0]))[0][0]) <= SMALL_SIDE:
        report(f"decoding the images of {root}")
        return small_images(name, *(s.take(torch.arange(len(s))) for s in stores), classes=classes)
    rows = (*_lazy(stores[0]), *_lazy(stores[1]))
    return Images(name, *rows, classes, SHOWN_SIDE, padding=0, groups=stores[0].sizes)


def _lazy(store: Store) -> tuple[Lazy, Lazy]:
    """The images of a store and their labels."""
    images = Lazy(lambda index: decode_all(store.take(index)[0], LARGE), len(store))
    return images, Lazy(lambda index: store.take(index)[1], len(store))


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


def _groups(data: Any) -> list[Any]:
    """The row groups of all files that have rows."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        files = pool.map(lambda file: file.split_by_row_group(), data.get_fragments())
        return [group for groups in files for group in groups if _rows(group)]


def _about(data: Any, path: str) -> tuple[str, int]:
    """The column of the images, and how many classes there are.

    The library `datasets` notes the classes down; without that the labels are read.
    """
    names = data.schema.names
    column = next((each for each in COLUMNS if each in names), None)
    if column is None or LABEL not in names:
        raise UsageError(
            f"{path} must have a column {' or '.join(COLUMNS)} and a column {LABEL}, "
            f"got {', '.join(names)}"
        )
    noted = json.loads((data.schema.metadata or {}).get(b"huggingface", b"{}"))
    label = noted.get("info", {}).get("features", {}).get(LABEL, {})
    if label.get("names"):
        return column, len(label["names"])
    return column, max(data.to_table(columns=[LABEL])[LABEL].to_pylist()) + 1


def hub_images(name: str, report: Report) -> Images:
    """A set of the hub: a small one is fetched whole and kept, a large one as it is needed."""
    repository, whole = HUB[name]
    try:
        if whole:
            return parquet_images(name, _downloaded(repository, report), report)
        try:
            return parquet_images(name, ROOTS[0].format(repository), report)
        except UsageError:
            return parquet_images(name, ROOTS[1].format(repository), report)
    except UsageError:
        raise
    # The libraries let through whatever their transports raise, of several packages.
    except Exception as error:
        raise UsageError(
            f"{repository} cannot be fetched ({type(error).__name__}: {error}); without a "
            "network, or where the set asks for a login, give the path of a folder of images"
        ) from error


def _downloaded(repository: str, report: Report) -> str:
    """The folder of a data set's parquet files, which the library of the hub keeps."""
    from huggingface_hub import snapshot_download

    report(f"fetching {repository}, unless it is here already")
    return snapshot_download(repository, repo_type="dataset", allow_patterns="*.parquet")
