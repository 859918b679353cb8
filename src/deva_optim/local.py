"""What an optimizer asks about the ranks that share its parameters, and the answers of one process.

One process shares nothing and imports nothing of torch.distributed. The code for several ranks is
imported with the first parameter that they share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from .core.batch import Batch
from .core.gradients import SkipLog
from .core.parameters import Reading
from .options import Ranks

T = TypeVar("T")
State = Mapping[Tensor, dict[str, Any]]


class Local:
    """One process, which shares no parameters; `distributed.step.Distributed` is several ranks.

    The optimizer itself takes care of what is not shared. Ranks send each other messages to answer,
    so that all of them must ask.

    Args:
        process_group: The ranks that hold copies of the parameters that are not DTensors; None if
            these are not shared.
        wire_dtype: The dtype in which float32 numbers are sent; None sends them as they are.
    """

    shared: Collection[Tensor] = ()  # the parameters that several ranks share

    def __init__(self, process_group: Ranks, wire_dtype: torch.dtype | None) -> None:
        self.process_group, self.wire_dtype = process_group, wire_dtype

    def add(self, params: Iterable[Tensor]) -> None:
        """Find out which of these parameters are shared, and how."""

    def batches(self, readings: list[Reading], state: State, skips: SkipLog) -> Iterator[Batch]:
        """The batches that this rank advances in a step, each before it asks for the next.

        All shared gradients are checked in the call, before the first batch is asked for.
        """
        return iter(())

    def squared_norms(self, readings: list[Reading]) -> dict[Tensor, float]:
        """The squared norm of every shared gradient that any rank has."""
        return {}

    def merged(self, rows: dict[str, T]) -> dict[str, T]:
        """The rows of all ranks, by the name of the parameter."""
        return rows

    def blocks(self, wholes: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """This rank's blocks of states that have the shapes of their parameters."""
        return {}

    def saved_state(self, state: State) -> dict[Tensor, dict[str, Any]]:
        """The state of what is shared as a checkpoint has it."""
        return {}

    def load_state_(self, readings: list[Reading], state: State) -> None:
        """Replace the loaded state of what is shared by this rank's part of it."""


def local_tensor(X: Tensor) -> Tensor:
    """This rank's block of a DTensor; any other tensor as it is."""
    return X.to_local() if hasattr(X, "to_local") else X
