"""How a tensor is spread over ranks.

Ranks are numbered as in their process group. A tensor on a mesh of ranks is cut along some of the
mesh's dimensions and repeated along the others: each rank has a block, and a replica is a set of
ranks whose blocks make up the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement

T = TypeVar("T")
Block = tuple[slice, ...]
Cut = tuple[Placement, int, int]  # how, into how many, and which of them


class Crew:
    """The ranks of a mesh as one process group.

    Attributes:
        rank, size: Of this process in the group, and of the group.
        coordinates: Of every rank in the mesh.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        members = sorted(int(rank) for rank in mesh.mesh.flatten())
        self.group = _group(mesh, members)
        self.rank, self.size = members.index(dist.get_rank()), len(members)
        sizes = tuple(mesh.mesh.shape)
        where = {int(mesh.mesh[at]): at for at in itertools.product(*map(range, sizes))}
        self.coordinates = [where[rank] for rank in members]
        self._spreads: dict[tuple[object, ...], Spread] = {}

    def spread(self, placements: Sequence[Placement], shape: Sequence[int]) -> Spread:
        """How a tensor of this shape is spread here; one object for all that are alike."""
        key = (*placements, *shape)
        if key not in self._spreads:
            self._spreads[key] = Spread(self, placements, shape)
        return self._spreads[key]

    def sum_(self, X: Tensor) -> None:
        """X ← the sum of the X of all ranks."""
        if self.size > 1:
            dist.all_reduce(X, group=self.group)

    def union(self, found: dict[str, T]) -> dict[str, T]:
        """What any of the ranks has found, by name."""
        if self.size == 1:
            return found
        everyone: list[dict[str, T]] = [{} for _ in range(self.size)]
        dist.all_gather_object(everyone, found, group=self.group)
        return {name: x for each in everyone for name, x in each.items()}


class Spread:
    """How a tensor of some shape is spread over a crew.

    Attributes:
        blocks: What each rank has of it.
        replicas: The replica that each rank belongs to.
    """

    def __init__(self, crew: Crew, placements: Sequence[Placement], shape: Sequence[int]) -> None:
        self.crew, self.placements, self.shape = crew, tuple(placements), tuple(shape)
        sizes = tuple(crew.mesh.mesh.shape)
        self.blocks = [_block(shape, sizes, placements, at) for at in crew.coordinates]
        self.replicas = [
            tuple(i for i, placement in zip(at, placements, strict=True) if not _cuts(placement))
            for at in crew.coordinates
        ]
        self._sources: dict[int, list[int]] = {}

    @property
    def mine(self) -> Block:
        """This rank's block."""
        return self.blocks[self.crew.rank]

    @cached_property
    def cut(self) -> bool:
        """Whether a block is less than the whole."""
        return any(_cuts(placement) for placement in self.placements)

    @cached_property
    def copies(self) -> int:
        """How many replicas there are."""
        return len(set(self.replicas))

    def sources(self, owner: int) -> list[int]:
        """The other ranks of the owner's replica."""
        if owner not in self._sources:
            mine = self.replicas[owner]
            found = [r for r, x in enumerate(self.replicas) if x == mine and r != owner]
            self._sources[owner] = found
        return self._sources[owner]

    def wrap(self, local: Tensor) -> Tensor:
        """This rank's block as a DTensor."""
        stride = torch.empty(self.shape, device="meta").stride()
        return DTensor.from_local(
            local,
            self.crew.mesh,
            self.placements,
            run_check=False,
            shape=torch.Size(self.shape),
            stride=stride,
        )


def _group(mesh: DeviceMesh, members: list[int]) -> dist.ProcessGroup:
    """A process group of all ranks of a mesh: one that is there, or else a new one."""
    if mesh.ndim == 1:
        return mesh.get_group()
    if members == list(range(dist.get_world_size())):
        world = dist.group.WORLD
        assert world is not None
        return world
    group = dist.new_group(members, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _cuts(placement: Placement) -> bool:
    return not isinstance(placement, Replicate)


def _block(
    shape: Sequence[int],
    sizes: Sequence[int],
    placements: Sequence[Placement],
    coordinate: Sequence[int],
) -> Block:
    """The block of the rank at a coordinate of a mesh of the given sizes."""
    ranges = [(0, size) for size in shape]
    cuts: dict[int, list[Cut]] = {}
    for placement, count, i in zip(placements, sizes, coordinate, strict=True):
        if _cuts(placement):
            cuts.setdefault(_dim(placement), []).append((placement, count, i))
    for dim, some in cuts.items():
        if not any(_factor(placement) for placement, _, _ in some):
            for _, count, i in some:
                ranges[dim] = _chunk(*ranges[dim], count, i)
        else:
            ranges[dim] = _strided(shape[dim], some)
    return tuple(slice(start, stop) for start, stop in ranges)


def _dim(placement: Placement) -> int:
    """The dimension of the tensor that a placement cuts."""
    dim = getattr(placement, "dim", None)
    if not isinstance(dim, int):
        raise TypeError(
            "a parameter must be Shard or Replicate on every dimension of its mesh, got "
            f"{placement}; redistribute it"
        )
    return dim


def _chunk(start: int, stop: int, count: int, i: int) -> tuple[int, int]:
    """The i-th of the chunks that torch.chunk makes; the last ones may be smaller, or empty."""
    size = -(-(stop - start) // count)
    return min(start + i * size, stop), min(start + (i + 1) * size, stop)


def _strided(length: int, cuts: list[Cut]) -> tuple[int, int]:
    """The range left of a dimension that is cut more than once, the later mesh dimension first.

    FSDP over tensor parallelism does that. torch says which entries go where.
    """
    found = torch.arange(length)
    for placement, count, i in cuts:
        along = type(placement)(0, **_factor(placement))  # type: ignore[call-arg]
        pieces, _ = along._split_tensor(found, count, with_padding=False)  # type: ignore[attr-defined]
        found = pieces[i]
    start = int(found[0]) if len(found) else 0
    if not torch.equal(found, torch.arange(start, start + len(found))):
        raise NotImplementedError(
            f"a shard must be one piece of its dimension, got {found.tolist()} of {length}"
        )
    return start, start + len(found)


def _factor(placement: Placement) -> dict[str, int]:
    factor = getattr(placement, "split_factor", None)
    return {} if factor is None else {"split_factor": factor}
