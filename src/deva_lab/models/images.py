"""The models of images: residual networks, vision transformers, and a perceptron."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, relu, scaled_dot_product_attention

from ..errors import UsageError
from ..run.settings import TASKS


class Shape(NamedTuple):
    """What a model has to know of images."""

    side: int  # height and width
    channels: int
    classes: int


# The residual networks for small images of He et al. (2016), Deep Residual Learning, section 4.2
# ResNet-20 has 269,722 parameters with ten classes: the shortcuts have none (option A).


class ResNetSize(NamedTuple):
    """How large a residual network is; it has 6 · blocks + 2 layers with weights."""

    blocks: int  # in each of the three stages
    width: int = 16  # channels of the first stage; the second has twice, the third four times these


RESNET_SIZES: Final = {name: ResNetSize(**row) for name, row in TASKS["resnet"].models.items()}


class ResNetBlock(nn.Module):
    """Two 3 × 3 convolutions around which the input goes; where channels double, sides halve."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = outputs // inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) → (n, outputs, h / stride, w / stride)."""
        y = relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        # The shortcut thins the input out to the stride; new channels are zeros.
        new = y.shape[1] - x.shape[1]
        thinned = x[:, :, :: self.stride, :: self.stride]
        return relu(y + pad(thinned, (0, 0, 0, 0, new // 2, new - new // 2)))


class ResNet(nn.Module):
    """A convolution, three stages of blocks at full, half and quarter size, and a linear head."""

    def __init__(self, size: ResNetSize, shape: Shape) -> None:
        super().__init__()
        width = size.width
        self.conv = nn.Conv2d(shape.channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential()
        for inputs, outputs in pairwise((width, width, 2 * width, 4 * width)):
            rest = (ResNetBlock(outputs, outputs) for _ in range(size.blocks - 1))
            self.stages.append(nn.Sequential(ResNetBlock(inputs, outputs), *rest))
        self.head = nn.Linear(4 * width, shape.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """The logits (n, classes) of images (n, channels, h, w)."""
        x = relu(self.norm(self.conv(images)))  # (n, width, h, w)
        x = self.stages(x)  # (n, 4 width, h / 4, w / 4)
        return self.head(x.mean(dim=(2, 3)))


# The vision transformer of Dosovitskiy et al. (2021), An Image is Worth 16 × 16 Words -------------
# Pre-norm, learned positions, a class token. ViT-L/16 has 304,326,632 parameters at 224 pixels with
# 1000 classes.


class ViTSize(NamedTuple):
    """How large a vision transformer is."""

    patch: int  # height and width of a patch, in pixels
    width: int
    depth: int
    heads: int
    # Of the weights of blocks at the start; None: 1/√inputs of each. The usual 0.02 is made for
    # great widths: in narrow models the class token hardly depends on the image then, and the first
    # steps teach nothing.
    std: float | None = None

    def tokens(self, side: int) -> int:
        """The patches of an image, and the class token.

        Raises:
            UsageError: If the patches do not fill the image.
        """
        if side % self.patch:
            raise UsageError(
                f"the patches of this ViT need images whose side is a multiple of {self.patch} "
                f"pixels, got {side}: choose another size or other data"
            )
        return 1 + (side // self.patch) ** 2


INIT_STD: Final = 0.02  # of the other weights
VIT_SIZES: Final = {name: ViTSize(**row) for name, row in TASKS["vit"].models.items()}
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
        return self.proj(y.transpose(1, 2).reshape(n, t, width))


class ViTBlock(nn.Module):
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
        return x + self.down(gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """A vision transformer whose class token is read by a linear head."""

    def __init__(self, size: ViTSize, shape: Shape) -> None:
        super().__init__()
        self.patches = nn.Conv2d(shape.channels, size.width, size.patch, stride=size.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size.width))
        self.positions = nn.Parameter(torch.zeros(1, size.tokens(shape.side), size.width))
        self.blocks = nn.Sequential(*(ViTBlock(size.width, size.heads) for _ in range(size.depth)))
        self.norm = nn.LayerNorm(size.width, eps=NORM_EPS)
        self.head = nn.Linear(size.width, shape.classes)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=size.std or module.in_features**-0.5)
        for weight in (self.patches.weight, self.class_token, self.positions, self.head.weight):
            nn.init.trunc_normal_(weight, std=INIT_STD)
        for name, param in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(param)

    def forward(self, images: Tensor) -> Tensor:
        """The logits (n, classes) of images (n, channels, side, side)."""
        x = self.patches(images).flatten(2).mT  # (n, t - 1, width)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)  # (n, t, width)
        x = self.blocks(x + self.positions)
        return self.head(self.norm(x[:, 0]))  # the norm is of each token alone


# A perceptron on the pixels, the smallest model of images -----------------------------------------

MLP_SIZES: Final[Mapping[str, int]] = TASKS["mlp"].models  # the width of both hidden layers


class MLP(nn.Sequential):
    """Two hidden layers of this width with GELU, and a linear head."""

    def __init__(self, width: int, shape: Shape) -> None:
        super().__init__()
        self.pixels = nn.Flatten()
        self.first = nn.Linear(shape.channels * shape.side**2, width)
        self.first_gelu = nn.GELU()
        self.second = nn.Linear(width, width)
        self.second_gelu = nn.GELU()
        self.head = nn.Linear(width, shape.classes)


# The three families ------------------------------------------------------------------------------

FAMILIES: Final[Mapping[str, tuple[Callable[[Any, Shape], nn.Module], Mapping[str, Any]]]] = {
    "resnet": (ResNet, RESNET_SIZES),
    "vit": (ViT, VIT_SIZES),
    "mlp": (MLP, MLP_SIZES),
}
"""Name → what makes a model of a size for images of a shape, and the sizes."""
