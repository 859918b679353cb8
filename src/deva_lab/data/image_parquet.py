"""Sets of images in parquet files: which file is for what, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any, Final

import torch

from ..errors import UsageError
from .decoding import SHOWN_SIDE, SMALL_SIDE, side_of
from .image_set import SAMPLE, Images, Labelled, Report, images_of
from .image_stream import CONNECTIONS, LABEL, MIXED, Group, Store, StreamedImages, StreamedLabels

SIDES: Final = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
COLUMNS: Final = ("image", "img")
VALIDATED: Final = 10_000  # images, about, that validation is made with


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
    groups = _groups(files, paths[0])
    sizes = [group.rows for group in groups]
    held = _some(_groups(files, paths[1]), VALIDATED)
    column, classes = _about(files, paths[0])
    # what a batch is drawn from, and the groups that are begun or not at their end
    train = Store(files, groups, column, most=2 * MIXED + 3 * max(sizes))
    tested = Store(files, held, column, most=sum(group.rows for group in held))
    _check_large(train)
    return images_of(
        name,
        Labelled(StreamedImages(train), StreamedLabels(train)),
        Labelled(StreamedImages(tested), StreamedLabels(tested)),
        classes=classes,
        side=SHOWN_SIDE,
        padding=0,
        sample=torch.arange(min(SAMPLE, len(train))),
        groups=tuple(sizes),
    )


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
    from pyarrow import parquet  # type: ignore[import-untyped]

    def read(path: str) -> list[Group]:
        with files.open(path, "rb") as file:
            about = parquet.read_metadata(file)
        numbers = range(about.num_row_groups)
        return [Group(path, number, about.row_group(number).num_rows) for number in numbers]

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return [group for groups in pool.map(read, paths) for group in groups if group.rows]


def _some(groups: Sequence[Group], rows: int) -> list[Group]:
    """Groups at equal distances that have about so many rows, all if there are no more."""
    every = max(1, sum(group.rows for group in groups) // rows)
    return list(groups[::every])


def _about(files: Any, paths: Sequence[str]) -> tuple[str, int]:
    """The column of the images, and how many classes there are.

    The library `datasets` notes the classes down; without that the labels are read.
    """
    from pyarrow import parquet

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
    return column, len(label.get("names", ())) or _greatest(files, paths) + 1


def _greatest(files: Any, paths: Sequence[str]) -> int:
    from pyarrow import parquet

    def read(path: str) -> int:
        with files.open(path, "rb") as file:
            return int(max(parquet.read_table(file, columns=[LABEL])[LABEL].to_pylist()))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return max(pool.map(read, paths))


def _check_large(store: Store) -> None:
    (first,), _ = store.take(torch.tensor([0]))
    if side_of(first) <= SMALL_SIDE:
        raise UsageError(
            f"{store.groups[0].path} has images of {side_of(first)} pixels a side, and parquet "
            f"files are read for more than {SMALL_SIDE}: give a folder of image files"
        )
