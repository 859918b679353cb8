"""Rounds of matrices on their way to their owners and back, overlapped with the updates.

While the matrices of one round are updated, those of the next are sent to their owners, and those
of the round before are sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from .exchange import BUCKET, Exchange, Transfer, buckets, gather, scatter
from .placement import Placement, RankGroup


class Item(Protocol):
    """What an update works on: a gradient and a weight."""

    grad: Tensor
    param: Tensor


E = TypeVar("E", bound=Item)
B = TypeVar("B")


@dataclass(slots=True)
class WorkItem(Generic[E]):
    """A parameter that takes part in a step.

    Attributes:
        item: What is updated. It has the whole gradient and weight of a matrix while these are on
            the owner, and otherwise the blocks of this rank.
        placement: How gradient and weight are placed.
        owner: The rank that updates a matrix; −1 for a vector, whose blocks stay where they are.
        grad, param: The blocks of this rank.
        exact: Whether the owner needs the weight unrounded.
        before: On the owner, if the change of the weight is sent back: the weight before it.
    """

    item: E
    placement: Placement
    owner: int
    grad: Tensor
    param: Tensor
    exact: bool
    before: Tensor | None = None


class Round(Generic[E]):
    """Some matrices of a group of ranks on their way to their owners, and back.

    With a `wire_dtype`, float32 numbers are sent in it. Weights are not sent back then: their
    changes are, which all ranks add to the weights that they have. So the weights are not rounded.
    """

    def __init__(
        self, group: RankGroup, items: list[WorkItem[E]], wire_dtype: torch.dtype | None
    ) -> None:
        self._group, self._items, self._wire_dtype = group, items, wire_dtype
        self._own = [item for item in items if item.owner == group.rank]
        self._exchange = Exchange(group)
        self._changes: list[tuple[Tensor, Tensor]] = []  # a block of a weight, and its change

    def send(self) -> None:
        """Start to send gradients and weights to their owners."""
        for x in self._own:
            sharded, shape = x.placement.sharded, x.placement.shape
            if sharded:
                x.item.grad = x.grad.new_empty(shape)
            if sharded or self._sends_change(x):
                x.item.param = x.param.new_empty(shape)
        transfers = [
            Transfer(x.owner, x.placement, x.grad, x.item.grad, self._dtype(x.grad))
            for x in self._items
        ]
        for x in self._items:
            dtype = None if x.exact else self._dtype(x.param)
            transfers.append(Transfer(x.owner, x.placement, x.param, x.item.param, dtype))
        self._exchange = gather(self._group, transfers)

    def receive(self) -> list[E]:
        """Wait for the matrices that this rank owns, and return them."""
        self._exchange.receive()
        for x in self._own:
            if self._sends_change(x):
                copied = not x.placement.sharded  # then the block is the weight before
                x.before = x.param if copied else x.item.param.clone()
        return [x.item for x in self._own]

    def send_back(self) -> None:
        """Start to send the updated weights, or their changes, to all ranks."""
        transfers = []
        for x in self._items:
            block, dtype = x.param, None
            if self._sends_change(x):
                block, dtype = torch.empty_like(x.param), self._wire_dtype
                self._changes.append((x.param, block))
                if x.before is not None:
                    x.item.param.sub_(x.before)  # which is not the weight that is kept
            transfers.append(Transfer(x.owner, x.placement, block, x.item.param, dtype))
        self._exchange = scatter(self._group, transfers)
        self.release()

    def receive_back(self) -> None:
        """Wait for the weights that other ranks have updated, or for the changes of all."""
        self._exchange.receive()
        for X, change in self._changes:
            X.add_(change)
        self._changes.clear()

    def release(self) -> None:
        """Drop the whole gradients and weights: the next rounds need the memory."""
        for x in self._own:
            x.item.grad, x.item.param, x.before = x.grad, x.param, None

    def _sends_change(self, item: WorkItem[E]) -> bool:
        return self._group.size > 1 and self._dtype(item.param) is not None

    def _dtype(self, X: Tensor) -> torch.dtype | None:
        """The dtype in which X is sent; None is its own.

        Only float32 is rounded: narrower dtypes gain nothing, and float64 may be out of range.
        """
        return self._wire_dtype if X.dtype == torch.float32 else None


def rounds(
    groups: Iterable[RankGroup],
    items: Iterable[WorkItem[E]],
    wire_dtype: torch.dtype | None = None,
) -> list[Round[E]]:
    """The matrices in rounds, in each of which no owner sends back more than half a bucket.

    Two rounds are held at a time, and together they are one bucket.
    """
    queues: dict[RankGroup, dict[int, list[WorkItem[E]]]] = {group: {} for group in groups}
    for item in items:
        queues[item.placement.group].setdefault(item.owner, []).append(item)
    found = []
    for group, by_owner in queues.items():
        load, half = lambda item: item.placement.load, BUCKET // 2
        halves = (buckets(queue, load, half) for queue in by_owner.values())
        for some in zip_longest(*halves, fillvalue=[]):
            found.append(Round(group, [item for half in some for item in half], wire_dtype))
    return found


def overlapped(
    rounds: list[Round[E]], update: Callable[[list[E]], Iterable[B]], meanwhile: Iterable[B]
) -> Iterator[B]:
    """The batches of the entries that this rank owns, as `update` makes them when they arrive.

    Whoever asks for the next batch must have updated the last one. The batches of `meanwhile` come
    while the first round is on its way. Each round is sent before the one before it is updated, and
    is waited for on its way back when the next one has been updated: two are held at a time.
    """
    for first in rounds[:1]:
        first.send()
    yield from meanwhile
    for i, this in enumerate(rounds):
        for following in rounds[i + 1 : i + 2]:
            following.send()
        yield from update(this.receive())
        if i > 0:
            rounds[i - 1].receive_back()
        this.send_back()
    for last in rounds[-1:]:
        last.receive_back()
