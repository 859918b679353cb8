"""Images by name or by path: digits, CIFAR-10, folders, archives and parquet."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import UsageError, require, unknown
from ..files import file_digests, is_whole, number_of, sealing
from ..models.images import Shape
from . import Report, cache_folder, fetching, in_data_folder, silent, was_damaged
from .image_set import SHOWN_SIDE, SMALL_SIDE, Files, Images, Lazy, images_in_files, parquet_images

# Name → the repository on the hub, and whether it is fetched as a whole.
HUB: Final = {"cifar10": ("uoft-cs/cifar10", True), "imagenet-1k": ("ILSVRC/imagenet-1k", False)}
# Where a set has its parquet files: as they were uploaded, or as the hub has converted them.
ROOTS: Final = ("hf://datasets/{}", "hf://datasets/{}@refs/convert/parquet")
IN_DATA_FOLDER: Final = {
    "cifar10-small": "cifar10-small",
    "tiny-imagenet": "tiny-imagenet-32px-40cls.tar.xz",
}
SHAPES: Final[Mapping[str, Shape]] = {
    "digits": Shape(8, 1, 10),
    "cifar10": Shape(32, 3, 10),
    "imagenet-1k": Shape(SHOWN_SIDE, 3, 1000),
    "cifar10-small": Shape(32, 3, 10),
    "tiny-imagenet": Shape(32, 3, 40),
}
"""The shapes of the images of a name, known without loading them."""
NAMES: Final = tuple(SHAPES)


def load_images(name: str, *, cache: Path | None = None, report: Report = silent) -> Images:
    """The images of a name or a path.

    Args:
        name: One of `NAMES`; or the path of a folder with a sub-folder for each class (or train/
            and val/ with such), of a tar archive of small images laid out so, or of a folder with
            parquet files.
        cache: The folder for decoded images, see `cache_folder`.
        report: Hears what takes long.

    Raises:
        UsageError: If there are none.
    """
    return _loader(name)(cache, report)


def check_images(name: str) -> None:
    """Raises UsageError for what `load_images` would find missing, without loading anything."""
    _loader(name)


def _loader(name: str) -> Callable[[Path | None, Report], Images]:
    """What loads the images of a name or a path, of which it is seen that they are there."""
    if name == "digits":
        return lambda cache, report: _digits()
    if name in HUB:
        require("hub")
        return lambda cache, report: _hub_images(name, report)
    path = _path_of(name)
    if name == "cifar10-small":
        for stem, suffix in product(TILES, (".webp", ".labels.u8")):
            in_data_folder(name, f"{name}/{stem}{suffix}")
        return lambda cache, report: _cifar_small(path)
    if path.is_file():
        if not path.name.lower().endswith(ARCHIVES):
            raise UsageError(
                f"{path} is no folder of images and no archive ({', '.join(ARCHIVES)}) of them"
            )
        return lambda cache, report: _archive_images(path, cache, report)
    if any(path.rglob("*.parquet")):
        require("hub", "pyarrow")
        return lambda cache, report: parquet_images([str(path)], report)
    if not any(map(_is_image, path.rglob("*"))):
        raise UsageError(f"there is no image in the folder {path}")
    return lambda cache, report: _folder_images(path, report)


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


def _hub_images(name: str, report: Report) -> Images:
    """A set of the hub: a small one is fetched whole and kept, a large one as it is needed."""
    from huggingface_hub import snapshot_download

    repository, whole = HUB[name]
    remedy = "without a network, or where the set asks for a login, give a folder of images"
    with fetching(repository, remedy):
        roots = [root.format(repository) for root in ROOTS]
        if whole:
            report(f"fetching {repository}, unless it is here already")
            patterns = "*.parquet"
            roots = [snapshot_download(repository, repo_type="dataset", allow_patterns=patterns)]
        return parquet_images(roots, report)


# Digits and CIFAR-10 ------------------------------------------------------------------------------

DIGITS_HELD_OUT: Final = 5  # one in so many is for validation, of each digit
CIFAR: Final = SHAPES["cifar10"]
TILES: Final = ("train10000", "test2000")  # large pictures whose tiles are the images, row by row


def _digits() -> Images:
    """The 1797 handwritten digits that scikit-learn brings along, 1 × 8 × 8, values up to 16.

    A digit may be read from its mirror image or not at all, so it is not flipped, and with so few
    pixels is shifted by one at the most.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    data = load_digits()
    pixels = torch.from_numpy(data.images).to(torch.uint8)[:, None]  # (n, 1, 8, 8)
    labels = torch.from_numpy(data.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        held[order[labels[order] == label][::DIGITS_HELD_OUT]] = True
    train, validation = ((pixels[side], labels[side]) for side in (~held, held))
    return Images(*train, *validation, classes=10, side=8, padding=1, flip=False)


def _cifar_small(folder: Path) -> Images:
    """Ten thousand images of CIFAR-10 for training and two thousand for validation."""
    train, test = (_tiles(folder, stem) for stem in TILES)
    return Images(*train, *test, CIFAR.classes, CIFAR.side)


def _tiles(folder: Path, stem: str) -> tuple[Tensor, Tensor]:
    with Image.open(folder / f"{stem}.webp") as image:
        sheet = torch.from_numpy(np.array(image.convert("RGB")))  # (rows · 32, columns · 32, 3)
    tiles = sheet.unfold(0, CIFAR.side, CIFAR.side).unfold(1, CIFAR.side, CIFAR.side)
    pixels = tiles.flatten(0, 1).contiguous()  # of (rows, columns, 3, 32, 32)
    labels = torch.from_numpy(np.fromfile(folder / f"{stem}.labels.u8", np.uint8)).long()
    if len(labels) != len(pixels):
        raise UsageError(f"{folder / stem} has {len(pixels)} tiles but {len(labels)} labels")
    return pixels, labels


# A folder a class, inside train/ and val/ or cut by a hash ----------------------------------------

SUFFIXES: Final = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
VALIDATION_FOLDERS: Final = ("val", "valid", "validation", "test")
ANNOTATIONS: Final = "val/val_annotations.txt"  # Tiny ImageNet: a line a file, its class second
HELD_OUT: Final = 10  # one image in so many is for validation where the folders do not say it
ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
KEPT: Final = ("train", "train_labels", "validation", "validation_labels", "classes")

Item = tuple[str, int]  # the path of an image and the number of its class


class Listing(NamedTuple):
    """Which image is in which class, and on which side."""

    classes: list[str]
    train: list[Item]
    validation: list[Item]


def list_images(paths: Iterable[str], annotations: str = "") -> Listing:
    """What is where, by the paths of images relative to their root.

    Args:
        paths: train/CLASS/…/FILE and val/CLASS/…/FILE, or CLASS/…/FILE, of which one in ten is
            then for validation, by a hash of its path.
        annotations: The text of Tiny ImageNet's file that gives the classes of val/images.

    Raises:
        UsageError: If one side has no image, or validation has a class that training has not.
    """
    parts = [PurePosixPath(path).parts for path in sorted(paths)]

    def inside(folder: str) -> dict[str, str]:  # path → class
        return {"/".join(p): p[1] for p in parts if p[0] == folder and len(p) > 2}

    train, validation = inside("train"), dict[str, str]()
    if train:
        told = dict(line.split("\t")[:2] for line in annotations.splitlines() if "\t" in line)
        found = next(filter(None, map(inside, VALIDATION_FOLDERS)), {})
        validation = {path: told.get(Path(path).name, name) for path, name in found.items()}
    else:
        train = {"/".join(p): p[0] for p in parts if len(p) > 1}
    if not validation:
        held = [path for path in train if number_of(path) % HELD_OUT == 0]
        validation = {path: train.pop(path) for path in held}
    for side, found in (("train", train), ("validation", validation)):
        if not found:
            raise UsageError(
                f"there is no image for {side}: images are expected in train/CLASS/ and "
                f"val/CLASS/, or in CLASS/, where about one in {HELD_OUT} is for validation"
            )
    number = {name: i for i, name in enumerate(sorted(set(train.values())))}
    strange = sorted(set(validation.values()) - number.keys())
    if strange:
        raise UsageError(
            f"validation has images of the class {strange[0]}, of which training has none"
        )
    items = ([(path, number[name]) for path, name in x.items()] for x in (train, validation))
    return Listing(list(number), *items)


def _is_image(path: str | Path) -> bool:
    return str(path).lower().endswith(SUFFIXES)


def _images_among(files: Collection[str], read: Callable[[str], bytes], report: Report) -> Images:
    """The images among files, which have a folder a class; `read` gives the bytes of a path."""

    def encoded(items: list[Item]) -> Files:
        paths = [path for path, _ in items]
        return Files(
            lambda index: [(paths[i], read(paths[i])) for i in index.tolist()],
            torch.tensor([label for _, label in items]),
        )

    annotations = read(ANNOTATIONS).decode() if ANNOTATIONS in files else ""
    classes, *sides = list_images(filter(_is_image, files), annotations)
    return images_in_files([encoded(side) for side in sides], len(classes), report)


def _folder_images(folder: Path, report: Report) -> Images:
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return _images_among(files, lambda file: (folder / file).read_bytes(), report)


def _archive_images(path: Path, cache: Path | None, report: Report) -> Images:
    """The images of a tar archive, decoded once and kept in the cache by a hash of its content."""
    folder = cache_folder(cache)
    (digest,) = file_digests([path], folder)
    kept = folder / f"images-3-{digest}.npz"  # 3: of this layout
    if not is_whole(kept):
        report(f"decoding the images of {path}{was_damaged(kept)}")
        files = _unpacked(path)
        images = _images_among(files, files.__getitem__, silent)
        if isinstance(images.train, Lazy):
            raise UsageError(
                f"{path} has images of more than {SMALL_SIDE} pixels a side, which are read from a "
                "folder: unpack it and give the folder"
            )
        arrays: dict[str, Any] = {key: np.asarray(getattr(images, key)) for key in KEPT}
        with sealing(kept) as partial:
            np.savez(partial, **arrays)
    with np.load(kept) as arrays:
        train, labels, held, held_labels, classes = (torch.from_numpy(arrays[key]) for key in KEPT)
    return Images(train, labels, held, held_labels, int(classes), train.shape[-1])


def _unpacked(path: Path) -> dict[str, bytes]:
    """The files of an archive that matter, by their paths without the folder that all are in."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                wanted = _is_image(member.name) or member.name.endswith(ANNOTATIONS)
                if wanted and (file := archive.extractfile(member)) is not None:
                    files[PurePosixPath(member.name).as_posix()] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UsageError(f"{path} is no tar archive that can be read: {error}") from error
    if len({PurePosixPath(file).parts[0] for file in files}) == 1:
        files = {file.partition("/")[2]: data for file, data in files.items()}
    return files
