"""Which rank owns which matrix.

The owner alone keeps the state of a matrix and computes its updates. Owners are chosen so that all
ranks have about the same amount of work.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from ..core.balance import share_out
from .placement import Placement, RankGroup


class Owners:
    """The parameters that ranks share: how each is placed, and which rank owns it."""

    def __init__(self, process_group: ProcessGroup | DeviceMesh | None) -> None:
        if not isinstance(process_group, ProcessGroup | DeviceMesh | None):
            raise TypeError(
                f"process_group must be a process group or a mesh, got {process_group!r}"
            )
        self._process_group = process_group
        self._loads: dict[RankGroup, list[int]] = {}  # the costs of what each rank owns
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
            if isinstance(self._process_group, ProcessGroup):
                device = param.device.type
                self._process_group = DeviceMesh.from_group(self._process_group, device)
            mesh = self._process_group
            placements = (Replicate(),) * mesh.ndim
        else:
            return
        if all(group.mesh != mesh for group in self.groups):
            self.groups.append(RankGroup(mesh))
            self._loads[self.groups[-1]] = [0] * self.groups[-1].size
        group = next(group for group in self.groups if group.mesh == mesh)
        self.placements[param] = group.placement(placements, param.shape)

    def assign(self, costs: Mapping[Tensor, int]) -> None:
        """Choose owners for matrices that have none, from what a step of each matrix costs."""
        for group, load in self._loads.items():
            params = [p for p in costs if self.placements[p].group is group]
            chosen = share_out([costs[p] for p in params], load)
            self.owner_of.update(zip(params, chosen, strict=True))

    def clear(self) -> None:
        """Forget all owners."""
        self.owner_of.clear()
        self._loads = {group: [0] * group.size for group in self.groups}
