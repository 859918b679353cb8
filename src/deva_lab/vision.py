"""Classification of images: a ResNet, a ViT or an MLP learns what they show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, pad

from .data.image_set import MIXED, Images, evenly, neighbours_mixed
from .data.images import SHAPES, check_images
from .files import number_of
from .models.images import FAMILIES, VIT_SIZES, Shape
from .run.ranks import ALONE, Ranks

VALIDATION_IMAGES: Final = 10_000  # in an evaluation, at most
CHUNK: Final = 256  # of which go through the model at once


class ImageTask:
    """A model that classifies images.

    Args:
        family, size: Of the model, one of `FAMILIES` and of its sizes.
        images: The images.
        seed: What the model's first weights, the order of the images and their crops depend on.
        batch: Images in a batch.
    """

    unit = "images"

    def __init__(self, family: str, size: str, images: Images, *, seed: int, batch: int) -> None:
        self.family, self.size, self.images = family, size, images
        self.seed, self.units = seed, batch

    def model(self) -> nn.Module:
        """The model, initialised from the seed alone."""
        x = self.images
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return build_model(self.family, self.size, Shape(x.side, x.channels, x.classes))

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Images (batch, c, side, side) and labels (batch,), a function of seed and step."""
        x = self.images
        index = order(len(x.train), seed=self.seed, batch=self.units, step=step, groups=x.groups)
        chance = generator(self.seed, "views", step)
        views = random_views(
            x.train[index], side=x.side, padding=x.padding, flip=x.flip, generator=chance
        )
        return normalised(views, x), x.train_labels[index]

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean cross-entropy of a batch, in nats an image."""
        return cross_entropy(*_logits(model, *batch))

    @torch.no_grad()
    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        """The mean "loss" and the "accuracy" on the validation images."""
        images = self.images
        index = evenly(len(images.validation), VALIDATION_IMAGES)
        loss = correct = 0.0
        with evaluating(model):
            for part, count in map(ranks.rows, torch.split(index, ranks.size * CHUNK)):
                shown = normalised(centre_views(images.validation[part], images.side), images)
                logits, labels = _logits(model, shown, images.validation_labels[part])
                loss += float(cross_entropy(logits[:count], labels[:count], reduction="sum"))
                correct += int((logits.argmax(1) == labels)[:count].sum())
        loss, correct = ranks.total(loss, correct)
        return {"loss": loss / len(index), "accuracy": correct / len(index)}


def check_image_task(family: str, size: str, data: str) -> None:
    """Raises UsageError if there are no such images, or the model is known not to take them."""
    check_images(data)
    if family == "vit" and data in SHAPES:
        VIT_SIZES[size].tokens(SHAPES[data].side)


def build_model(family: str, size: str, shape: Shape) -> nn.Module:
    """The model of a family and size for images of this shape."""
    build, sizes = FAMILIES[family]
    return build(sizes[size], shape)


def _logits(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The logits in float32, and the labels, both on the model's device."""
    weight = next(model.parameters())
    logits: Tensor = model(images.to(weight.device, weight.dtype, non_blocking=True))
    return logits.float(), labels.to(weight.device, non_blocking=True)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and each of its modules as it was afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


# Which images, and what is seen of them ----------------------------------------------------------


def order(count: int, *, seed: int, batch: int, step: int, groups: tuple[int, ...] = ()) -> Tensor:
    """The indices (batch,) of a step's images out of `count`.

    Epoch follows epoch without a gap, each in an order of its own: every image is seen once before
    any is seen again. Where images come in `groups` of these sizes, a batch has some of few groups.
    """
    parts, place, end = [], step * batch, (step + 1) * batch
    while place < end:
        epoch, first = divmod(place, count)
        parts.append(_epoch(count, seed, epoch, groups)[first : first + end - place])
        place += len(parts[-1])
    return torch.cat(parts)


@lru_cache(maxsize=4)
def _epoch(count: int, seed: int, epoch: int, groups: tuple[int, ...]) -> Tensor:
    """All indices, (count,), in the order of an epoch."""
    chance = generator(seed, "order", epoch)
    if groups:
        return neighbours_mixed(torch.tensor(groups), MIXED, chance)
    return torch.randperm(count, generator=chance)


def generator(seed: int, purpose: str, number: int) -> Generator:
    """Chance that depends on these three alone."""
    return Generator().manual_seed(mixed(seed, purpose, number))


def mixed(seed: int, purpose: str, number: int) -> int:
    """A seed that depends on these three alone."""
    return number_of(f"{seed} {purpose} {number}") >> 1


def random_views(
    pixels: Tensor, *, side: int, padding: int, flip: bool, generator: Generator
) -> Tensor:
    """A random crop (n, c, side, side) of each image (n, c, h, w) with so many zeros around it.

    If they may `flip`, half of them are mirrored, left to right.
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


def centre_views(pixels: Tensor, side: int) -> Tensor:
    """The middle (n, c, side, side) of each image (n, c, h, w)."""
    top, left = (pixels.shape[-2] - side) // 2, (pixels.shape[-1] - side) // 2
    return pixels[..., top : top + side, left : left + side]


def normalised(pixels: Tensor, images: Images) -> Tensor:
    """Pixels (n, c, h, w) in float32, less the mean of the images and over their deviation."""
    return pixels.sub(images.mean.view(-1, 1, 1)).div_(images.std.view(-1, 1, 1))
