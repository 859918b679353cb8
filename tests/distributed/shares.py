"""What each of several ranks computes, keeps and sends in a step, beside what the formula says.

    PYTHONPATH=tests python -m distributed.shares             the first table of docs/distributed.md
    PYTHONPATH=tests python -m distributed.shares --wire      the same with bfloat16 on the wire
    PYTHONPATH=tests python -m distributed.shares --plan      Llama 70B on up to 1,024 ranks

FLOPs, bytes and collectives are counted, not timed: they are the same on any machine.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import deva_optim as do
from deva_lab.bench.counting import count_flops
from deva_lab.bench.subjects import Shape, llama_block
from deva_lab.render import markdown_table
from deva_optim.core.balance import share_out, step_cost
from deva_optim.core.matrices import parts
from deva_optim.core.methods import METHODS
from deva_optim.optimizer import BaseOptimizer
from ranks import run

OPTIMIZERS: Final[dict[str, Callable[..., BaseOptimizer]]] = {
    name: getattr(do, name) for name in ("DeVA", "SOAP", "Muon")
}
PLACEMENTS: Final = {"FSDP2": (Shard(0),), "HSDP": (Replicate(), Shard(0))}
CASES: Final = (("FSDP2", 1), ("FSDP2", 2), ("FSDP2", 4), ("HSDP", 4), ("DDP", 2), ("DDP", 4))


@dataclass(frozen=True)
class RanksSettings:
    """A GPT's blocks, fused as GPT-2 fuses them, with their norms; and a period of refreshes."""

    width: int = 96
    blocks: int = 6
    period: int = 4  # steps between two refreshes, and steps that are counted
    wire: bool = False  # whether what is sent is bfloat16

    @property
    def matrices(self) -> Sequence[Shape]:
        """Shapes of the hidden matrices."""
        d = self.width
        return self.blocks * [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]


@dataclass(frozen=True)
class Share:
    """What a rank does in a period of refreshes, keeps of matrices, and sends in a step."""

    flops: float
    state: int
    sent: float
    collectives: float


def table(settings: RanksSettings) -> str:
    """The measured shares, as docs/distributed.md has them."""
    first, *rest = OPTIMIZERS
    head = ["", "N", f"FLOPs, {first}", *rest, f"state, {first}", *rest]
    head += ["bytes / formula", f"collectives a step, {first}"]
    return markdown_table(head, [row(settings, layout, size) for layout, size in CASES])


def row(settings: RanksSettings, layout: str, size: int) -> list[str]:
    """A row of the table: the largest rank over the mean of all."""
    ranks = run(size, of_each, settings, layout)
    found = {name: [rank[name] for rank in ranks] for name in OPTIMIZERS}
    columns = [layout, str(size)]
    for key in ("flops", "state"):
        for each in found.values():
            values = [getattr(one, key) for one in each]
            columns.append(f"{max(values) * size / sum(values):.2f}")
    formula = derived(settings, layout, size)
    ratios = [sum(one.sent for one in each) / formula for each in found.values() if formula]
    columns.append(f"{max(ratios):.3f}" if ratios else "none sent")
    return [*columns, f"{max(one.collectives for one in found['DeVA']):.0f}"]


def derived(settings: RanksSettings, layout: str, size: int) -> float:
    """Bytes that all ranks together send in a step, as docs/distributed.md derives them."""
    copies = {"FSDP2": 1, "HSDP": 2, "DDP": size}[layout]
    shards = size // copies
    numbers = sum(n * m for n, m in settings.matrices)
    gathered = 2 * numbers * (shards - 1) / shards  # gradient and weight
    returned = numbers * (size - 1) / shards
    return (2 if settings.wire else 4) * (gathered + returned)


def of_each(settings: RanksSettings, layout: str) -> dict[str, Share]:
    """The share of this rank, by optimizer."""
    return {name: share(settings, name, layout) for name in OPTIMIZERS}


def share(settings: RanksSettings, name: str, layout: str | None) -> Share:
    """The share of this rank; the whole, if there is no layout."""
    generator = torch.Generator().manual_seed(0)
    shapes: list[Shape] = [*settings.matrices, *2 * settings.blocks * [(settings.width,)]]
    options: dict[str, Any] = {} if name == "Muon" else {"refresh_every": settings.period}
    if settings.wire:
        options["wire_dtype"] = torch.bfloat16
    if layout == "DDP":
        options["process_group"] = dist.group.WORLD
    lay = _layer(layout)
    params = [nn.Parameter(lay(torch.randn(shape, generator=generator))) for shape in shapes]
    named = [(f"blocks.{i}.weight", p) for i, p in enumerate(params)]
    optimizer = OPTIMIZERS[name](named, foreach=False, **options)
    optimizer.telemetry_every = 0  # records are made of other matrices on each rank

    def take(steps: int) -> None:
        for _ in range(steps):
            for p in params:
                p.grad = lay(torch.randn(p.shape, generator=generator))
            optimizer.step()

    take(1)  # the first one has decompositions of its own
    steps = settings.period
    with _traffic() as traffic:
        flops = count_flops(lambda: take(steps))
    kept = [x for p, s in optimizer.state.items() if p.ndim > 1 for x in s.values()]
    state = sum(x.nbytes for x in kept if not x.is_meta)
    return Share(flops.total, state, traffic["bytes"] / steps, traffic["collectives"] / steps)


