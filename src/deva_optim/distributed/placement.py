"""How a tensor is placed over the ranks of a mesh, and which rank owns it.

A tensor is cut along some dimensions of the mesh and copied along the others. Each rank holds one
block of it, and a replica is a set of ranks whose blocks make up the whole tensor. A block is one
piece of the tensor, or several, as the half of gate and the half of up in a weight that packs both.
Ranks are numbered as in their process group.

The owner of a matrix alone keeps its state and computes its updates. Owners are chosen so that all
ranks have about the same amount of work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import accumulate, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement as DimPlacement

from ..core.balance import share_out
from ..options import Ranks

Ints = Sequence[int]
Slices = tuple[slice, ...]
Runs = list[tuple[int, int]]  # along a dimension: where each run of indices begins and ends
Cut = tuple[DimPlacement, int, int]  # along a mesh dimension: how, into how many, which of them


class RankGroup:
    """The ranks of a mesh, as one process group."""

    def __init__(self, mesh: DeviceMesh) -> None:
        ranks = sorted(mesh.mesh.flatten().tolist())
        self.mesh, self.group = mesh, _process_group(mesh, ranks)
        self.rank, self.size = ranks.index(dist.get_rank()), len(ranks)
        self.coordinates = [coordinates(mesh, rank) for rank in ranks]  # of each rank, in the mesh
        self.placement = cache(partial(Placement, self))  # one for all tensors that are alike
        self.loads = [0] * self.size  # the costs of what each rank owns

    def sum_(self, X: Tensor) -> None:
        """X ← the sum of the X of all ranks, on whatever device it is."""
        if self.size > 1:
            sent = X if X.device.type == self.mesh.device_type else X.to(self.mesh.device_type)
            dist.all_reduce(sent, group=self.group)
            X.copy_(sent)

    def merged(self, found: dict[str, Any]) -> dict[str, Any]:
        """The dictionaries of all ranks, as one."""
        if self.size == 1:
            return found
        every: list[dict[str, Any]] = [{} for _ in range(self.size)]
        dist.all_gather_object(every, found, group=self.group)
        return {name: x for each in every for name, x in each.items()}


class Placement:
    """How a tensor of some shape is placed over the ranks of a group."""

    def __init__(
        self, group: RankGroup, placements: tuple[DimPlacement, ...], shape: tuple[int, ...]
    ) -> None:
        self.group, self.placements, self.shape = group, placements, shape
        sizes = tuple(group.mesh.mesh.shape)
        blocks = [block(shape, sizes, placements, at) for at in group.coordinates]
        self.pieces = [pieces(runs) for runs in blocks]  # of each rank
        self.own_runs = blocks[group.rank]  # what this rank holds, along each dimension
        self.own_shape = [sum(b - a for a, b in runs) for runs in self.own_runs]
        self.packed = any(len(some) > 1 for some in self.pieces)  # whether a block is several
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        starts = (runs[0][0] for runs in self.own_runs)
        self.offset = sum(a * b for a, b in zip(starts, strides, strict=True))  # where it begins
        copied = [i for i, placement in enumerate(placements) if placement.is_replicate()]
        self.sharded = len(copied) < len(placements)
        self.replicas = [tuple(at[i] for i in copied) for at in group.coordinates]  # of each rank
        self.copies = len(set(self.replicas))
        self.load = math.prod(shape) * self.copies  # how many numbers all copies have

    def as_dtensor(self, own: Tensor) -> Tensor:
        """The DTensor of which this rank holds the given block, as a checkpoint can have it."""
        mesh, whole = self.group.mesh, torch.empty(self.shape, device="meta")
        found = DTensor.from_local(
            own, mesh, self.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
        if self.packed:  # torch would save and load such a block as if it were one piece
            dims = [getattr(placement, "dim", None) for placement in self.placements]
            found = found.redistribute(
                mesh, [Replicate() if dim is None else Shard(dim) for dim in dims]
            )
        return found


class Owners:
    """The parameters that ranks share: how each is placed, and which rank owns it."""

    def __init__(self, process_group: Ranks) -> None:
        if not isinstance(process_group, dist.ProcessGroup | DeviceMesh | None):
            raise TypeError(
                f"process_group must be a process group or a mesh, got {process_group!r}"
            )
        self._process_group = process_group
        self.groups: list[RankGroup] = []  # one for each mesh, in the same order on all ranks
        self.placements: dict[Tensor, Placement] = {}
        # The owners of matrices, numbered as in their groups. A vector has none, nor has a matrix
        # before its first gradient.
        self.owner_of: dict[Tensor, int] = {}

    def add(self, param: Tensor) -> None:
        """Find out how a parameter is placed, if it is shared."""
        if isinstance(param, DTensor):
            mesh, placements = param.device_mesh, param.placements
        elif self._process_group is not None:
            if isinstance(self._process_group, dist.ProcessGroup):
                device = param.device.type
                self._process_group = DeviceMesh.from_group(self._process_group, device)
            mesh = self._process_group
            placements = (Replicate(),) * mesh.ndim
        else:
            return
        group = next((group for group in self.groups if group.mesh == mesh), None)
        if group is None:
            group = RankGroup(mesh)
            self.groups.append(group)
        self.placements[param] = group.placement(placements, param.shape)

    def assign(self, costs: Mapping[Tensor, int]) -> None:
        """Choose owners for matrices that have none, from what a step of each matrix costs."""
        for group in self.groups:
            params = [p for p in costs if self.placements[p].group is group]
            chosen = share_out([costs[p] for p in params], group.loads)
            self.owner_of.update(zip(params, chosen, strict=True))

    def clear(self) -> None:
        """Forget all owners."""
        self.owner_of.clear()
        for group in self.groups:
            group.loads = [0] * group.size


def coordinates(mesh: DeviceMesh, rank: int) -> tuple[int, ...]:
    """The coordinates of a rank of the world in a mesh that it belongs to."""
    return tuple((mesh.mesh == rank).nonzero()[0].tolist())


def block(
    shape: Ints, mesh_shape: Ints, placements: Sequence[DimPlacement], at: Ints
) -> list[Runs]:
    """What the rank at some coordinates of a mesh holds of a tensor, along each dimension."""
    cuts: dict[int, list[Cut]] = {}
    for placement, count, i in zip(placements, mesh_shape, at, strict=True):
        if placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if not isinstance(dim, int):
            raise TypeError(
                "a parameter must be Shard or Replicate on every dimension of its mesh, got "
                f"{placement}; redistribute it"
            )
        cuts.setdefault(dim, []).append((placement, count, i))
    return [_runs(n, cuts.get(dim, [])) for dim, n in enumerate(shape)]


def pieces(runs: list[Runs]) -> list[tuple[Slices, Slices]]:
    """The pieces of a block in its order: where each is in the whole tensor, and in the block."""
    along = []
    for some in runs:
        starts = accumulate((b - a for a, b in some), initial=0)
        pairs = zip(some, starts, strict=False)  # of the starts the last is the end
        along.append([(slice(a, b), slice(x, x + b - a)) for (a, b), x in pairs])
    return [(tuple(x for x, _ in p), tuple(y for _, y in p)) for p in product(*along)]


def _process_group(mesh: DeviceMesh, ranks: list[int]) -> dist.ProcessGroup:
    """A process group of all ranks of a mesh: one that exists, or else a new one."""
    if mesh.ndim == 1:
        return mesh.get_group()
    is_world = ranks == list(range(dist.get_world_size()))
    group = dist.group.WORLD if is_world else dist.new_group(ranks, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _runs(length: int, cuts: list[Cut]) -> Runs:
    """The runs of indices that are left of a dimension after some cuts."""
    if any(hasattr(placement, "split_factor") for placement, _, _ in cuts):
        return _strided_runs(length, cuts)
    start, stop = 0, length
    for _, count, i in cuts:  # as torch.chunk cuts: the last chunks may be smaller, or empty
        size = -(-(stop - start) // count)
        start, stop = min(start + i * size, stop), min(start + (i + 1) * size, stop)
    return [(start, stop)]


def _strided_runs(length: int, cuts: list[Cut]) -> Runs:
    """The same where something else cuts first: a later dimension of the mesh, or a packed weight.

    torch itself is asked which index goes where.
    """
    found = torch.arange(length, device="cpu")
    for placement, count, i in cuts:
        factor = getattr(placement, "split_factor", None)
        options = {} if factor is None else {"split_factor": factor}
        along = type(placement)(0, **options)  # type: ignore[call-arg]
        shards, _ = along._split_tensor(found, count, with_padding=False)  # type: ignore[attr-defined]
        found = shards[i]
    ends = 1 + (found.diff() != 1).nonzero().flatten()
    return [(int(x[0]), int(x[-1]) + 1) for x in found.tensor_split(ends) if len(x)] or [(0, 0)]
