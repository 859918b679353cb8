"""What each of several ranks computes, keeps and sends in a step, beside what the formula says.

    deva bench ranks                       FSDP2, HSDP and DDP with 1, 2 and 4 processes, by gloo
    deva bench ranks --wire                the same with bfloat16 on the wire
    deva bench ranks --plan                Llama 70B on up to 1,024 ranks, on paper

FLOPs, bytes and collectives are counted, not timed: they are the same on any machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.multiprocessing.spawn import start_processes

import deva_optim as do
from deva_optim.optimizer import BaseOptimizer

from ..render import markdown_table
from . import plan
from .flops import count_flops
from .shapes import Shape

OPTIMIZERS: Final[dict[str, Callable[..., BaseOptimizer]]] = {
    "DeVA": do.DeVA,
    "SOAP": do.SOAP,
    "Muon": do.Muon,
}
LAYOUTS: Final[dict[str, tuple[Placement, ...]]] = {
    "FSDP2": (Shard(0),),
    "HSDP": (Replicate(), Shard(0)),
    "DDP": (),
}
CASES: Final = (("FSDP2", 1), ("FSDP2", 2), ("FSDP2", 4), ("HSDP", 4), ("DDP", 2), ("DDP", 4))


@dataclass(frozen=True)
class RanksSettings:
    """A GPT's blocks, fused as GPT-2 fuses them, with their norms; and a period of refreshes."""

    width: int = 96
    blocks: int = 6
    period: int = 4
    wire: bool = False

    @property
    def matrices(self) -> Sequence[Shape]:
        """Shapes of the hidden matrices."""
        d = self.width
        return self.blocks * [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]

    @property
    def vectors(self) -> Sequence[Shape]:
        """Shapes of the rest."""
        return 2 * self.blocks * [(self.width,)]


@dataclass(frozen=True)
class Share:
    """What a rank does in a period of refreshes, keeps of matrices, and sends in a step."""

    flops: float
    state: int
    sent: float
    collectives: float


