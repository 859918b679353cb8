"""State that lives with one rank, in a checkpoint: as DTensors, which torch knows how to reshard.

While it is in use the state of a matrix is whole and with its owner. A checkpoint has it cut into
equal shares along the first dimension, so that all ranks write, and any number of ranks can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from .ownership import Member
from .roster import Roster, local
from .spread import BUCKET, Crew, Parcel, Spread, collect_, deliver_
from .stack import PARAMETER_SHAPED
from .state import Shield

State = Mapping[Tensor, dict[str, Any]]

ALIKE: Final = ("step", "clock")  # the same on all ranks
SMALL: Final = ("waiting", "idle")  # known to the owner alone, but not worth cutting


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
                whole = key not in PARAMETER_SHAPED or not isinstance(m.param, DTensor)
                values[key] = x if whole else spread.wrap(x)
            elif key not in ALIKE:
                parcel = _outgoing(roster, m, key, x)
                parcels.append(parcel)
                cut = parcel.spread.cut
                values[key] = parcel.spread.wrap(parcel.local) if cut else parcel.local
    _in_rounds(deliver_, parcels)
    return {param: values for param, values in found.items() if values}


def take_(roster: Roster, members: list[Member], state: State) -> None:
    """Replace what was loaded, whole or cut, by what this rank is to have of it."""
    loaded = [m for m in members if state.get(m.param)]
    roster.assign(loaded, anew=True)
    parcels = []
    for m in loaded:
        values = state[m.param]
        for key in sorted(values):
            x = values[key].tensor if isinstance(values[key], Shield) else values[key]
            if not m.is_matrix:
                values[key] = _own_block(roster, m, key, x)
            elif key.split(".")[0] in (*ALIKE, *SMALL):
                values[key] = x.to("cpu" if key == "waiting" or key == "clock" else _device(m))
            elif isinstance(x, DTensor) and x.device_mesh == roster.spread(m.param).crew.mesh:
                parcel = _incoming(roster, m, x)
                parcels.append(parcel)
                values[key] = _kept(x) if parcel.whole is None else parcel.whole
            else:
                x = x.full_tensor() if isinstance(x, DTensor) else x
                values[key] = _copy(x, _device(m)) if roster.owns(m.param) else _kept(x)
    _in_rounds(collect_, parcels)


def block(roster: Roster, m: Member, x: Tensor) -> Tensor:
    """This rank's block of a state of the parameter's shape, sent there by the owner."""
    if not m.is_matrix:
        return x
    spread, owned = roster.spread(m.param), roster.owns(m.param)
    found = torch.empty_like(local(m.param), dtype=x.dtype)
    whole = x if owned else None
    deliver_(spread.crew, [Parcel(roster.owner(m.param), spread, found, whole)])
    return found


def _outgoing(roster: Roster, m: Member, key: str, x: Tensor) -> Parcel:
    crew, owned = roster.spread(m.param).crew, roster.owns(m.param)
    placement = Replicate() if key.split(".")[0] in SMALL else Shard(0)
    spread = Spread(crew, (placement,) * crew.mesh.ndim, x.shape)
    shape = [s.stop - s.start for s in spread.mine]
    device = _device(m) if x.is_meta else x.device
    return Parcel(
        roster.owner(m.param), spread, x.new_empty(shape, device=device), x if owned else None
    )


def _incoming(roster: Roster, m: Member, x: DTensor) -> Parcel:
    spread = Spread(roster.spread(m.param).crew, x.placements, x.shape)
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
    return _copy(x[spread.mine] if key in PARAMETER_SHAPED else x, _device(m))


def _in_rounds(move_: Callable[[Crew, list[Parcel]], None], parcels: list[Parcel]) -> None:
    for crew in dict.fromkeys(parcel.spread.crew for parcel in parcels):
        for some in _buckets([parcel for parcel in parcels if parcel.spread.crew is crew]):
            move_(crew, some)


def _buckets(parcels: list[Parcel]) -> Iterator[list[Parcel]]:
    some: list[Parcel] = []
    size = 0
    for parcel in parcels:
        numel = torch.Size(parcel.spread.shape).numel()
        if some and size + numel > BUCKET:
            yield some
            some, size = [], 0
        some.append(parcel)
        size += numel
    if some:
        yield some


def _kept(x: Tensor) -> Tensor:
    """What other ranks than the owner keep of a state: its shape."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def _copy(x: Tensor, device: torch.device) -> Tensor:
    return x.to(device, copy=True, memory_format=torch.contiguous_format)


def _device(m: Member) -> torch.device:
    return local(m.param).device
