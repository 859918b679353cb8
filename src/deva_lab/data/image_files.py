"""Images out of files: scikit-learn's digits, CIFAR-10 in two wrappings, folders and archives."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..digests import file_digests, is_whole, number_of, sealing
from ..errors import UsageError
from . import Report, cache_folder
from .image_set import (
    SHOWN_SIDE,
    SMALL_SIDE,
    Encoded,
    Images,
    Labelled,
    LazyImages,
    decode_all,
    form_of,
    images_of,
    side_of,
)

# Digits -------------------------------------------------------------------------------------------

DIGITS_HELD_OUT: Final = 5  # one in so many is for validation, of each digit


def digits() -> Images:
    """The 1797 handwritten digits that scikit-learn brings along, 1 × 8 × 8, values up to 16.

    A digit may be read from its mirror image or not at all, so it is not flipped, and with so few
    pixels is shifted by one at the most.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    data = load_digits()
    pixels = torch.from_numpy(data.images.astype(np.uint8))[:, None]  # (n, 1, 8, 8)
    labels = torch.from_numpy(data.target.astype(np.int64))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        held[order[labels[order] == label][::DIGITS_HELD_OUT]] = True
    train, validation = (Labelled(pixels[side], labels[side]) for side in (~held, held))
    return images_of("digits", train, validation, classes=10, side=8, padding=1, flip=False)


# CIFAR-10 -----------------------------------------------------------------------------------------

CIFAR_SIDE: Final = 32
CIFAR_CLASSES: Final = 10
RECORD: Final = 1 + 3 * CIFAR_SIDE**2  # bytes of an image in the binary format: its label first
TEST_FILE: Final = "test_batch.bin"
TILES: Final = ("train10000", "test2000")


def cifar_files(folder: Path) -> tuple[list[Path], Path] | None:
    """The files of CIFAR-10's binary format in a folder, for training and validation, if any.

    Raises:
        UsageError: If there are files for training only, or one is cut off.
    """
    train, test = sorted(folder.glob("data_batch_*.bin")), folder / TEST_FILE
    if not train:
        return None
    if not test.is_file():
        raise UsageError(f"{folder} has {train[0].name} but no {TEST_FILE}")
    for path in (*train, test):
        size = path.stat().st_size
        if size == 0 or size % RECORD:
            raise UsageError(f"{path} must be of records of {RECORD} bytes, got {size} bytes")
    return train, test


def cifar_binary(name: str, train: list[Path], test: Path) -> Images:
    """CIFAR-10 from the files of its binary format."""
    sides = (_records(files) for files in (train, [test]))
    return images_of(name, *sides, classes=CIFAR_CLASSES, side=CIFAR_SIDE)


def _records(files: list[Path]) -> Labelled:
    """The images and labels of files of records: a label, then the red, green and blue plane."""
    data = np.concatenate([np.fromfile(path, np.uint8) for path in files]).reshape(-1, RECORD)
    labels = torch.from_numpy(data[:, 0].astype(np.int64))
    if int(labels.max()) >= CIFAR_CLASSES:
        raise UsageError(
            f"{files[0].parent}: labels must be below {CIFAR_CLASSES}, got {int(labels.max())}"
        )
    planes = np.ascontiguousarray(data[:, 1:]).reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE)
    return Labelled(torch.from_numpy(planes), labels)


def check_tiles(folder: Path) -> None:
    """Raises UsageError for a file that a folder of tiled images lacks."""
    for name in (f"{stem}{suffix}" for stem in TILES for suffix in (".webp", ".labels.u8")):
        if not (folder / name).is_file():
            raise UsageError(f"cifar10-small needs the file {name} in {folder}")


def cifar_tiles(name: str, folder: Path) -> Images:
    """CIFAR-10 from two large pictures whose tiles are the images, row by row."""
    sides = (_tiles(folder, stem) for stem in TILES)
    return images_of(name, *sides, classes=CIFAR_CLASSES, side=CIFAR_SIDE)


def _tiles(folder: Path, stem: str) -> Labelled:
    from PIL import Image

    with Image.open(folder / f"{stem}.webp") as image:
        sheet = torch.from_numpy(np.array(image.convert("RGB")))  # (rows · 32, columns · 32, 3)
    tiles = sheet.unfold(0, CIFAR_SIDE, CIFAR_SIDE).unfold(1, CIFAR_SIDE, CIFAR_SIDE)
    pixels = tiles.flatten(0, 1).contiguous()  # of (rows, columns, 3, 32, 32)
    labels = torch.from_numpy(np.fromfile(folder / f"{stem}.labels.u8", np.uint8).astype(np.int64))
    if len(labels) != len(pixels):
        raise UsageError(f"{folder / stem} has {len(pixels)} tiles but {len(labels)} labels")
    return Labelled(pixels, labels)


# A folder a class, inside train/ and val/ or cut by a hash ----------------------------------------

SUFFIXES: Final = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
VALIDATION_FOLDERS: Final = ("val", "valid", "validation", "test")
ANNOTATIONS: Final = "val/val_annotations.txt"  # Tiny ImageNet: a line a file, its class second
HELD_OUT: Final = 10  # one image in so many is for validation where the folders do not say it
KEPT: Final = ("train", "train_labels", "validation", "validation_labels", "classes")

Item = tuple[str, str]  # (path, class)
Read = Callable[[Sequence[Item]], list[Encoded]]