class Traffic:
    """Counts what this rank sends to others through the collectives of a step."""

    def __init__(self) -> None:
        self.bytes = self.collectives = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while this lasts."""
        exchange, reduce = dist.all_to_all_single, dist.all_reduce

        def all_to_all(out: Tensor, x: Tensor, taken: Any, given: list[int], **how: Any) -> Any:
            assert given[dist.get_rank(how["group"])] == 0  # nothing goes out to come back
            self.bytes += sum(given)
            self.collectives += 1
            return exchange(out, x, taken, given, **how)

        def all_reduce(x: Tensor, **how: Any) -> Any:
            self.collectives += 1
            return reduce(x, **how)

        with (
            patch.object(dist, "all_to_all_single", all_to_all),
            patch.object(dist, "all_reduce", all_reduce),
        ):
            yield


def derived(settings: RanksSettings, layout: str, size: int) -> float:
    """Bytes that all ranks together send in a step, as docs/distributed.md derives them."""
    copies = {"FSDP2": 1, "HSDP": 2, "DDP": size}[layout]
    shards = size // copies
    numbers = sum(n * m for n, m in settings.matrices)
    gathered = 2 * numbers * (shards - 1) / shards  # gradient and weight
    returned = numbers * (size - 1) / shards
    return (2 if settings.wire else 4) * (gathered + returned)


def share(settings: RanksSettings, name: str, layout: str | None) -> Share:
    """The share of this rank; the whole, if there is no layout."""
    generator = torch.Generator().manual_seed(0)
    shapes = [*settings.matrices, *settings.vectors]
    options: dict[str, Any] = {} if name == "Muon" else {"refresh_every": settings.period}
    if settings.wire:
        options["wire_dtype"] = torch.bfloat16
    lay = _layer(layout)
    if layout == "DDP":
        options["process_group"] = dist.group.WORLD
    params = [nn.Parameter(lay(torch.randn(shape, generator=generator))) for shape in shapes]
    optimizer = OPTIMIZERS[name](params, foreach=False, **options)
    optimizer.telemetry_every = 0  # records are made of other matrices on each rank

    def step() -> None:
        for p in params:
            p.grad = lay(torch.randn(p.shape, generator=generator))
        optimizer.step()

    def period() -> None:
        for _ in range(settings.period):
            step()

    step()  # the first one has decompositions of its own
    traffic = Traffic()
    with traffic.counted():
        flops = count_flops(period)
    kept = [x for p, s in optimizer.state.items() if p.ndim > 1 for x in s.values()]
    state = sum(x.nbytes for x in kept if not x.is_meta)
    steps = settings.period
    return Share(flops.total, state, traffic.bytes / steps, traffic.collectives / steps)


def shares(settings: RanksSettings, layout: str, size: int) -> dict[str, list[Share]]:
    """The share of each of so many processes, by optimizer."""
    # Forked by a server: a process that has used threads, as torch does, must not be forked.
    get_context("forkserver").set_forkserver_preload(["torch", "torch.distributed.tensor"])
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _process, (size, folder, settings, layout), nprocs=size, start_method="forkserver"
        )
        files = [Path(folder) / str(rank) for rank in range(size)]
        found = [torch.load(file, weights_only=False) for file in files]
    return {name: [one[name] for one in found] for name in OPTIMIZERS}


def _process(rank: int, size: int, folder: str, settings: RanksSettings, layout: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size)
    found = {name: share(settings, name, layout) for name in OPTIMIZERS}
    torch.save(found, Path(folder) / str(rank))
    dist.destroy_process_group()


def _layer(layout: str | None) -> Callable[[Tensor], Tensor]:
    """What lays a tensor out over the ranks."""
    if layout in (None, "DDP"):
        return Tensor.clone
    placements = LAYOUTS[layout]
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2) if layout == "HSDP" else (size,))
    return lambda x: distribute_tensor(x, mesh, placements, src_data_rank=None)


def row(settings: RanksSettings, layout: str, size: int) -> list[str]:
    """A row of the table: the largest rank over the mean of all."""
    found = shares(settings, layout, size)
    columns = [layout, str(size)]
    for key in ("flops", "state"):
        for each in found.values():
            values = [getattr(one, key) for one in each]
            columns.append(f"{max(values) * size / sum(values):.2f}")
    formula = derived(settings, layout, size)
    ratios = [sum(one.sent for one in each) / formula for each in found.values() if formula]
    columns.append(f"{max(ratios):.3f}" if ratios else "none sent")
    return [*columns, f"{max(one.collectives for one in found['DeVA']):.0f}"]


def table(settings: RanksSettings, cases: Sequence[tuple[str, int]] = CASES) -> str:
    """The measured shares, as docs/distributed.md has them."""
    names = list(OPTIMIZERS)
    first, *rest = names
    head = ["", "N", f"FLOPs, {first}", *rest, f"state, {first}", *rest]
    head += ["bytes / formula", f"collectives a step, {first}"]
    return markdown_table(head, [row(settings, layout, size) for layout, size in cases])


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options and show a table; returns the exit code."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("deva bench ranks", None, __doc__, formatter_class=layout)
    default = RanksSettings()
    for name in ("width", "blocks", "period"):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=int, default=value, help="(%(default)s)")
    parser.add_argument("--wire", action="store_true", help="bfloat16 on the wire")
    parser.add_argument("--plan", action="store_true", help="on paper, for a model of 70B")
    options = parser.parse_args(argv)
    if options.plan:
        print(plan.table())
        return 0
    given = {name: getattr(options, name) for name in ("width", "blocks", "period", "wire")}
    for name in ("width", "blocks", "period"):
        if given[name] < 1:
            parser.error(f"--{name} must be at least 1, got {given[name]}")
    settings = replace(default, **given)
    print(f"{settings}\nthe largest rank over the mean of all\n\n{table(settings)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
