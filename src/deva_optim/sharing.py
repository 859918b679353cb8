"""The door to what is different where several ranks share parameters; one process never opens it.

What is behind it, torch's distributed tensors included, is imported when the first one comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from .core.batch import Stack
from .core.skips import SkipLog
from .validation import check_wire_dtype

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from .distributed.step import Distributed
    from .telemetry import Rows

Ranks: TypeAlias = "ProcessGroup | DeviceMesh | None"
Groups = list[dict[str, Any]]
State = Mapping[Tensor, dict[str, Any]]


class Sharing:
    """The parameters of an optimizer that several ranks share, if any.

    Whatever sends messages must be asked for by all of these ranks.

    Args:
        ranks: Who shares the parameters that are not DTensors; None if nobody does.
        wire_dtype: dtype of float32 numbers on their way; None leaves them as they are.
    """

    def __init__(self, ranks: Ranks, wire_dtype: torch.dtype | None) -> None:
        check_wire_dtype(wire_dtype)
        self._ranks, self._wire_dtype = ranks, wire_dtype
        self._distributed: Distributed | None = None

    def __bool__(self) -> bool:
        return self._distributed is not None

    def __contains__(self, param: Tensor) -> bool:
        return self._distributed is not None and param in self._distributed.shared

    def add(self, params: list[Tensor]) -> None:
        """Find out which of some parameters are shared, and how."""
        if self._ranks is None and not any(hasattr(p, "device_mesh") for p in params):
            return
        if self._distributed is None:
            from .distributed.step import Distributed  # it takes a while to import

            self._distributed = Distributed(self._ranks, self._wire_dtype)
        self._distributed.add(params)

    def stacks(self, groups: Groups, state: State, log: SkipLog) -> Iterator[Stack]:
        """The stacks that this rank advances in a step; what it owns is sent to the others."""
        if self._distributed is not None:
            yield from self._distributed.batches(groups, state, log)

    def squared_norms(self, groups: Groups) -> dict[Tensor, float]:
        """The squared norm of every gradient that any rank has."""
        return {} if self._distributed is None else self._distributed.squared_norms(groups)

    def telemetry(self, groups: Groups, state: State) -> Rows:
        """What the owners of the matrices can say of them."""
        return {} if self._distributed is None else self._distributed.telemetry(groups, state)

    def blocks(self, groups: Groups, whole: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Of states in the shape of their parameters what this rank has of the parameters."""
        return {} if self._distributed is None else self._distributed.blocks(whole)

    def spread_state(self, groups: Groups, state: State) -> dict[Tensor, dict[str, Any]]:
        """The state as a checkpoint has it, in equal shares."""
        return {} if self._distributed is None else self._distributed.saved_state(state)

    def take_(self, groups: Groups, state: State) -> None:
        """Give this rank its part of a state that was loaded."""
        if self._distributed is not None:
            self._distributed.load_state_(groups, state)
