"""The state of shared parameters in a checkpoint: DTensors, which torch can reshard.

While it is in use, the state of a matrix is whole and on its owner; the other ranks have tensors
without data in its place, on the meta device. In a checkpoint it is cut into equal shares along the
first dimension, so that all ranks write, and any number of ranks can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..core.codes import SCALE
from ..core.matrices import PARAMETER_SHAPED
from ..core.state import copied, on_host
from ..local import State, local_tensor
from .exchange import BUCKET, Exchange, Transfer, buckets, gather, scatter
from .placement import Owners, RankGroup, coordinates

_SAME: Final = ("step", "clock", "rounding")  # the same on all ranks
_SMALL: Final = ("waiting", "idle", "exponent")  # right on the owner alone, but too small to cut


def saved_state(owners: Owners, state: State) -> dict[Tensor, dict[str, Any]]:
    """The state of all shared parameters as a checkpoint has it, sent by the owners."""
    found = {param: dict(state.get(param) or {}) for param in owners.placements}
    filled = []
    for param, values in found.items():
        placement = owners.placements[param]
        for key, x in values.items():
            if param in owners.owner_of and key not in _SAME:
                filled.append((values, key, _transfer_to_share(owners, param, key, x)))
            else:  # a clone, which a checkpoint may be read into without changing the state
                values[key] = x.clone()
                if key in PARAMETER_SHAPED and isinstance(param, DTensor):
                    values[key] = placement.as_dtensor(values[key])
                elif key.endswith(SCALE) and isinstance(param, DTensor):  # in rows as the codes are
                    rows = placement.shape[0], x.shape[1]
                    cut = placement.group.placement(placement.placements, rows)
                    values[key] = cut.as_dtensor(values[key])
    _in_buckets(scatter, [transfer for *_, transfer in filled])
    for values, key, (_, cut, share, *_) in filled:  # a DTensor may be a copy on another device
        values[key] = cut.as_dtensor(share) if cut.sharded else share
    return {param: values for param, values in found.items() if values}


def load_state_(owners: Owners, params: Iterable[Tensor], state: State) -> None:
    """Replace the loaded state of parameters, whole or in shares, by this rank's part of it."""
    transfers = []
    for param in params:
        placement, values = owners.placements[param], state[param]
        elsewhere = param in owners.owner_of and owners.owner_of[param] != placement.group.rank
        for key in sorted(values):
            x = values[key]
            device = torch.device("cpu") if on_host(key) else local_tensor(param).device
            if param not in owners.owner_of:
                values[key] = copied(_block(owners, param, key, x), device)
            elif key.split(".")[0] in (*_SAME, *_SMALL):
                values[key] = copied(x, device)
            elif isinstance(x, DTensor) and x.device_mesh == placement.group.mesh:
                share, cut = x.to_local(), placement.group.placement(x.placements, x.shape)
                whole = share.new_empty(x.shape, device="meta" if elsewhere else device)
                transfers.append(Transfer(owners.owner_of[param], cut, share, whole))
                values[key] = whole
            else:
                x = x.full_tensor() if isinstance(x, DTensor) else x
                values[key] = torch.empty_like(x, device="meta") if elsewhere else copied(x, device)
    _in_buckets(gather, transfers)


def own_block(owners: Owners, param: Tensor, x: Tensor) -> Tensor:
    """This rank's block of a state that has the shape of its parameter, sent by the owner."""
    if param not in owners.owner_of:
        return x
    placement = owners.placements[param]
    found = torch.empty_like(local_tensor(param), dtype=x.dtype)
    scatter(placement.group, [Transfer(owners.owner_of[param], placement, found, x)]).receive()
    return found


def check_origin(owners: Owners, params: Iterable[Tensor], state: State) -> None:
    """Raise an error on all ranks if any of them has loaded the shares of another rank.

    The mesh of such a share has the coordinates of the other rank.
    """
    found = [x for param in params for x in state[param].values()]
    meshes = {id(x.device_mesh): x.device_mesh for x in found if isinstance(x, DTensor)}
    foreign = any(
        tuple(mesh.get_coordinate() or ()) != coordinates(mesh, dist.get_rank())
        for mesh in meshes.values()
    )
    for group in owners.groups if meshes else ():
        count = torch.tensor(float(foreign), device=group.mesh.device_type)
        group.sum_(count)
        if count > 0:
            raise ValueError(
                f"{int(count)} of {group.size} ranks were given the state that another rank had "
                "of its own; save and load it through torch.distributed.checkpoint, or as a "
                "whole (StateDictOptions(full_state_dict=True))"
            )


def _transfer_to_share(owners: Owners, param: Tensor, key: str, x: Tensor) -> Transfer:
    """What fills this rank's share of a state that the owner has."""
    group = owners.placements[param].group
    kind = Replicate() if key.split(".")[0] in _SMALL else Shard(0)
    cut = group.placement((kind,) * group.mesh.ndim, x.shape)
    device = local_tensor(param).device if x.is_meta else x.device
    share = x.new_empty(cut.own_shape, device=device)
    return Transfer(owners.owner_of[param], cut, share, x)


def _block(owners: Owners, param: Tensor, key: str, x: Tensor) -> Tensor:
    """This rank's block of the state of a vector."""
    if isinstance(x, DTensor):
        if isinstance(param, DTensor) and x.device_mesh == param.device_mesh:
            return x.redistribute(x.device_mesh, param.placements).to_local()
        x = x.full_tensor()
    own = owners.placements[param].own_runs
    own = own if key in PARAMETER_SHAPED else own[:1] if key.endswith(SCALE) else []
    for dim, runs in enumerate(own):
        x = torch.cat([x.narrow(dim, a, b - a) for a, b in runs], dim)
    return x


def _in_buckets(
    move: Callable[[RankGroup, list[Transfer]], Exchange], transfers: list[Transfer]
) -> None:
    """Make the transfers, a bucket at a time."""
    for group in dict.fromkeys(transfer.placement.group for transfer in transfers):
        some = [transfer for transfer in transfers if transfer.placement.group is group]
        for bucket in buckets(some, BUCKET):
            move(group, bucket).receive()
