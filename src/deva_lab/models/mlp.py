"""A three-layer perceptron on the pixels of an image: the smallest model of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn
from torch.nn.functional import gelu


@dataclass(frozen=True)
class MLPSize:
    """How large a perceptron is."""

    width: int  # of both hidden layers


SIZES: Final = {
    "tiny": MLPSize(width=64),
    "small": MLPSize(width=256),
    "large": MLPSize(width=1024),
}


class MLP(nn.Module):
    """Two hidden layers with GELU, and a linear head.

    Args:
        size: How large it is.
        side: Height and width of an image.
        channels: Of an image.
        classes: Of images.
    """

    def __init__(self, size: MLPSize, *, side: int, channels: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels * side * side, size.width)
        self.second = nn.Linear(size.width, size.width)
        self.head = nn.Linear(size.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits (n, classes) of images (n, channels, side, side)."""
        hidden = gelu(self.first(images.flatten(1)))  # (n, width)
        hidden = gelu(self.second(hidden))  # (n, width)
        logits: Tensor = self.head(hidden)
        return logits
