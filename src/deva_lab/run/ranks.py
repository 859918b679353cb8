"""The ranks that a run is on: one process alone, or several that share its batches out.

The loop and the tasks ask either of them the same questions. Several ranks must all ask together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from ..errors import UsageError
from .settings import Mode

T = TypeVar("T")


class Ranks(Protocol):
    """What a run asks."""

    @property
    def mode(self) -> Mode | None:
        """How the model is spread; None where there is one process."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def leads(self) -> bool:
        """Whether this one speaks and writes for all."""

    def part(self, batch: T) -> T:
        """The rows of a batch that this rank trains on, as many as any other rank does."""

    def rows(self, chunk: Tensor) -> tuple[Tensor, int]:
        """The rows of a chunk that this rank looks at, and how many of them count here."""

    def mean(self, loss: Tensor) -> Tensor:
        """The mean over ranks."""

    def total(self, *sums: float) -> list[float]:
        """Each sum over ranks."""

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""

    def gathered(self, thing: T) -> list[T]:
        """What each rank has."""

    def lead(self, do: Callable[[], T]) -> T:
        """What rank 0 gets when it does this; if that is an error, all ranks raise it."""


class Alone:
    """One process, which has everything."""

    mode: Final = None
    rank: Final = 0
    size: Final = 1
    leads: Final = True

    def part(self, batch: T) -> T:
        """All of it."""
        return batch

    def rows(self, chunk: Tensor) -> tuple[Tensor, int]:
        """All of them."""
        return chunk, len(chunk)

    def mean(self, loss: Tensor) -> Tensor:
        """The loss itself."""
        return loss

    def total(self, *sums: float) -> list[float]:
        """The sums themselves."""
        return list(sums)

    def any(self, flag: bool) -> bool:
        """The flag itself."""
        return flag

    def gathered(self, thing: T) -> list[T]:
        """The one thing."""
        return [thing]

    def lead(self, do: Callable[[], T]) -> T:
        """Do it."""
        return do()


ALONE: Final = Alone()


class Several:
    """The ranks of torch.distributed, which must have been initialised."""

    def __init__(self, mode: Mode) -> None:
        self.mode: Final = mode
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.leads = self.rank == 0

    def part(self, batch: T) -> T:
        """The rows of a batch that this rank trains on; their number must be a multiple of ours."""

        def rows(x: Any) -> Any:
            return x.chunk(self.size)[self.rank] if isinstance(x, Tensor) and x.dim() else x

        return cast(T, tree_map(rows, batch))

    def rows(self, chunk: Tensor) -> tuple[Tensor, int]:
        """This rank's rows of a chunk, and how many of them count.

        A model in shards needs every rank in every pass. So a rank that has no row of a small chunk
        looks at the first one, which does not count.
        """
        mine = chunk.tensor_split(self.size)[self.rank]
        return (mine, len(mine)) if len(mine) else (chunk[:1], 0)

    def mean(self, loss: Tensor) -> Tensor:
        """The mean over ranks, on the device of the loss, which nothing waits for."""
        total = loss.clone()
        dist.all_reduce(total)
        return total / self.size

    def total(self, *sums: float) -> list[float]:
        """Each sum over ranks, found on the host without waiting for a device."""
        table = torch.tensor(sums, dtype=torch.float64)
        dist.all_reduce(table)
        found: list[float] = table.tolist()
        return found

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return self.total(flag) != [0.0]

    def gathered(self, thing: T) -> list[T]:
        """What each rank has."""
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def lead(self, do: Callable[[], T]) -> T:
        """What rank 0 gets when it does this; if that is an error for the user, all raise it."""
        told: list[Any] = [None, ""]
        if self.leads:
            try:
                told[0] = do()
            except (UsageError, OSError) as error:
                told[1] = str(error)
                dist.broadcast_object_list(told)
                raise
        dist.broadcast_object_list(told)
        if told[1]:
            raise UsageError(told[1])
        found: T = told[0]
        return found
