"""Images by name: scikit-learn's digits, CIFAR-10 in three wrappings, ImageNet from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError
from .decoding import SHOWN_SIDE, Encoded, Form, decode_all
from .image_parquet import parquet_images
from .image_set import Images, Labelled, Report, images_of

# --- Digits --------------------------------------------------------------------------------------

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
    held = _every(DIGITS_HELD_OUT, labels)
    train, validation = (Labelled(pixels[side], labels[side]) for side in (~held, held))
    return images_of("digits", train, validation, classes=10, side=8, padding=1, flip=False)


def _every(count: int, labels: Tensor) -> Tensor:
    """Which images are held out: one in `count` of each class, in a fixed random order."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(int(labels.max()) + 1):
        held[order[labels[order] == label][::count]] = True
    return held


# --- CIFAR-10 ------------------------------------------------------------------------------------

CIFAR_SIDE: Final = 32
CIFAR_CLASSES: Final = 10
RECORD: Final = 1 + 3 * CIFAR_SIDE**2  # bytes of an image in the binary format: its label first
TRAIN_FILES: Final = "data_batch_*.bin"
TEST_FILE: Final = "test_batch.bin"
TILES: Final = ("train10000", "test2000")


def cifar_files(folder: Path) -> tuple[list[Path], Path] | None:
    """The files of CIFAR-10's binary format in a folder, for training and validation, if any.

    Raises:
        UsageError: If there are files for training only, or one is cut off.
    """
    train, test = sorted(folder.glob(TRAIN_FILES)), folder / TEST_FILE
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
    return _cifar(name, *(_records(files) for files in (train, [test])))


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


def tile_files(folder: Path) -> list[Path]:
    """The files that a folder of tiled images has to have."""
    return [folder / f"{stem}{suffix}" for stem in TILES for suffix in (".webp", ".labels.u8")]


def cifar_tiles(name: str, folder: Path) -> Images:
    """CIFAR-10 from two large pictures whose tiles are the images, row by row."""
    return _cifar(name, *(_tiles(folder, stem) for stem in TILES))


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


def _cifar(name: str, train: Labelled, validation: Labelled) -> Images:
    return images_of(name, train, validation, classes=CIFAR_CLASSES, side=CIFAR_SIDE)


# --- The hub -------------------------------------------------------------------------------------


class HubSet(NamedTuple):
    """A set of images of the Hugging Face hub."""

    repository: str
    image: str  # the column of the images
    validation: str  # the split to validate on
    in_memory: bool  # else it is streamed

    @property
    def side(self) -> int:
        """Height and width of what a model sees of an image."""
        return CIFAR_SIDE if self.in_memory else SHOWN_SIDE


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
    train, validation = (_split(source, splits[key]) for key in ("train", source.validation))
    classes = splits["train"].features["label"].num_classes
    return images_of(name, train, validation, classes=classes, side=source.side)


def _split(source: HubSet, split: Any) -> Labelled:
    import datasets

    files = split.cast_column(source.image, datasets.Image(decode=False))
    encoded = [_encoded(entry) for entry in files[source.image][:]]
    labels = torch.tensor(files["label"][:])
    return Labelled(decode_all(encoded, Form(source.side, "RGB")), labels)


def _encoded(entry: Mapping[str, Any]) -> Encoded:
    """The file of an entry, which is inside the table or beside it."""
    path = entry["path"] or "an image"
    return Encoded(path, entry["bytes"] or Path(path).read_bytes())
