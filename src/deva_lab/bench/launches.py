"""Count what a step asks of an accelerator: kernels launched and bytes moved.

    deva bench launches                    GPT-2 small
    deva bench launches gpt-256 moe        other sets of shapes

Everything is on the meta device, where tensors have shapes and no values: no accelerator is needed,
and a step that looked at a value on the host would fail. The first step, which chooses the bases,
is left out. Bytes are those of operands and results of every operator, as if nothing was cached.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deva_optim.optimizer import BaseOptimizer

from ..render import aligned
from .settings import Settings
from .shapes import Shape, asked_for
from .subjects import SUBJECTS

NAMES: Final = ("adamw", "deva-linf", "muon", "deva", "deva-short", "deva-both", "soap")
_META: Final = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]


@cache
def _teach_geqrf() -> None:
    """Tell the meta device the shapes of LAPACK's geqrf, which torch does not."""

    def geqrf(A: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(A), A.new_empty(*A.shape[:-2], min(A.shape[-2:]))

    _META.impl("geqrf", geqrf)  # type: ignore[no-untyped-call]


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that would launch a kernel, and the bytes that they touch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches = 0
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; views and allocations launch nothing."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.name():
            tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
            if any(x.is_meta for x in tensors):
                self.launches += 1
                self.bytes += sum(x.nbytes for x in {id(x): x for x in tensors}.values())
        return result


def counted(name: str, shapes: Sequence[Shape], steps: int) -> tuple[float, float]:
    """Launches and bytes of a step, averaged over so many of them."""
    _teach_geqrf()
    params = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
    optimizer = SUBJECTS[name].build(params, Settings())
    assert isinstance(optimizer, BaseOptimizer)
    optimizer.telemetry_every = 0
    for p in params:
        p.grad = torch.empty_like(p)
    for item in optimizer.items():  # what the first step would have done to the state
        for i in range(len(item.parts)):
            item.exponents(i).zero_()
        if "clock" in item.state:
            item.state["clock"].copy_(-1 - item.state["clock"])
            item.state["waiting"].zero_()
    with Counter() as counter:
        for _ in range(steps):
            optimizer.step()
    return counter.launches / steps, counter.bytes / steps


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options and show a table for each set of shapes; returns the exit code."""
    for found in asked_for("deva bench launches", __doc__, "gpt2-small", argv):
        weights = 4 * found.numel
        print(f"{found.name}: {len(found.shapes)} parameters, {found.numel:,} numbers")
        rows = []
        for subject in NAMES:
            launches, moved = counted(subject, found.shapes, Settings().refresh_every)
            rows.append((subject, f"{launches:.0f}", f"{moved / weights:.1f}"))
        print(aligned(("subject", "launches", "bytes / weights"), rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
