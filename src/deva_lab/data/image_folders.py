"""Folders and archives of images: a folder a class, inside train/ and val/ or cut by a hash."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..digests import is_whole, sealing
from ..errors import UsageError
from .cache import cache_folder
from .decoding import (
    SHOWN_SIDE,
    SMALL_SIDE,
    STORED_SIDE,
    Encoded,
    Form,
    LazyImages,
    decode_all,
    form_of,
    side_of,
)
from .image_set import Images, Labelled, Report, images_of

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
    train = _items(parts, "train")
    if train:
        sides = (_items(parts, folder) for folder in VALIDATION_FOLDERS)
        validation = _annotated(next(filter(None, sides), []), annotations)
    else:
        train, validation = [("/".join(p), p[0]) for p in parts if len(p) > 1], []
    if not validation:
        train, validation = _cut(train)
    return _checked(Listing(sorted({name for _, name in train}), train, validation))


def _items(parts: list[tuple[str, ...]], folder: str) -> list[Item]:
    return [("/".join(p), p[1]) for p in parts if p[0] == folder and len(p) > 2]


def _annotated(items: list[Item], annotations: str) -> list[Item]:
    """The items with the classes that the annotations give to their files."""
    told = dict(line.split("\t")[:2] for line in annotations.splitlines() if "\t" in line)
    return [(path, told.get(PurePosixPath(path).name, name)) for path, name in items]


def _cut(items: list[Item]) -> tuple[list[Item], list[Item]]:
    """The items for training and those for validation, by a hash of the path."""
    held = [_number(path) % HELD_OUT == 0 for path, _ in items]
    train = [item for item, out in zip(items, held, strict=True) if not out]
    return train, [item for item, out in zip(items, held, strict=True) if out]


def _number(path: str) -> int:
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big")


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


# --- Folders -------------------------------------------------------------------------------------


def is_image(path: str | Path) -> bool:
    """Whether this is the name of an image file."""
    return str(path).lower().endswith(SUFFIXES)


def folder_images(folder: Path, *, report: Report) -> Images:
    """The images of a folder: small ones in memory, larger ones decoded when asked for."""
    files = (path for path in folder.rglob("*") if is_image(path))
    annotations = folder / ANNOTATIONS
    listing = list_images(
        (path.relative_to(folder).as_posix() for path in files),
        annotations.read_text("utf-8") if annotations.is_file() else "",
    )
    read = _reader(folder)
    if side_of(read(listing.train[:1])[0]) > SMALL_SIDE:
        return _lazy_images(folder.name, listing, read)
    report(f"decoding the images of {folder}")
    return _small_images(folder.name, listing, read)


def _reader(folder: Path) -> Read:
    def read(items: Sequence[Item]) -> list[Encoded]:
        return [Encoded(path, (folder / path).read_bytes()) for path, _ in items]

    return read


def _lazy_images(name: str, listing: Listing, read: Read) -> Images:
    """Images of which a crop is shown, in colour whatever they are."""

    def side(items: list[Item]) -> Labelled:
        form = Form(STORED_SIDE, "RGB")
        pixels = LazyImages(lambda picks: read([items[i] for i in picks]), len(items), form)
        return Labelled(pixels, listing.labels(items))

    classes = len(listing.classes)
    sides = side(listing.train), side(listing.validation)
    return images_of(name, *sides, classes=classes, side=SHOWN_SIDE, padding=0)


def _small_images(name: str, listing: Listing, read: Read) -> Images:
    """Images that are held in memory, all brought to the form of the training images."""
    train, validation = read(listing.train), read(listing.validation)
    form = form_of(train)
    return images_of(
        name,
        Labelled(decode_all(train, form), listing.labels(listing.train)),
        Labelled(decode_all(validation, form), listing.labels(listing.validation)),
        classes=len(listing.classes),
        side=form.side,
    )


# --- Archives ------------------------------------------------------------------------------------


def archive_images(path: Path, name: str, *, cache: Path | None, report: Report) -> Images:
    """The images of a tar archive, decoded once and kept in the cache by a hash of its content."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    kept = cache_folder(cache) / f"images-2-{digest[:32]}.npz"  # 2: of this layout
    if not is_whole(kept):
        again = f": {kept} was there and is damaged" if kept.exists() else ""
        report(f"decoding the images of {path}{again}")
        _keep(_small_images(name, *_unpacked(path)), kept)
    with np.load(kept) as arrays:
        train, train_labels, validation, validation_labels, classes = (
            torch.from_numpy(arrays[key]) for key in KEPT
        )
    sides = Labelled(train, train_labels), Labelled(validation, validation_labels)
    return images_of(name, *sides, classes=int(classes), side=train.shape[-1])


def _keep(images: Images, path: Path) -> None:
    arrays: dict[str, Any] = {key: np.asarray(getattr(images, key)) for key in KEPT}
    with sealing(path) as file:
        np.savez(file, **arrays)


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
