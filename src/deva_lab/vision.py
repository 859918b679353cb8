"""Classification of images: a ResNet, a ViT or an MLP learns what they show."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from .data import Report, silent
from .data.image_parquet import MIXED, neighbours_mixed
from .data.image_set import Images, centre_views, evenly, normalised, random_views
from .data.images import SHAPES, Shape, check_images, load_images
from .errors import UsageError, unknown
from .models.images import MLP, MLP_SIZES, RESNET_SIZES, VIT_SIZES, ResNet, ViT
from .run.ranks import ALONE, Ranks

SIZES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"resnet": tuple(RESNET_SIZES), "vit": tuple(VIT_SIZES), "mlp": tuple(MLP_SIZES)}
)
VALIDATION_IMAGES: Final = 10_000  # in an evaluation, at most
CHUNK: Final = 256  # of which go through the model at once


class ImageTask:
    """A model that classifies images.

    Args:
        build: Makes the model for the images.
        images: The images.
        seed: What the model's first weights, the order of the images and their crops depend on.
        batch: Images in a batch.
    """

    unit = "images"

    def __init__(
        self, build: Callable[[Images], nn.Module], images: Images, *, seed: int, batch: int
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch must be at least 1, got {batch}")
        self.build, self.images, self.seed, self.units = build, images, seed, batch

    def model(self) -> nn.Module:
        """The model, initialised from the seed alone."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self.build(self.images)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Images (batch, c, side, side) and labels (batch,), a function of seed and step."""
        images = self.images
        index = order(
            len(images.train), seed=self.seed, batch=self.units, step=step, groups=images.groups
        )
        views = random_views(
            images.train[index],
            side=images.side,
            padding=images.padding,
            flip=images.flip,
            generator=generator(self.seed, "views", step),
        )
        return normalised(views, images.mean, images.std), images.train_labels[index]

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
                views = centre_views(images.validation[part], side=images.side)
                shown = normalised(views, images.mean, images.std)
                logits, labels = _logits(model, shown, images.validation_labels[part])
                loss += float(cross_entropy(logits[:count], labels[:count], reduction="sum"))
                correct += int((logits.argmax(1) == labels)[:count].sum())
        loss, correct = ranks.total(loss, correct)
        return {"loss": loss / len(index), "accuracy": correct / len(index)}


def image_task(
    family: str, *, size: str, data: str, seed: int, batch: int, report: Report = silent
) -> ImageTask:
    """The task of training a model of a family ("resnet", "vit" or "mlp") and size on images.

    Raises:
        UsageError: For an unknown family, size or data, or if they do not go together.
    """
    check_image_task(family, size, data)
    images = load_images(data, report=report)
    _check_side(family, size, data, images.side)
    return ImageTask(
        lambda images: build_model(family, size, images), images, seed=seed, batch=batch
    )


def check_image_task(family: str, size: str, data: str) -> None:
    """Raises UsageError for what `image_task` would find wrong, as far as it is seen at once."""
    if family not in SIZES:
        raise unknown("model of images", family, SIZES)
    if size not in SIZES[family]:
        raise unknown(f"size of {family}", size, SIZES[family])
    check_images(data)
    if data in SHAPES:
        _check_side(family, size, data, SHAPES[data].side)


def _check_side(family: str, size: str, data: str, side: int) -> None:
    if family == "vit" and side % VIT_SIZES[size].patch:
        raise UsageError(
            f"vit {size} needs images whose side is a multiple of {VIT_SIZES[size].patch} pixels, "
            f"but those of {data} have {side}: choose another size or other data"
        )


def build_model(family: str, size: str, images: Images | Shape) -> nn.Module:
    """The model of a family and size for these images, or for images of this shape."""
    side, channels, classes = images.side, images.channels, images.classes
    if family == "resnet":
        return ResNet(RESNET_SIZES[size], channels=channels, classes=classes)
    if family == "vit":
        return ViT(VIT_SIZES[size], side=side, channels=channels, classes=classes)
    return MLP(MLP_SIZES[size], side=side, channels=channels, classes=classes)


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
    digest = hashlib.blake2b(f"{seed} {purpose} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


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