class Listing(NamedTuple):
    """Which image is in which class, and on which side."""

    classes: list[str]
    train: list[Item]
    validation: list[Item]

    def labels(self, items: Sequence[Item]) -> Tensor:
        """The numbers of the classes of images, int64 (n,)."""
        number = {name: i for i, name in enumerate(self.classes)}
        return torch.tensor([number[name] for _, name in items])


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
    train, validation = _items(parts, "train"), list[Item]()
    if train:
        told = dict(line.split("\t")[:2] for line in annotations.splitlines() if "\t" in line)
        sides = (_items(parts, folder) for folder in VALIDATION_FOLDERS)
        found = next(filter(None, sides), [])
        validation = [(path, told.get(PurePosixPath(path).name, name)) for path, name in found]
    else:
        train = [("/".join(p), p[0]) for p in parts if len(p) > 1]
    if not validation:
        validation = [item for item in train if number_of(item[0]) % HELD_OUT == 0]
        train = [item for item in train if number_of(item[0]) % HELD_OUT]
    return _checked(Listing(sorted({name for _, name in train}), train, validation))


def _items(parts: list[tuple[str, ...]], folder: str) -> list[Item]:
    return [("/".join(p), p[1]) for p in parts if p[0] == folder and len(p) > 2]


def _checked(listing: Listing) -> Listing:
    for side in ("train", "validation"):
        if not getattr(listing, side):
            raise UsageError(
                f"there is no image for {side}: images are expected in train/CLASS/ and "
                f"val/CLASS/, or in CLASS/, where about one in {HELD_OUT} is for validation"
            )
    strange = sorted({name for _, name in listing.validation} - set(listing.classes))
    if strange:
        raise UsageError(
            f"validation has images of the class {strange[0]}, of which training has none"
        )
    return listing


def is_image(path: str | Path) -> bool:
    """Whether this is the name of an image file."""
    return str(path).lower().endswith(SUFFIXES)


def folder_images(folder: Path, *, report: Report) -> Images:
    """The images of a folder: small ones in memory, larger ones decoded when asked for."""

    def read(items: Sequence[Item]) -> list[Encoded]:
        return [Encoded(path, (folder / path).read_bytes()) for path, _ in items]

    files = (path for path in folder.rglob("*") if is_image(path))
    annotations = folder / ANNOTATIONS
    listing = list_images(
        (path.relative_to(folder).as_posix() for path in files),
        annotations.read_text("utf-8") if annotations.is_file() else "",
    )
    if side_of(read(listing.train[:1])[0]) > SMALL_SIDE:
        return _lazy_images(folder.name, listing, read)
    report(f"decoding the images of {folder}")
    return _small_images(folder.name, listing, read)


def _lazy_images(name: str, listing: Listing, read: Read) -> Images:
    """Images of which a crop is shown, in colour whatever they are."""

    def side(items: list[Item]) -> Labelled:
        pixels = LazyImages(lambda picks: read([items[i] for i in picks]), len(items))
        return Labelled(pixels, listing.labels(items))

    sides = side(listing.train), side(listing.validation)
    return images_of(name, *sides, classes=len(listing.classes), side=SHOWN_SIDE, padding=0)


def _small_images(name: str, listing: Listing, read: Read) -> Images:
    """Images that are held in memory, all brought to the form of the training images."""
    train = read(listing.train)
    form = form_of(train)
    sides = (
        Labelled(decode_all(files, form), listing.labels(items))
        for files, items in ((train, listing.train), (read(listing.validation), listing.validation))
    )
    return images_of(name, *sides, classes=len(listing.classes), side=form.side)


def archive_images(path: Path, name: str, *, cache: Path | None, report: Report) -> Images:
    """The images of a tar archive, decoded once and kept in the cache by a hash of its content."""
    folder = cache_folder(cache)
    (digest,) = file_digests([path], folder)
    kept = folder / f"images-3-{digest.hex()}.npz"  # 3: of this layout
    if not is_whole(kept):
        again = f": {kept} was there and is damaged" if kept.exists() else ""
        report(f"decoding the images of {path}{again}")
        images = _small_images(name, *_unpacked(path))
        arrays: dict[str, Any] = {key: np.asarray(getattr(images, key)) for key in KEPT}
        with sealing(kept) as file:
            np.savez(file, **arrays)
    with np.load(kept) as arrays:
        train, train_labels, validation, validation_labels, classes = (
            torch.from_numpy(arrays[key]) for key in KEPT
        )
    sides = Labelled(train, train_labels), Labelled(validation, validation_labels)
    return images_of(name, *sides, classes=int(classes), side=train.shape[-1])


def _unpacked(path: Path) -> tuple[Listing, Read]:
    """What is in an archive, without the folder that all of it is in, and how to read it."""
    try:
        files = dict(_members(path))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UsageError(f"{path} is no tar archive that can be read: {error}") from error
    roots = {PurePosixPath(name).parts[0] for name in files}
    if len(roots) == 1:
        files = {name.partition("/")[2]: data for name, data in files.items()}
    annotations = files.get(ANNOTATIONS, b"").decode()
    listing = list_images(filter(is_image, files), annotations)
    first = Encoded(listing.train[0][0], files[listing.train[0][0]])
    if side_of(first) > SMALL_SIDE:
        raise UsageError(
            f"{path} has images of more than {SMALL_SIDE} pixels a side, which are read from a "
            "folder: unpack it and give the folder"
        )
    return listing, lambda items: [Encoded(name, files[name]) for name, _ in items]


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The names and bytes of the images of an archive, and of Tiny ImageNet's annotations."""
    with tarfile.open(path) as archive:
        for member in archive:
            wanted = is_image(member.name) or member.name.endswith(ANNOTATIONS)
            if wanted and (file := archive.extractfile(member)) is not None:
                yield PurePosixPath(member.name).as_posix(), file.read()
