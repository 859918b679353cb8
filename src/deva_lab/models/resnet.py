"""The residual networks for small images of He et al. (2016), Deep Residual Learning, section 4.2.

ResNet-20 has 269,722 parameters with ten classes: the shortcuts have none (option A).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn
from torch.nn.functional import pad, relu


@dataclass(frozen=True)
class ResNetSize:
    """How large a residual network is; it has 6 · blocks + 2 layers with weights."""

    blocks: int  # in each of the three stages
    width: int = 16  # channels of the first stage; the second has twice, the third four times these


SIZES: Final = {
    "tiny": ResNetSize(blocks=1, width=8),
    "small": ResNetSize(blocks=3),
    "resnet20": ResNetSize(blocks=3),
    "resnet32": ResNetSize(blocks=5),
    "resnet44": ResNetSize(blocks=7),
    "resnet56": ResNetSize(blocks=9),
    "resnet110": ResNetSize(blocks=18),
}


class Block(nn.Module):
    """Two 3 × 3 convolutions around which the input goes unchanged; a stride halves the image."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) → (n, outputs, h / stride, w / stride)."""
        y = relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return relu(y + self._shortcut(x, y.shape[1]))

    def _shortcut(self, x: Tensor, outputs: int) -> Tensor:
        """The input, thinned out to the stride, with channels of zeros for those that are new."""
        new = outputs - x.shape[1]
        x = x[:, :, :: self.stride, :: self.stride]
        return pad(x, (0, 0, 0, 0, new // 2, new - new // 2))


class ResNet(nn.Module):
    """A convolution, three stages of blocks at full, half and quarter size, and a linear head.

    Args:
        size: How large it is.
        channels: Of an image.
        classes: Of images.
    """

    def __init__(self, size: ResNetSize, *, channels: int, classes: int) -> None:
        super().__init__()
        width = size.width
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            _stage(width, width, size.blocks, stride=1),
            _stage(width, 2 * width, size.blocks, stride=2),
            _stage(2 * width, 4 * width, size.blocks, stride=2),
        )
        self.head = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """The logits (n, classes) of images (n, channels, h, w)."""
        x = relu(self.norm(self.conv(images)))  # (n, width, h, w)
        x = self.stages(x)  # (n, 4 width, h / 4, w / 4)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def _stage(inputs: int, outputs: int, blocks: int, *, stride: int) -> nn.Sequential:
    """Blocks of which the first changes the channels and the size of the image."""
    first = Block(inputs, outputs, stride=stride)
    return nn.Sequential(first, *(Block(outputs, outputs, stride=1) for _ in range(blocks - 1)))
