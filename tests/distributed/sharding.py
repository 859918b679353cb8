"""Parameters that ranks share, in every layout, trained by all of them and by one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.optim import Optimizer
from torch.testing import assert_close

from helpers import OPTIMIZERS

STEPS = 25
# Sides that no number of ranks divides, fewer rows than ranks, stacks, convolutions, vectors.
SHAPES = ((7, 5), (5, 7), (3, 4), (3, 5, 4), (4, 2, 3, 3), (9,), (3,), (1, 4))
OPTIONS: dict[str, Any] = {"lr": 2**-6, "weight_decay": 0.125, "refresh_every": 4}
LAYOUTS: dict[str, tuple[Any, ...]] = {
    "rows": (Shard(0),),
    "columns": (Shard(1),),
    "replicated": (Replicate(),),
    "hybrid": (Replicate(), Shard(0)),
    "rows-columns": (Shard(0), Shard(1)),
    "columns-replicated": (Shard(1), Replicate()),
    "rows-rows": (Shard(0), Shard(0)),
    "packed": (_StridedShard(0, split_factor=2),),  # two weights in one, each of them cut
    "packed-columns": (_StridedShard(1, split_factor=2),),
    "rows-packed": (Shard(0), _StridedShard(1, split_factor=2)),
}
packed = pytest.mark.skipif(
    "_shard_tensor" not in vars(_StridedShard), reason="this torch cannot lay out a packed tensor"
)
# The mean of V in DeVA-ℓ∞'s ε is summed in another order than on one process. That is 1e-8 of V,
# and may turn the rounding of a weight, which is below 4, by one unit in its last place at each
# step.
ULPS = STEPS * 4 * 2**-23


def weights(shapes: Any = SHAPES, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def gradients(like: list[Tensor], step: int) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in like]


def past(start: list[Tensor], steps: int = STEPS) -> list[list[Tensor | None]]:
    return [gradients(start, step) for step in range(steps)]


def build(name: str, params: Any, **options: Any) -> Optimizer:
    group = {"params": list(params), **OPTIONS, **options}
    ranks = {key: group.pop(key) for key in ("process_group", "wire_dtype") if key in group}
    return OPTIMIZERS[name]([group], **ranks)


def mesh(layout: str) -> DeviceMesh:
    world = dist.get_world_size()
    first = min(2, world)
    sizes = (first, world // first) if len(LAYOUTS[layout]) > 1 else (world,)
    return init_device_mesh("cpu", sizes)


def placed(X: Tensor, on: DeviceMesh, layout: str) -> DTensor:
    """X as the layout has it; a vector has no columns and is repeated."""
    fitting = [Replicate() if getattr(p, "dim", 0) >= X.ndim else p for p in LAYOUTS[layout]]
    return distribute_tensor(X.clone(), on, fitting, src_data_rank=None)


def shared(
    name: str, start: list[Tensor], layout: str, **options: Any
) -> tuple[list[nn.Parameter], Optimizer, Callable[[Tensor], Tensor]]:
    """Parameters that all ranks share, their optimizer, and what lays out a gradient."""
    if layout == "ddp":
        params = [nn.Parameter(x.clone()) for x in start]
        return params, build(name, params, process_group=dist.group.WORLD, **options), Tensor.clone
    on = mesh(layout)
    params = [nn.Parameter(placed(x, on, layout)) for x in start]
    return params, build(name, params, **options), lambda g: placed(g, on, layout)


def advance(
    params: list[nn.Parameter],
    optimizer: Optimizer,
    lay: Callable[[Tensor], Tensor],
    history: list[list[Tensor | None]],
) -> None:
    for grads in history:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else lay(g)
        optimizer.step()


def whole(params: list[nn.Parameter]) -> list[Tensor]:
    return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in params]


def alone(name: str, start: list[Tensor], history: Any, **options: Any) -> list[Tensor]:
    params = [nn.Parameter(x.clone()) for x in start]
    advance(params, build(name, params, **options), Tensor.clone, history)
    return whole(params)


def together(
    name: str, start: list[Tensor], history: Any, layout: str, **options: Any
) -> list[Tensor]:
    params, optimizer, lay = shared(name, start, layout, **options)
    advance(params, optimizer, lay, history)
    return whole(params)


def agree(ours: list[Tensor], theirs: list[Tensor], message: str | None = None) -> None:
    """Matrices bit for bit, where the arithmetic is the same; vectors but for `ULPS`."""
    for X, Y in zip(ours, theirs, strict=True):
        assert_close(X, Y, rtol=0, atol=ULPS if X.squeeze().ndim < 2 else 0.0, msg=message)
