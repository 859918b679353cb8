"""State that lives with one rank, in a checkpoint: as DTensors, which torch knows how to reshard.

While it is in use the state of a matrix is whole and with its owner. A checkpoint has it cut into
equal shares along the first dimension, so that all ranks write, and any number of ranks can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..core.matrices import PARAMETER_SHAPED
from ..core.parameters import Member
from ..core.state import Shield, on_host
from .exchange import BUCKET, Mail, Parcel, collect, deliver
from .owners import Roster, local
from .placement import Crew

State = Mapping[Tensor, dict[str, Any]]

ALIKE: Final = ("step", "clock")  # the same on all ranks
SMALL: Final = ("waiting", "idle", "exponent")  # known to the owner alone, but not worth cutting
_CPU: Final = torch.device("cpu")


def spread_state(
    roster: Roster, members: list[Member], state: State
) -> dict[Tensor, dict[str, Any]]:
    """The state of the members as a checkpoint has it; sent there by the owners."""
    found: dict[Tensor, dict[str, Any]] = {}
    parcels = []
    for m in members:
        values = found[m.param] = dict(state.get(m.param) or {})
        spread = roster.spread(m.param)
        for key, x in values.items():
            if not m.is_matrix:
                # Copies: a checkpoint that is read into them only in part must not hurt.
                whole = key not in PARAMETER_SHAPED or not isinstance(m.param, DTensor)
                values[key] = x.clone() if whole else spread.wrap(x.clone())
            elif key in ALIKE:
                values[key] = x.clone()
            else:
                parcel = _outgoing(roster, m, key, x)
                parcels.append(parcel)
                cut = parcel.spread.cut
                values[key] = parcel.spread.wrap(parcel.local) if cut else parcel.local
    _in_rounds(deliver, parcels)
    return {param: values for param, values in found.items() if values}


def take_(roster: Roster, members: list[Member], state: State) -> None:
    """Replace what was loaded, whole or cut, by what this rank is to have of it."""
    loaded = [m for m in members if state.get(m.param)]
    _check_origin(roster, [_bare(x) for m in loaded for x in state[m.param].values()])
    roster.assign(loaded, anew=True)
    parcels = []
    for m in loaded:
        values = state[m.param]
        for key in sorted(values):
            x = _bare(values[key])
            if not m.is_matrix:
                values[key] = _own_block(roster, m, key, x)
            elif key.split(".")[0] in (*ALIKE, *SMALL):
                values[key] = _copy(x, _CPU if on_host(key) else _device(m))
            elif isinstance(x, DTensor) and x.device_mesh == roster.spread(m.param).crew.mesh:
                parcel = _incoming(roster, m, x)
                parcels.append(parcel)
                values[key] = _kept(x) if parcel.whole is None else parcel.whole
            else:
                x = x.full_tensor() if isinstance(x, DTensor) else x
                values[key] = _copy(x, _device(m)) if roster.owns(m.param) else _kept(x)
    _in_rounds(collect, parcels)


def block(roster: Roster, m: Member, x: Tensor) -> Tensor:
    """This rank's block of a state of the parameter's shape, sent there by the owner."""
    if not m.is_matrix:
        return x
    spread, owned = roster.spread(m.param), roster.owns(m.param)
    found = torch.empty_like(local(m.param), dtype=x.dtype)
    whole = x if owned else None
    deliver(spread.crew, [Parcel(roster.owner(m.param), spread, found, whole)]).receive()
    return found


def _check_origin(roster: Roster, found: list[Any]) -> None:
    """Raise an error on all ranks if any of them has loaded the shares of another one."""
    meshes = {id(x.device_mesh): x.device_mesh for x in found if isinstance(x, DTensor)}
    strange = any(
        list(mesh.get_coordinate() or ()) != (mesh.mesh == dist.get_rank()).nonzero()[0].tolist()
        for mesh in meshes.values()
    )
    for crew in roster.crews if meshes else ():
        count = torch.tensor(float(strange), device=crew.mesh.device_type)
        crew.sum_(count)
        if count > 0:
            raise ValueError(
                f"{int(count)} of {crew.size} ranks were given the state that another rank had "
                "of its own; save and load it through torch.distributed.checkpoint, or as a "
                "whole (StateDictOptions(full_state_dict=True))"
            )


def _bare(x: Any) -> Any:
    return x.tensor if isinstance(x, Shield) else x


def _outgoing(roster: Roster, m: Member, key: str, x: Tensor) -> Parcel:
    crew, owned = roster.spread(m.param).crew, roster.owns(m.param)
    placement = Replicate() if key.split(".")[0] in SMALL else Shard(0)
    spread = crew.spread((placement,) * crew.mesh.ndim, x.shape)
    shape = [s.stop - s.start for s in spread.mine]
    device = _device(m) if x.is_meta else x.device
    return Parcel(
        roster.owner(m.param), spread, x.new_empty(shape, device=device), x if owned else None
    )


def _incoming(roster: Roster, m: Member, x: DTensor) -> Parcel:
    spread = roster.spread(m.param).crew.spread(x.placements, x.shape)
    share = x.to_local()
    whole = share.new_empty(x.shape, device=_device(m)) if roster.owns(m.param) else None
    return Parcel(roster.owner(m.param), spread, share, whole)


def _own_block(roster: Roster, m: Member, key: str, x: Tensor) -> Tensor:
    """What this rank has of the state of a vector."""
    spread, param = roster.spread(m.param), m.param
    if isinstance(x, DTensor):
        if isinstance(param, DTensor) and x.device_mesh == param.device_mesh:
            return _copy(x.redistribute(x.device_mesh, param.placements).to_local(), _device(m))
        x = x.full_tensor()
    if on_host(key):
        return _copy(x, _CPU)
    return _copy(x[spread.mine] if key in PARAMETER_SHAPED else x, _device(m))


def _in_rounds(move: Callable[[Crew, list[Parcel]], Mail], parcels: list[Parcel]) -> None:
    for crew in dict.fromkeys(parcel.spread.crew for parcel in parcels):
        for some in _buckets([parcel for parcel in parcels if parcel.spread.crew is crew]):
            move(crew, some).receive()


def _buckets(parcels: list[Parcel]) -> Iterator[list[Parcel]]:
    some: list[Parcel] = []
    size = 0
    for parcel in parcels:
        if some and size + parcel.load > BUCKET:
            yield some
            some, size = [], 0
        some.append(parcel)
        size += parcel.load
    if some:
        yield some


def _kept(x: Tensor) -> Tensor:
    """What other ranks than the owner keep of a state: its shape."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def _copy(x: Tensor, device: torch.device) -> Tensor:
    return x.to(device, copy=True, memory_format=torch.contiguous_format)


def _device(m: Member) -> torch.device:
    return local(m.param).device
