"""Rounds of matrices on their way to their owners and back, overlapped with the updates.

While the matrices of one round are updated, those of the next are sent to their owners, and those
of the round before are sent back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from ..core.batch import Batch, Item, batches
from ..core.gradients import choose_units_
from .exchange import BUCKET, Exchange, Transfer, buckets, gather, scatter
from .placement import Placement, RankGroup


@dataclass(slots=True)
class WorkItem:
    """A parameter that takes part in a step."""

    item: Item  # has the whole gradient and weight while these are on the owner, else the blocks
    placement: Placement  # of the weight and of its gradient
    owner: int  # the rank that updates a matrix; −1 for a vector, which stays where it is
    grad: Tensor  # this rank's block
    param: Tensor  # this rank's block
    exact: bool  # whether the owner needs the weight unrounded
    before: Tensor | None = None  # the whole weight before the update, if its change is sent back


class Round:
    """Some matrices of a group of ranks on their way to their owners, and back.

    With a `wire_dtype`, float32 numbers are sent in it. Weights are not sent back then: their
    changes are, which all ranks add to the weights that they have. So the weights are not rounded.
    """

    def __init__(
        self, group: RankGroup, items: list[WorkItem], wire_dtype: torch.dtype | None
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

    def batches(self) -> Iterator[Batch]:
        """Wait for the matrices that this rank owns; they are batches like any other then."""
        self._exchange.receive()
        for x in self._own:
            if self._sends_change(x):
                # A weight that is not sharded is updated in another tensor than its block.
                x.before = x.item.param.clone() if x.placement.sharded else x.param
            choose_units_(x.item)
        return batches(x.item for x in self._own)

    def send_back(self) -> None:
        """Start to send the updated weights, or their changes, to all ranks."""
        transfers = []
        for x in self._items:
            block, dtype = x.param, None
            if self._sends_change(x):
                block, dtype = torch.empty_like(x.param), self._wire_dtype
                self._changes.append((x.param, block))
                if x.before is not None:
                    x.item.param.sub_(x.before)  # in place: this copy is for the round alone
            transfers.append(Transfer(x.owner, x.placement, block, x.item.param, dtype))
        self._exchange = scatter(self._group, transfers)
        for x in self._own:  # drop whole gradients and weights: the next rounds need the memory
            x.item.grad, x.item.param, x.before = x.grad, x.param, None

    def receive_back(self) -> None:
        """Wait for the weights that other ranks have updated, or for the changes of all."""
        self._exchange.receive()
        for X, change in self._changes:
            X.add_(change)
        self._changes.clear()

    def _sends_change(self, item: WorkItem) -> bool:
        return self._group.size > 1 and self._dtype(item.param) is not None

    def _dtype(self, X: Tensor) -> torch.dtype | None:
        """The dtype in which X is sent; None is its own.

        Only float32 is rounded: narrower dtypes gain nothing, and float64 may be out of range.
        """
        return self._wire_dtype if X.dtype == torch.float32 else None


def rounds(
    groups: Iterable[RankGroup], items: list[WorkItem], wire_dtype: torch.dtype | None
) -> list[Round]:
    """The matrices in rounds, in each of which no owner sends back more than half a bucket.

    Two rounds are held at a time, and together they are one bucket.
    """
    found = []
    for group in groups:
        queues: dict[int, list[WorkItem]] = {}
        for x in items:
            if x.placement.group is group:
                queues.setdefault(x.owner, []).append(x)
        halves = (buckets(queue, BUCKET // 2) for queue in queues.values())
        for some in zip_longest(*halves, fillvalue=[]):
            found.append(Round(group, [x for half in some for x in half], wire_dtype))
    return found


def overlapped(rounds: list[Round], meanwhile: Iterable[Batch]) -> Iterator[Batch]:
    """The batches of the matrices that this rank owns, as they arrive.

    The caller updates each batch before it asks for the next one. The batches of `meanwhile` come
    while the first round is on its way. A round is sent before the round before it is updated, and
    its way back is waited for after the next one has been updated. So two are held at a time.
    """
    for first in rounds[:1]:
        first.send()
    yield from meanwhile
    for i, this in enumerate(rounds):
        if i + 1 < len(rounds):
            rounds[i + 1].send()
        yield from this.batches()
        if i > 0:
            rounds[i - 1].receive_back()
        this.send_back()
    for last in rounds[-1:]:
        last.receive_back()