def _layer(layout: str | None) -> Callable[[Tensor], Tensor]:
    """What lays a tensor out over the ranks."""
    if layout not in PLACEMENTS:
        return Tensor.clone
    size, placements = dist.get_world_size(), PLACEMENTS[layout]
    mesh = init_device_mesh("cpu", (2, size // 2) if layout == "HSDP" else (size,))
    return lambda x: distribute_tensor(x, mesh, placements, src_data_rank=None)


@contextmanager
def _traffic() -> Iterator[Counter[str]]:
    """Counts the collectives of a step while it lasts, and the bytes that this rank sends."""
    found = Counter[str]()
    exchange, reduce = dist.all_to_all_single, dist.all_reduce

    def all_to_all(out: Tensor, x: Tensor, taken: Any, given: list[int], **how: Any) -> Any:
        assert given[dist.get_rank(how["group"])] == 0  # nothing goes out to come back
        found.update(bytes=sum(given), collectives=1)
        return exchange(out, x, taken, given, **how)

    def all_reduce(x: Tensor, **how: Any) -> Any:
        found.update(collectives=1)
        return reduce(x, **how)

    exchanges = patch.object(dist, "all_to_all_single", all_to_all)
    with exchanges, patch.object(dist, "all_reduce", all_reduce):
        yield found


# On paper -----------------------------------------------------------------------------------------

# Work is the cost by which owners are chosen, in multiplications; messages are those of FSDP2.
# Times are for ranks that work and send at a given rate, both ways at once.
LLAMA_70B: Final = 80 * llama_block(8192, 1024, 28672)
SIZES: Final = (8, 64, 128, 256, 512, 1024)
FLOPS: Final = 3e14  # of a rank, a second: bfloat16 products on a GPU of today
BYTES: Final = 5e10  # of a rank, a second and direction: 400 Gb/s
NUMBER: Final = 4  # bytes


def plan() -> str:
    """Llama 70B on up to 1,024 ranks, as docs/distributed.md has it."""
    names = ("load", "GB sent", "work, ms", "step, ms", "overlapped")
    columns = [planned(size) for size in SIZES]
    rows = list(zip(names, *columns, strict=True))
    return markdown_table(["N", *(f"{size:,}" for size in SIZES)], rows)


def planned(size: int) -> tuple[str, ...]:
    """A step of the hidden matrices on so many ranks, with DeVA as it comes.

    The load of the busiest rank over the mean; the bytes that an average rank sends; how long the
    busiest one computes; how long its step takes if it waits for every message, and if the messages
    of one matrix travel while another is updated.
    """
    shapes = LLAMA_70B
    read = {shape: parts(shape, "auto", None, -2) for shape in shapes}
    group = do.DeVA([torch.zeros(2, 2)]).defaults
    costs = [step_cost(read[shape], METHODS["deva-sinf-lean"], group) for shape in shapes]
    load = [0] * size
    owners = share_out(costs, load)
    mine = [i for i, owner in enumerate(owners) if owner == load.index(max(load))]
    work = [2 * costs[i] / FLOPS for i in mine]  # an addition for each multiplication
    away = NUMBER * (size - 1) / size / BYTES
    back = [away * shapes[i][0] * shapes[i][1] for i in mine]
    there = [2 * time for time in back]
    sent = 3 * NUMBER * sum(n * m for n, m in shapes) * (size - 1) / size**2
    seconds = (sum(work), sum(work) + sum(there) + sum(back), overlapped(work, there, back))
    return (
        f"{max(load) * size / sum(load):.2f}",
        f"{sent / 1e9:.1f}",
        *(f"{1e3 * time:,.0f}" for time in seconds),
    )


def overlapped(work: Sequence[float], there: Sequence[float], back: Sequence[float]) -> float:
    """Seconds until the last round is back.

    A round travels here after the one before it, as soon as the one before that is done.

    >>> overlapped([3.0, 3.0], [2.0, 2.0], [1.0, 1.0])
    9.0
    """
    arrived = returned = 0.0
    done = [0.0, 0.0]
    for w, t, b in zip(work, there, back, strict=True):
        arrived = max(arrived, done[-2]) + t
        done.append(max(done[-1], arrived) + w)
        returned = max(returned, done[-1]) + b
    return returned


def main() -> None:
    """Print a table of docs/distributed.md."""
    parser = argparse.ArgumentParser("shares", description="What each of several ranks does.")
    parser.add_argument("--wire", action="store_true", help="bfloat16 on the wire")
    parser.add_argument("--plan", action="store_true", help="on paper, for a model of 70B")
    options = parser.parse_args()
    print(plan() if options.plan else table(RanksSettings(wire=options.wire)))


if __name__ == "__main__":
    from distributed import shares  # under its own name, by which the processes know it

    shares.main()
