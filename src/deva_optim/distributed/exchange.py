"""Messages between ranks: blocks of tensors go to the owners of the tensors, or come from them.

All that is exchanged at a time is one message from each rank to each other rank, so that a step
makes few collectives, and large ones. Sending does not wait: the caller may do something else
before it receives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .placement import Placement, RankGroup

T = TypeVar("T")
Piece = tuple[Tensor, torch.dtype]  # of a message: a tensor, and the dtype in which it is sent

BUCKET: Final = 2**23
"""How many numbers a rank gathers, sends or receives at a time, unless one tensor has more."""

_ALIGNMENT: Final = 8  # bytes: every piece of a message may be read as numbers of any dtype


class Transfer(NamedTuple):
    """A tensor that is gathered on its owner, or scattered from it."""

    owner: int  # the rank that has the whole tensor
    placement: Placement
    block: Tensor  # this rank's
    whole: Tensor  # used by the owner alone
    wire_dtype: torch.dtype | None = None  # the dtype in a message; None is that of the tensor


class Exchange:
    """Messages between the ranks of a group."""

    def __init__(self, group: RankGroup) -> None:
        # For each rank the tensors that are sent to it, and those that its message fills.
        self.outgoing: list[list[Piece]] = [[] for _ in range(group.size)]
        self.incoming: list[list[Piece]] = [[] for _ in range(group.size)]
        self._group = group
        self._messages: tuple[Tensor, Tensor] | None = None  # must live until they have arrived
        self._work: dist.Work | None = None

    def send(self) -> None:
        """Start to send. The outgoing tensors have been copied then, and may be changed."""
        sides = (self.outgoing, self.incoming)
        given, taken = ([sum(_size(*x) for x in pieces) for pieces in side] for side in sides)
        sent, received = (
            torch.empty(sum(sizes), dtype=torch.uint8, device=self._group.mesh.device_type)
            for sizes in (given, taken)
        )
        for place, X in _places(sent, self.outgoing):
            place.copy_(X)
        self.outgoing.clear()  # so that what was sent may be freed
        self._messages = sent, received
        self._work = dist.all_to_all_single(
            received, sent, taken, given, group=self._group.group, async_op=True
        )

    def receive(self) -> None:
        """Wait for the messages to this rank, if any, and fill the incoming tensors."""
        if self._work is not None and self._messages is not None:
            self._work.wait()
            for place, X in _places(self._messages[1], self.incoming):
                X.copy_(place)
            self.incoming.clear()
            self._work = self._messages = None


def gather(group: RankGroup, transfers: Iterable[Transfer]) -> Exchange:
    """Start to fill the whole of each transfer with the blocks of its owner's replica."""
    exchange = Exchange(group)
    needed = False
    for owner, placement, block, whole, wire_dtype in transfers:
        dtype, replicas = wire_dtype or block.dtype, placement.replicas
        pieces = placement.pieces
        needed |= placement.copies < group.size
        if owner == group.rank:
            if whole is not block:
                for there, here in pieces[owner]:
                    whole[there].copy_(block[here])
            for rank, replica in enumerate(replicas):
                if replica == replicas[owner] and rank != owner:
                    exchange.incoming[rank] += [(whole[there], dtype) for there, _ in pieces[rank]]
        elif replicas[group.rank] == replicas[owner]:
            exchange.outgoing[owner] += [(block[here], dtype) for _, here in pieces[group.rank]]
    if needed:
        exchange.send()
    return exchange


def scatter(group: RankGroup, transfers: Iterable[Transfer]) -> Exchange:
    """Start to fill the blocks of all ranks with the whole of each transfer.

    The owner's own block is rounded as those that are sent are: copies must stay the same.
    """
    exchange = Exchange(group)
    for owner, placement, block, whole, wire_dtype in transfers:
        dtype, pieces = wire_dtype or block.dtype, placement.pieces
        if owner != group.rank:
            exchange.incoming[owner] += [(block[here], dtype) for _, here in pieces[group.rank]]
            continue
        if whole is not block:
            for there, here in pieces[owner]:
                block[here].copy_(whole[there].to(dtype))
        for rank in range(group.size):
            if rank != owner:
                exchange.outgoing[rank] += [(whole[there], dtype) for there, _ in pieces[rank]]
    if group.size > 1:
        exchange.send()
    return exchange


def buckets(items: Iterable[T], limit: int) -> Iterator[list[T]]:
    """Items that have a placement, in lists of at most `limit` numbers unless one item has more."""
    load = attrgetter("placement.load")
    some: list[T] = []
    total = 0
    for item in items:
        if some and total + load(item) > limit:
            yield some
            some, total = [], 0
        some.append(item)
        total += load(item)
    if some:
        yield some


def _places(message: Tensor, side: list[list[Piece]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each tensor with its place in the message."""
    start = 0
    for X, dtype in (piece for pieces in side for piece in pieces):
        place = message[start : start + X.numel() * dtype.itemsize]
        yield place.view(dtype).view(X.shape), X
        start += _size(X, dtype)


def _size(X: Tensor, dtype: torch.dtype) -> int:
    """The bytes that a tensor takes in a message."""
    return -(-X.numel() * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
