"""What is done to images on their way to a model: random crops and flips, centre crops, scaling."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad


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
