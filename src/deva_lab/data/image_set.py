"""Images and their labels, for training and for validation, whatever they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

Report = Callable[[str], None]

SAMPLE: Final = 512  # images that mean and deviation are taken from where each has to be decoded
CHUNK: Final = 128  # images that are in float64 at once


class Pixels(Protocol):
    """Images that are had by their indices: a tensor, or files that are decoded when asked for."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """The images of these indices, uint8 (n, c, h, w)."""


class Labels(Protocol):
    """The classes of images: a tensor, or what is read when asked for."""

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """The classes of the images of these indices, int64 (n,)."""


class Labelled(NamedTuple):
    """Images with their classes."""

    pixels: Pixels
    labels: Labels


@dataclass(frozen=True, eq=False)
class Images:
    """A set of images with labels, cut in two."""

    name: str
    train: Pixels
    train_labels: Labels
    validation: Pixels
    validation_labels: Labels
    classes: int
    mean: Tensor  # float32 (c,), of the training images
    std: Tensor
    side: int  # height and width of what a model sees of an image
    padding: int  # around an image of which a random part is taken for training
    flip: bool  # whether an image may be mirrored for training
    groups: tuple[int, ...] = ()  # the sizes of groups that are read as a whole, if they are

    @property
    def channels(self) -> int:
        """1 or 3."""
        return len(self.mean)


def images_of(
    name: str,
    train: Labelled,
    validation: Labelled,
    *,
    classes: int,
    side: int,
    padding: int = 4,
    flip: bool = True,
    sample: Tensor | None = None,
    groups: tuple[int, ...] = (),
) -> Images:
    """The set of images, with mean and deviation of its training images, or of a sample of them.

    The names of the other arguments are those of `Images`.
    """
    mean, std = _moments(train.pixels, sample)
    return Images(name, *train, *validation, classes, mean, std, side, padding, flip, groups)


def silent(message: str) -> None:
    """Says nothing of what takes long."""


def evenly(count: int, most: int) -> Tensor:
    """The indices of all of `count` images, or of so many of them at equal distances.

    Not of the first ones, since folders are in the order of their classes.

    >>> evenly(10, 4)
    tensor([0, 2, 5, 7])
    """
    used = min(count, most)
    return torch.arange(used) * count // used


def _moments(pixels: Pixels, sample: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, both (c,)."""
    count = len(pixels)
    usual = evenly(count, count if isinstance(pixels, Tensor) else SAMPLE)
    index = usual if sample is None else sample
    sums = [_sums(pixels[part]) for part in torch.split(index, CHUNK)]
    number, total, squares = (sum(column) for column in zip(*sums, strict=True))
    mean = total / number
    variance = squares / number - mean.square()
    # a channel that is constant, such as an empty one, stays finite
    return mean.float(), variance.clamp(min=1e-6).sqrt().float()


def _sums(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The number of pixels, and for each channel their sum and the sum of their squares."""
    x = pixels.double().transpose(0, 1).flatten(1)  # (c, n · h · w)
    return torch.tensor(x.shape[1]), x.sum(1), x.square().sum(1)
