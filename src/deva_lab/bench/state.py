"""Count the memory that optimizers keep for the hidden matrices of a model.

    deva bench state                      Llama 3 8B
    deva bench state gpt2-small vit-l     other sets of shapes

The state is made on the meta device, where tensors have shapes and no values: any model fits. A
line has the GiB of a method with `state_dtype` left alone, torch.bfloat16 and "int8".
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Final

import torch

from deva_optim.optimizer import BaseOptimizer

from ..render import aligned
from .settings import Settings
from .shapes import Shape, asked_for
from .subjects import SUBJECTS

NAMES: Final = ("deva", "deva-soft", "deva-both", "muon", "soap", "adamw")
DTYPES: Final = (None, torch.bfloat16, "int8")


def kept(name: str, shapes: Sequence[Shape], dtype: torch.dtype | str | None) -> int:
    """The bytes that a subject keeps for parameters of these shapes."""
    params = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the parameters have no names
        optimizer = SUBJECTS[name].build(params, Settings())
    assert isinstance(optimizer, BaseOptimizer)
    for group in optimizer.param_groups:
        group["state_dtype"] = dtype
    for p in params:
        p.grad = torch.empty_like(p)
    optimizer.items()
    return sum(x.nbytes for state in optimizer.state.values() for x in state.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options and show a table for each set of shapes; returns the exit code."""
    for found in asked_for("deva bench state", __doc__, "llama-8b", argv):
        weights = 4 * found.numel / 2**30
        print(f"{found.name}: {len(found.shapes)} parameters, {weights:.1f} GiB in float32")
        rows = [
            (name, *(f"{kept(name, found.shapes, dtype) / 2**30:.1f}" for dtype in DTYPES))
            for name in NAMES
        ]
        print(aligned(("subject", "float32", "bfloat16", "int8"), rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
