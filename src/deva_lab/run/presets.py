"""What can be trained, by name: the kinds of tasks and, of each size, what it has unless told.

Nothing here needs torch, so that the command can say what there is at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import UsageError, unknown


class Preset(NamedTuple):
    """What a size has unless the user says otherwise."""

    steps: int
    batch: int
    vocabulary: int | str = 0


class Offer(NamedTuple):
    """A kind of task."""

    about: str
    data: str  # the data that it has unless the user says otherwise
    presets: Mapping[str, Preset]  # by size


_IMAGES: Final = Preset(steps=400, batch=128)
_SAMPLES: Final = Preset(steps=1000, batch=1)

OFFERS: Final[Mapping[str, Offer]] = MappingProxyType(
    {
        "gpt": Offer(
            "a GPT of the paper's family on text",
            "python",
            {
                "tiny": Preset(steps=200, batch=16, vocabulary=256),
                "small": Preset(steps=150, batch=8, vocabulary=512),
                "small-wide": Preset(steps=200, batch=8, vocabulary=512),
                "small-deep": Preset(steps=200, batch=8, vocabulary=512),
                "medium": Preset(steps=2000, batch=16, vocabulary=4096),
                "large": Preset(steps=5000, batch=32, vocabulary="gpt2"),
                "paper": Preset(steps=28_483, batch=48, vocabulary="gpt2"),
            },
        ),
        "resnet": Offer(
            "ResNet-20 on images",
            "digits",
            dict.fromkeys(
                ("tiny", "small", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110"),
                _IMAGES,
            ),
        ),
        "vit": Offer(
            "a vision transformer on images",
            "digits",
            dict.fromkeys(("tiny", "mini", "small", "vit-s16", "vit-b16", "vit-l16"), _IMAGES),
        ),
        "mlp": Offer(
            "a multilayer perceptron on images",
            "digits",
            dict.fromkeys(("tiny", "small", "large"), _IMAGES),
        ),
        "quadratic": Offer(
            "the paper's trace quadratic, a 9 × 9 matrix with noisy gradients",
            "none",
            dict.fromkeys(("homogeneous", "heterogeneous"), _SAMPLES),
        ),
    }
)


def offer_of(task: str) -> Offer:
    """The kind of a task by name."""
    if task not in OFFERS:
        known = unknown("task", task, OFFERS)
        raise UsageError(f"{known}; a task of your own is a file, --task my_task.py")
    return OFFERS[task]


def preset_of(task: str, size: str) -> Preset:
    """What a size of a task has unless the user says otherwise."""
    presets = offer_of(task).presets
    if size not in presets:
        raise unknown(f"size of {task}", size, presets)
    return presets[size]


def default_size(task: str) -> str:
    """The size that a task has unless one is given: "small" if there is one, else the first."""
    sizes = offer_of(task).presets
    return "small" if "small" in sizes else next(iter(sizes))
