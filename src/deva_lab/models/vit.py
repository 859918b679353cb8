"""The vision transformer of Dosovitskiy et al. (2021), An Image is Worth 16 × 16 Words.

Pre-norm, learned positions, a class token. ViT-L/16 has 304,326,632 parameters at 224 pixels with
1000 classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


@dataclass(frozen=True)
class ViTSize:
    """How large a vision transformer is."""

    patch: int  # height and width of a patch, in pixels
    width: int
    depth: int
    heads: int
    std: float | None = None  # of the weights of blocks at the start; None: 1/√inputs of each


INIT_STD: Final = 0.02  # of the other weights, and usual for those of large models
SIZES: Final = {
    # 0.02 is made for great widths: in narrow ones the class token hardly hears of the image, and
    # nothing is learnt for the first steps
    "tiny": ViTSize(patch=2, width=64, depth=2, heads=4),
    "mini": ViTSize(patch=4, width=96, depth=4, heads=3),
    "small": ViTSize(patch=4, width=192, depth=6, heads=3),
    "vit-s16": ViTSize(patch=16, width=384, depth=12, heads=6, std=INIT_STD),
    "vit-b16": ViTSize(patch=16, width=768, depth=12, heads=12, std=INIT_STD),
    "vit-l16": ViTSize(patch=16, width=1024, depth=24, heads=16, std=INIT_STD),
}

MLP_RATIO: Final = 4
NORM_EPS: Final = 1e-6  # of the authors' code


class Attention(nn.Module):
    """Attention of every token to every token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, t, width) → (n, t, width)."""
        n, t, width = x.shape
        qkv = self.qkv(x).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (n, heads, t, width / heads)
        y = scaled_dot_product_attention(q, k, v)
        out: Tensor = self.proj(y.transpose(1, 2).reshape(n, t, width))
        return out


class Block(nn.Module):
    """Attention and a two-layer perceptron, each on the normalised input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=NORM_EPS)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=NORM_EPS)
        self.up = nn.Linear(width, MLP_RATIO * width)
        self.down = nn.Linear(MLP_RATIO * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, t, width) → (n, t, width)."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.down(gelu(self.up(self.norm2(x))))
        return out


class ViT(nn.Module):
    """A vision transformer whose class token is read by a linear head.

    Args:
        size: How large it is.
        side: Height and width of an image, a multiple of the patch's.
        channels: Of an image.
        classes: Of images.

    Raises:
        ValueError: If the patches do not fill the image.
    """

    def __init__(self, size: ViTSize, *, side: int, channels: int, classes: int) -> None:
        super().__init__()
        if side % size.patch:
            raise ValueError(f"side must be a multiple of the patch, {size.patch}, got {side}")
        tokens = 1 + (side // size.patch) ** 2
        self.patches = nn.Conv2d(channels, size.width, size.patch, stride=size.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size.width))
        self.positions = nn.Parameter(torch.zeros(1, tokens, size.width))
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.depth)))
        self.norm = nn.LayerNorm(size.width, eps=NORM_EPS)
        self.head = nn.Linear(size.width, classes)
        self._initialise_(size.std)

    def forward(self, images: Tensor) -> Tensor:
        """The logits (n, classes) of images (n, channels, side, side)."""
        x = self.patches(images).flatten(2).mT  # (n, t - 1, width)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)  # (n, t, width)
        x = self.blocks(x + self.positions)
        logits: Tensor = self.head(self.norm(x[:, 0]))  # the norm is of each token alone
        return logits

    def _initialise_(self, std: float | None) -> None:
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=std or module.in_features**-0.5)
                nn.init.zeros_(module.bias)
        for weight in (self.patches.weight, self.class_token, self.positions, self.head.weight):
            nn.init.trunc_normal_(weight, std=INIT_STD)
        for layer in (self.patches, self.head):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
