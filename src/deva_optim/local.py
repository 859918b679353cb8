"""What an optimizer asks about the ranks that share its parameters, and the answers of one process.

One process shares nothing and imports nothing of torch.distributed. The code for several ranks is
imported with the first parameter that they share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from .core.batch import Stack
from .core.skips import SkipLog
from .telemetry import Rows
from .validation import check_wire_dtype

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Ranks: TypeAlias = "ProcessGroup | DeviceMesh | None"
Groups = list[dict[str, Any]]
State = Mapping[Tensor, dict[str, Any]]


class Strategy(Protocol):
    """What is different about the parameters that several ranks share.

    The optimizer itself takes care of all others. Ranks send each other messages to answer, so that
    all of them must ask. The answers given here are those of one process.
    """

    @property
    def shared(self) -> Collection[Tensor]:
        """The parameters that several ranks share."""
        return ()

    def add(self, params: Iterable[Tensor]) -> Strategy:
        """The strategy for these parameters as well, some of which may be shared."""
        ...

    def batches(self, groups: Groups, state: State, log: SkipLog) -> Iterator[Stack]:
        """The batches that this rank advances in a step, each before it asks for the next."""
        return iter(())

    def squared_norms(self, groups: Groups) -> dict[Tensor, float]:
        """The squared norm of every gradient that any rank has."""
        return {}

    def telemetry(self, groups: Groups, state: State) -> Rows:
        """The telemetry of every matrix that has taken a step."""
        return {}

    def blocks(self, wholes: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """This rank's blocks of states that have the shapes of their parameters."""
        return {}

    def saved_state(self, state: State) -> dict[Tensor, dict[str, Any]]:
        """The state as a checkpoint has it."""
        return {}

    def load_state_(self, groups: Groups, state: State) -> None:
        """Replace a loaded state by this rank's part of it."""
        return


class Local(Strategy):
    """One process, until it gets a parameter that several ranks share.

    Args:
        process_group: The ranks that hold copies of the parameters that are not DTensors; None if
            these are not shared.
        wire_dtype: The dtype in which float32 numbers are sent; None sends them as they are.
    """

    def __init__(self, process_group: Ranks, wire_dtype: torch.dtype | None) -> None:
        check_wire_dtype(wire_dtype)
        self._process_group, self._wire_dtype = process_group, wire_dtype

    def add(self, params: Iterable[Tensor]) -> Strategy:
        """Several ranks if they share any of these parameters, and else one process as before."""
        params = list(params)
        if self._process_group is None and not any(hasattr(p, "device_mesh") for p in params):
            return self
        from .distributed.step import Distributed  # it takes a while to import

        return Distributed(self._process_group, self._wire_dtype).add(params)
