"""Named sets of shapes: the hidden matrices of real models, and what is made to measure.

Weights are (out, in), convolutions (out, in, kh, kw), stacks of experts (experts, out, in). Fused
projections are cut apart, as the routing of deva_optim does it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..run.user_source import find, is_user_task
from .settings import SettingsError, unknown

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeSet:
    """The shapes of the parameters of one optimizer.

    Attributes:
        shapes: One a parameter.
        against: Shapes that every subject is measured on as well, to be compared with the others.
    """

    name: str
    shapes: tuple[Shape, ...]
    against: tuple[Shape, ...] = ()

    @property
    def numel(self) -> int:
        """How many parameters, in numbers."""
        return sum(map(math.prod, self.shapes))


@dataclass(frozen=True)
class Model:
    """Blocks of one kind, and what comes before them."""

    about: str
    block: tuple[Shape, ...]
    blocks: int = 1
    stem: tuple[Shape, ...] = ()
    against: tuple[Shape, ...] = ()


def gpt_block(d: int) -> tuple[Shape, ...]:
    """Query, key, value, output, up and down of a transformer of width d."""
    return (*4 * ((d, d),), (4 * d, d), (d, 4 * d))


def _stage(inputs: int, outputs: int) -> tuple[Shape, ...]:
    """The six 3×3 convolutions of a stage of ResNet-20."""
    return ((outputs, inputs, 3, 3), *5 * ((outputs, outputs, 3, 3),))


# Llama 3.2 1B: 32 heads of 64, 8 of them for keys and values.
_LLAMA: Final = (
    *2 * ((2048, 2048),),
    *2 * ((512, 2048),),
    *2 * ((8192, 2048),),
    (2048, 8192),
)
# Llama 3 8B: 32 heads of 128, 8 of them for keys and values.
_LLAMA_8B: Final = (
    *2 * ((4096, 4096),),
    *2 * ((1024, 4096),),
    *2 * ((14336, 4096),),
    (4096, 14336),
)
# Mixtral's layer (8 experts, width : feed-forward = 2 : 7), an eighth as wide.
_MOE: Final = (
    *2 * ((512, 512),),
    *2 * ((128, 512),),
    (8, 512),
    *2 * ((8, 1792, 512),),
    (8, 512, 1792),
)
_RESNET20: Final = ((16, 3, 3, 3), *_stage(16, 16), *_stage(16, 32), *_stage(32, 64))

SETS: Final[dict[str, Model]] = {
    "gpt-256": Model("four GPT blocks of width 256", gpt_block(256), 4),
    "gpt-768": Model("one GPT block of width 768", gpt_block(768)),
    "gpt2-small": Model("the hidden matrices of GPT-2 small", gpt_block(768), 12),
    "llama-1b-block": Model("one block of Llama 3.2 1B", _LLAMA),
    "llama-8b": Model("the hidden matrices of Llama 3 8B", _LLAMA_8B, 32),
    "vit-l": Model("the hidden matrices of ViT-L/16", gpt_block(1024), 24, ((1024, 3, 16, 16),)),
    "resnet20": Model("the convolutions of ResNet-20 for CIFAR", _RESNET20),
    "moe": Model("a Mixtral layer, an eighth as wide", _MOE),
    "tiny-batch": Model("a hundred 9×9 matrices in one", ((100, 9, 9),), against=((9, 9),)),
}


def shape_set(name: str) -> ShapeSet:
    """The set of this name; `gpt2-small:2` has two of its blocks, `gpt-512` is one of any width.

    The name of a user's task, such as my_task.py, stands for the hidden matrices of its model.
    """
    if is_user_task(name):
        from ..run.tasks import model_of  # torch takes seconds, and names need none of it

        return ShapeSet(find(name).name, hidden_matrices(model_of(name)))
    base, _, count = name.partition(":")
    width = base.removeprefix("gpt-")
    if base not in SETS and not (base.startswith("gpt-") and _positive(width)):
        raise SettingsError(unknown("shape set", base, SETS) + ", gpt-WIDTH")
    if count and not _positive(count):
        raise SettingsError(f"the number of blocks must be a positive integer, got {name!r}")
    model = SETS[base] if base in SETS else Model("one GPT block", gpt_block(int(width)))
    blocks = int(count or model.blocks)
    return ShapeSet(name, model.stem + blocks * model.block, model.against)


def hidden_matrices(model: nn.Module) -> tuple[Shape, ...]:
    """The shapes of what a matrix method gets of a model, fused weights cut apart."""
    from deva_optim import param_groups
    from deva_optim.core.matrices import parts

    found = [
        part.shape
        for group in param_groups(model)
        if group["role"] == "matrix"
        for _, p in group["params"]
        for part in parts(
            tuple(p.shape), group["layout"], group.get("split"), group.get("split_dim", -2)
        )
    ]
    if not found:
        raise SettingsError("the model has no hidden matrices: there is nothing to measure")
    return tuple(found)


def asked_for(
    command: str, about: str | None, default: str, argv: Sequence[str] | None
) -> list[ShapeSet]:
    """The sets of shapes that the arguments of a command name; help and errors are argparse's."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(command, None, about, formatter_class=layout)
    parser.add_argument("shapes", nargs="*", default=[default], help=f"sets ({default})")
    try:
        return [shape_set(name) for name in parser.parse_args(argv).shapes]
    except SettingsError as error:
        parser.error(str(error))


def _positive(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def matrices(shape: Shape) -> list[tuple[int, int]]:
    """A parameter as matrices: a convolution is one, a stack as many as it holds.

    >>> matrices((16, 3, 3, 3)), matrices((2, 5, 7))
    ([(16, 27)], [(5, 7), (5, 7)])
    """
    if len(shape) > 3:
        return [(shape[0], math.prod(shape[1:]))]
    *lead, n, m = shape
    return math.prod(lead) * [(n, m)]
