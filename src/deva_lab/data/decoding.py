"""From compressed images to pixels: all at once, or batch by batch where memory is too small."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError

SMALL_SIDE: Final = 64  # up to this many pixels a side, images are decoded once and kept in memory
STORED_SIDE: Final = 256  # larger ones are brought to this side …
SHOWN_SIDE: Final = 224  # … and a model sees so much of it
GREY: Final = ("1", "L")  # Pillow's modes of one channel


class Encoded(NamedTuple):
    """The bytes of an image file."""

    name: str  # for messages
    data: bytes


class Form(NamedTuple):
    """What images are brought to, so that they can be stacked."""

    side: int
    mode: str  # "L" or "RGB"


class LazyImages:
    """Images that are decoded when they are asked for, by several threads.

    Args:
        read: From indices to image files.
        count: How many images there are.
        form: What they are brought to.
    """

    def __init__(
        self, read: Callable[[list[int]], Sequence[Encoded]], count: int, form: Form
    ) -> None:
        self.read, self.count, self.form = read, count, form

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """The images of these indices, uint8 (n, c, side, side)."""
        return decode_all(self.read(index.tolist()), self.form)


def decode_all(files: Sequence[Encoded], form: Form) -> Tensor:
    """The pixels of images, uint8 (n, c, side, side)."""
    # Pillow gives up the interpreter's lock while it decodes and scales
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return torch.stack(list(pool.map(lambda file: decode(file, form), files)))


def decode(file: Encoded, form: Form) -> Tensor:
    """The pixels of an image, uint8 (c, side, side): its shorter side scaled, its middle kept."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(file.data)) as image:
            image.draft(form.mode, (form.side, form.side))  # a JPEG may be decoded at half its size
            fitted = ImageOps.fit(
                image.convert(form.mode), (form.side, form.side), Image.Resampling.BILINEAR
            )
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{file.name} is no image that can be read: {error}") from error
    pixels = torch.from_numpy(np.array(fitted))  # (side, side) or (side, side, 3)
    return pixels.view(form.side, form.side, -1).permute(2, 0, 1).contiguous()


def form_of(files: Sequence[Encoded]) -> Form:
    """The shorter side of the first image; grey if all are."""
    heads = [_head(file) for file in files]
    grey = all(mode in GREY for _, mode in heads)
    return Form(heads[0][0], "L" if grey else "RGB")


def side_of(file: Encoded) -> int:
    """The shorter side of an image, in pixels."""
    return _head(file)[0]


def _head(file: Encoded) -> tuple[int, str]:
    """The shorter side of an image, and Pillow's name for the channels that it has."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(file.data)) as image:
            return min(image.size), image.mode
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{file.name} is no image that can be read: {error}") from error
