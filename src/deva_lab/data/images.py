"""Images by name or by path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import UsageError, require, unknown
from . import Report, in_data_folder, silent
from .image_files import (
    CIFAR_CLASSES,
    CIFAR_SIDE,
    archive_images,
    check_tiles,
    cifar_binary,
    cifar_files,
    cifar_tiles,
    digits,
    folder_images,
    is_image,
)
from .image_parquet import HUB, fetched, parquet_images
from .image_set import SHOWN_SIDE, Images

__all__ = ["NAMES", "SHAPES", "Images", "Shape", "check_images", "load_images", "side_by_name"]

IN_DATA_FOLDER: Final = {
    "cifar10-small": "cifar10-small",
    "tiny-imagenet": "tiny-imagenet-32px-40cls.tar.xz",
}
NAMES: Final = ("digits", *HUB, *IN_DATA_FOLDER)
PARQUET: Final = "*.parquet"
ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class Shape(NamedTuple):
    """What a model has to know of images."""

    side: int
    channels: int
    classes: int


SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "digits": Shape(8, 1, 10),
        "cifar10": Shape(CIFAR_SIDE, 3, CIFAR_CLASSES),
        "imagenet-1k": Shape(SHOWN_SIDE, 3, 1000),
        "cifar10-small": Shape(CIFAR_SIDE, 3, CIFAR_CLASSES),
        "tiny-imagenet": Shape(32, 3, 40),
    }
)
"""The shapes of the images of a name, known without loading them."""


def side_by_name(name: str) -> int | None:
    """The side of the images of a name, as far as it is known without loading them."""
    return SHAPES[name].side if name in SHAPES else None


def load_images(name: str, *, cache: Path | None = None, report: Report = silent) -> Images:
    """The images of a name or a path.

    Args:
        name: One of `NAMES`; or the path of a folder with a sub-folder for each class (or train/
            and val/ with such), of a tar archive of small images laid out so, or of a folder with
            CIFAR-10's binary files or with parquet files of large images.
        cache: The folder for decoded images, see `cache_folder`.
        report: Hears what takes long.

    Raises:
        UsageError: If there are none.
    """
    check_images(name)
    if name == "digits":
        return digits()
    if name in HUB:
        return fetched(name, report)
    path = _path_of(name)
    if name == "cifar10-small":
        return cifar_tiles(name, path)
    if path.is_file():
        label = name if name in IN_DATA_FOLDER else path.name
        return archive_images(path, label, cache=cache, report=report)
    if any(path.rglob(PARQUET)):
        return parquet_images(path.name, str(path), report)
    files = cifar_files(path)
    return cifar_binary(path.name, *files) if files else folder_images(path, report=report)


def check_images(name: str) -> None:
    """Raises UsageError for what `load_images` would find missing, without loading anything."""
    if name == "digits":
        require("sklearn")
        return
    require("PIL")
    if name in HUB:
        require("datasets")
        return
    path = _path_of(name)
    if name == "cifar10-small":
        check_tiles(path)
    elif path.is_file() and not path.name.lower().endswith(ARCHIVES):
        raise UsageError(
            f"{path} is no folder of images and no archive ({', '.join(ARCHIVES)}) of them"
        )
    elif any(path.rglob(PARQUET)):
        require("pyarrow")
        require("fsspec")
    elif path.is_dir() and cifar_files(path) is None and not any(map(is_image, path.rglob("*"))):
        raise UsageError(f"there is no image in the folder {path}")


def _path_of(name: str) -> Path:
    """Where the images of a name that is not `digits` or on the hub are."""
    if name in IN_DATA_FOLDER:
        return in_data_folder(name, IN_DATA_FOLDER[name])
    path = Path(name).expanduser()
    if path.exists():
        return path
    if os.sep in name or "." in name:
        raise UsageError(f"there is no folder or file of images at {name}")
    raise unknown("images", name, NAMES)
