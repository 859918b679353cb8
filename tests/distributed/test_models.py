"""Models that torch shards by itself: FSDP2, HSDP, tensor parallel, both at once, and DDP."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import deva_optim as do
from helpers import ROUNDING
from ranks import run

STEPS = 25
Make = Callable[[Any, Any], Any]
MAKES: dict[str, Make] = {
    "deva": lambda params, ranks: do.DeVA(params, 0.02, refresh_every=4, sides="short", **ranks),
    "soap": lambda params, ranks: do.SOAP(
        do.param_groups(params), 0.02, refresh_every=4, sides="short", **ranks
    ),
    "muon": lambda params, ranks: do.Muon(do.param_groups(params), 0.02, **ranks),
}


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Eleven words of width six, or eight for tensor parallelism, which wants even shards."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(3))
        self.head = nn.Linear(width, 11)

    def forward(self, x: Tensor) -> Tensor:
        X = self.words(x)
        for block in self.blocks:
            X = block(X)
        return self.head(X)


def model(even: bool = False) -> Model:
    torch.manual_seed(0)
    made = Model(8, 12) if even else Model(6, 13)
    return made.double()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, ranks: int = 1, rank: int = 0) -> None:
    """Each rank has its share of a batch of four; the mean over ranks is the whole batch's."""
    for step in range(STEPS):
        x = torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(step))
        mine = x.chunk(ranks)[rank]
        loss = nn.functional.cross_entropy(net(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        do.clip_grad_norm_(optimizer, 0.1)
        optimizer.step()


def end(net: nn.Module) -> list[Tensor]:
    return [
        (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for p in net.parameters()
    ]


def alone(name: str, even: bool) -> list[Tensor]:
    net = model(even)
    train(net, MAKES[name](net, {}))
    return end(net)


def fsdp(name: str, hybrid: bool) -> list[Tensor]:
    size = dist.get_world_size()
    sizes, names = ((2, size // 2), ("copy", "shard")) if hybrid else ((size,), ("shard",))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    net = model()
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, MAKES[name](net, {}), size, dist.get_rank())
    return end(net)


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def tensor_parallel(name: str) -> list[Tensor]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = model(even=True)
    for block in net.blocks:
        parallelize_module(block, mesh, PLAN)
    train(net, MAKES[name](net, {}))  # all ranks have the same batch
    return end(net)


def both(name: str) -> list[Tensor]:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    net = model(even=True)
    for block in net.blocks:
        parallelize_module(block, mesh["tp"], PLAN)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    train(net, MAKES[name](net, {}), 2, mesh["dp"].get_local_rank())  # tp shares its batch
    return end(net)


def ddp(name: str, shared: bool) -> list[Tensor]:
    net = DistributedDataParallel(model())
    ranks = {"process_group": dist.group.WORLD} if shared else {}
    train(net, MAKES[name](net, ranks), dist.get_world_size(), dist.get_rank())
    return end(net)


def each(parallel: Any, args: Any) -> list[list[Tensor]]:
    return [parallel(name, *args) for name in MAKES]


@pytest.mark.parametrize(
    ("size", "parallel", "args", "even"),
    [
        (2, fsdp, (False,), False),
        (4, fsdp, (True,), False),
        (2, tensor_parallel, (), True),
        (4, both, (), True),
        (2, ddp, (True,), False),
        (2, ddp, (False,), False),
    ],
    ids=["fsdp", "hsdp", "tensor", "fsdp-tensor", "ddp", "ddp-replicated"],
)
def test_a_sharded_model_trains_as_a_whole_one(
    size: int, parallel: Any, args: Any, even: bool
) -> None:
    theirs = [alone(name, even) for name in MAKES]
    for ours in run(size, each, parallel, args):
        # `ROUNDING` is that of nine steps. Here a step's error comes back in the gradients of all
        # that follow; it at most doubles twice over the whole training, and as much is the margin.
        assert_close(ours, theirs, rtol=0, atol=4 * ROUNDING * STEPS / 9)
