"""Who shares which parameter, and who owns which matrix."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from ..core.ownership import owners, step_cost
from ..core.parameters import Member
from .placement import Crew, Spread


class Roster:
    """How each parameter is spread over which ranks, and who owns which matrix.

    Args:
        ranks: Who shares the parameters that are not DTensors; None if nobody does.
    """

    def __init__(self, ranks: ProcessGroup | DeviceMesh | None) -> None:
        if not isinstance(ranks, ProcessGroup | DeviceMesh | None):
            raise TypeError(f"process_group must be a process group or a mesh, got {ranks!r}")
        self._ranks = ranks
        self._crews: dict[DeviceMesh, Crew] = {}
        self._spreads: dict[Tensor, Spread] = {}
        self._owners: dict[Tensor, int] = {}
        self._loads: dict[Crew, list[int]] = {}

    def __contains__(self, param: Tensor) -> bool:
        return param in self._spreads

    def add(self, param: Tensor) -> None:
        """Find out how a parameter is spread."""
        if isinstance(param, DTensor):
            mesh, placements = param.device_mesh, param.placements
        elif self._ranks is not None:
            mesh = self._mesh(param.device.type)
            placements = (Replicate(),) * mesh.ndim
        else:
            return
        if mesh not in self._crews:
            self._crews[mesh] = Crew(mesh)
            self._loads[self._crews[mesh]] = [0] * self._crews[mesh].size
        self._spreads[param] = self._crews[mesh].spread(placements, param.shape)

    @property
    def crews(self) -> Iterable[Crew]:
        """The ranks of each mesh, in the same order everywhere."""
        return self._crews.values()

    def spread(self, param: Tensor) -> Spread:
        """How a parameter is spread."""
        return self._spreads[param]

    def owner(self, param: Tensor) -> int:
        """The rank that owns a matrix."""
        return self._owners[param]

    def owns(self, param: Tensor) -> bool:
        """Whether this rank owns a matrix."""
        return self._owners[param] == self._spreads[param].crew.rank

    def assign(self, members: Iterable[Member], *, anew: bool = False) -> None:
        """Give an owner to every matrix that has none, or to all of them anew."""
        if anew:
            self._owners.clear()
            self._loads = {crew: [0] * crew.size for crew in self._loads}
        new = [m for m in members if m.is_matrix and m.param not in self._owners]
        for crew, load in self._loads.items():
            mine = [m for m in new if self._spreads[m.param].crew is crew]
            costs = [step_cost(m.parts, m.method, m.group) for m in mine]
            self._owners.update(zip((m.param for m in mine), owners(costs, load), strict=True))

    def _mesh(self, device: str) -> DeviceMesh:
        if isinstance(self._ranks, DeviceMesh):
            return self._ranks
        assert self._ranks is not None
        self._ranks = DeviceMesh.from_group(self._ranks, device)
        return self._ranks


def local(param: Tensor) -> Tensor:
    """This rank's block of a parameter."""
    return param.to_local() if isinstance(param, DTensor) else param
