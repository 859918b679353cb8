"""Images and their labels, whatever they come from, and what is done to them on their way."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from ..errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

Found = TypeVar("Found")
SAMPLE: Final = 512  # images that mean and deviation are taken from where each has to be decoded
CHUNK: Final = 128  # images that are in float64 at once
SMALL_SIDE: Final = 64  # up to this many pixels a side, images are decoded once and kept in memory
STORED_SIDE: Final = 256  # larger ones are brought to this side …
SHOWN_SIDE: Final = 224  # … and a model sees so much of it


@dataclass(frozen=True)
class Lazy:
    """Images or labels that are read when they are asked for, by their indices, as of a tensor.

    Attributes:
        read: From indices (n,) to images, uint8 (n, c, h, w), or labels, int64 (n,).
        count: How many there are.
    """

    read: Callable[[Tensor], Tensor]
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

    name: str
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
        self.mean, self.std = _moments(self.train, index)

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


def _moments(pixels: Rows, index: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of these images, both (c,)."""
    sums = []
    for part in torch.split(index, CHUNK):
        x = pixels[part].double().transpose(0, 1).flatten(1)  # (c, n · h · w)
        sums.append((torch.tensor(x.shape[1]), x.sum(1), x.square().sum(1)))
    number, total, squares = (sum(column) for column in zip(*sums, strict=True))
    mean = total / number
    variance = squares / number - mean.square()
    # a channel that is constant, such as an empty one, stays finite
    return mean.float(), variance.clamp(min=1e-6).sqrt().float()


# From compressed images to pixels -----------------------------------------------------------------


class Encoded(NamedTuple):
    """The bytes of an image file."""

    name: str  # for messages
    data: bytes


class Form(NamedTuple):
    """What images are brought to, so that they can be stacked."""

    side: int
    mode: str  # "L" or "RGB"


LARGE: Final = Form(STORED_SIDE, "RGB")


def small_images(
    name: str,
    train: tuple[Sequence[Encoded], Tensor],
    validation: tuple[Sequence[Encoded], Tensor],
    *,
    classes: int,
) -> Images:
    """Files with labels, decoded into memory, all of them to the form of the training images."""
    form = form_of(train[0])
    pixels = [decode_all(files, form) for files, _ in (train, validation)]
    return Images(name, pixels[0], train[1], pixels[1], validation[1], classes, form.side)


def decode_all(files: Sequence[Encoded], form: Form) -> Tensor:
    """The pixels of images, uint8 (n, c, side, side)."""
    # Pillow gives up the interpreter's lock while it decodes and scales
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return torch.stack(list(pool.map(lambda file: decode(file, form), files)))


def decode(file: Encoded, form: Form) -> Tensor:
    """The pixels of an image, uint8 (c, side, side): its shorter side scaled, its middle kept."""
    from PIL import Image, ImageOps

    def fitted(image: Image.Image) -> Image.Image:
        image.draft(form.mode, (form.side, form.side))  # a JPEG may be decoded at half its size
        size = (form.side, form.side)
        return ImageOps.fit(image.convert(form.mode), size, Image.Resampling.BILINEAR)

    pixels = torch.from_numpy(np.array(_opened(file, fitted)))  # (side, side) or (side, side, 3)
    return pixels.view(form.side, form.side, -1).permute(2, 0, 1).contiguous()


def form_of(files: Sequence[Encoded]) -> Form:
    """The shorter side of the first image; grey if all are."""
    grey = all(_opened(file, lambda image: image.mode in ("1", "L")) for file in files)
    return Form(side_of(files[0]), "L" if grey else "RGB")


def side_of(file: Encoded) -> int:
    """The shorter side of an image, in pixels."""
    return _opened(file, lambda image: min(image.size))


def _opened(file: Encoded, use: Callable[[Image.Image], Found]) -> Found:
    """What a function finds in an image, or a UsageError that names a file that is none."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(file.data)) as image:
            return use(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{file.name} is no image that can be read: {error}") from error


# Crops --------------------------------------------------------------------------------------------


def random_views(
    pixels: Tensor, *, side: int, padding: int, flip: bool, generator: Generator
) -> Tensor:
    """A random crop of each image, mirrored half of the time.

    Args:
        pixels: Images (n, c, h, w).
        side: Height and width of a crop.
        padding: Pixels of zeros around each image before it is cropped.
        flip: Whether to mirror, left to right.
        generator: Where chance comes from.

    Returns:
        The crops, (n, c, side, side).
    """
    padded = pad(pixels, (padding,) * 4)
    crops = padded.unfold(2, side, 1).unfold(3, side, 1)  # (n, c, rows, columns, side, side), views
    count, rows, columns = len(pixels), crops.shape[2], crops.shape[3]
    top = torch.randint(rows, (count,), generator=generator)
    left = torch.randint(columns, (count,), generator=generator)
    views = crops[torch.arange(count), :, top, left]
    if not flip:
        return views
    mirrored = torch.randint(2, (count, 1, 1, 1), generator=generator).bool()
    return torch.where(mirrored, views.flip(-1), views)


def centre_views(pixels: Tensor, *, side: int) -> Tensor:
    """The middle (n, c, side, side) of each image (n, c, h, w)."""
    top, left = (pixels.shape[-2] - side) // 2, (pixels.shape[-1] - side) // 2
    return pixels[..., top : top + side, left : left + side]


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images (n, c, h, w) in float32, less the mean (c,) and over the deviation (c,)."""
    return pixels.sub(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))
