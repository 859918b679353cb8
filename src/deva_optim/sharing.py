"""The door to what is different where several ranks share parameters; one process never opens it.

What is behind it, torch's distributed tensors included, is imported when the first one comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .core.batch import Stack
from .core.parameters import Member, members
from .core.schedule import first_phases
from .core.skips import SkipLog
from .options import Ranks

if TYPE_CHECKING:
    from .distributed.step import Fleet
    from .telemetry import Rows

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
        self._ranks, self._wire_dtype = ranks, wire_dtype
        self._fleet: Fleet | None = None

    def __bool__(self) -> bool:
        return self._fleet is not None

    def __contains__(self, param: Tensor) -> bool:
        return self._fleet is not None and param in self._fleet

    def add(self, params: list[Tensor]) -> None:
        """Find out which of some parameters are shared, and how."""
        if self._ranks is None and not any(hasattr(p, "device_mesh") for p in params):
            return
        if self._fleet is None:
            from .distributed.step import Fleet  # it takes a while to import

            self._fleet = Fleet(self._ranks, self._wire_dtype)
        for p in params:
            if p not in self._fleet:
                self._fleet.add(p)

    def stacks(self, groups: Groups, state: State, log: SkipLog) -> Iterator[Stack]:
        """The stacks that this rank advances in a step; what it owns is sent to the others."""
        if self._fleet is not None:
            phases = partial(first_phases, groups)
            yield from self._fleet.stacks(self._members(groups), state, phases, log)

    def squared_norms(self, groups: Groups) -> dict[Tensor, float]:
        """The squared norm of every gradient that any rank has."""
        return {} if self._fleet is None else self._fleet.squared_norms(self._members(groups))

    def telemetry(self, groups: Groups, state: State) -> Rows:
        """What the owners of the matrices can say of them."""
        return {} if self._fleet is None else self._fleet.telemetry(self._members(groups), state)

    def blocks(self, groups: Groups, whole: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Of states in the shape of their parameters what this rank has of the parameters."""
        if self._fleet is None:
            return {}
        known = [m for m in self._members(groups) if m.param in whole]
        return {m.param: self._fleet.block(m, whole[m.param]) for m in known}

    def spread_state(self, groups: Groups, state: State) -> dict[Tensor, dict[str, Any]]:
        """The state as a checkpoint has it, in equal shares."""
        return {} if self._fleet is None else self._fleet.spread_state(self._members(groups), state)

    def take_(self, groups: Groups, state: State) -> None:
        """Give this rank its part of a state that was loaded."""
        if self._fleet is not None:
            self._fleet.take_(self._members(groups), state)

    def _members(self, groups: Groups) -> list[Member]:
        return members(groups, self.__contains__)
