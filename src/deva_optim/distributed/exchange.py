"""How tensors that are spread over ranks are brought together on one of them, and sent back.

All that travels at a time travels in one message from each rank to each other, so that a step makes
few collectives, and large ones. They do not wait: whoever sends may go on until it needs what
comes in return.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .placement import Crew, Spread

Piece = tuple[Tensor, torch.dtype]  # of a message: a tensor, and the dtype in which it travels

BUCKET: Final = 2**23
"""Numbers that a rank brings together, sends or receives at a time, unless a tensor has more."""

_ALIGNMENT: Final = 8  # bytes: every piece of a message may be read as numbers of any dtype


class Parcel(NamedTuple):
    """A tensor to be brought together on its owner, or sent out from it; `whole` is there alone.

    It travels in the dtype `wire`, or else in its own.
    """

    owner: int
    spread: Spread
    local: Tensor
    whole: Tensor | None
    wire: torch.dtype | None = None

    @property
    def load(self) -> int:
        """Numbers that the owner sends, or receives, all ranks that have a copy counted."""
        return torch.Size(self.spread.shape).numel() * self.spread.copies


class Mail:
    """What is on its way between the ranks of a crew.

    Attributes:
        outgoing, incoming: For each rank what it gets from here, and what is filled from there.
    """

    def __init__(self, crew: Crew) -> None:
        self.outgoing: list[list[Piece]] = [[] for _ in range(crew.size)]
        self.incoming: list[list[Piece]] = [[] for _ in range(crew.size)]
        self._crew = crew
        self._messages: tuple[Tensor, Tensor] | None = None  # must live as long as they travel
        self._work: dist.Work | None = None

    def send(self) -> None:
        """Send everything off; from now on what was sent may be changed."""
        device = self._crew.mesh.device_type
        given, taken = (
            [sum(map(_size, pieces)) for pieces in mail] for mail in (self.outgoing, self.incoming)
        )
        sent = torch.empty(sum(given), dtype=torch.uint8, device=device)
        received = torch.empty(sum(taken), dtype=torch.uint8, device=device)
        for place, X in _places(sent, self.outgoing):
            place.copy_(X)
        self._messages = sent, received
        self._work = dist.all_to_all_single(
            received, sent, taken, given, group=self._crew.group, async_op=True
        )

    def receive(self) -> None:
        """Wait for what comes here and put it in its place."""
        if self._work is not None and self._messages is not None:
            self._work.wait()
            for place, X in _places(self._messages[1], self.incoming):
                X.copy_(place)
            self._work = self._messages = None


def collect(crew: Crew, parcels: Iterable[Parcel]) -> Mail:
    """Send off the blocks of the owner's replica, to fill the whole of every parcel."""
    mail = Mail(crew)
    travels = False
    for owner, spread, local, whole, wire in parcels:
        sources, dtype = spread.sources(owner), wire or local.dtype
        travels |= bool(sources)
        if whole is not None:
            if whole is not local:
                whole[spread.mine].copy_(local)
            for rank in sources:
                mail.incoming[rank].append((whole[spread.blocks[rank]], dtype))
        elif spread.replicas[crew.rank] == spread.replicas[owner]:
            mail.outgoing[owner].append((local, dtype))
    if travels:
        mail.send()
    return mail


def deliver(crew: Crew, parcels: Iterable[Parcel]) -> Mail:
    """Send off the whole of every parcel, to fill the blocks of all ranks.

    The owner's own block is rounded as those that travel are: copies must stay the same.
    """
    mail = Mail(crew)
    for owner, spread, local, whole, wire in parcels:
        dtype = wire or local.dtype
        if whole is None:
            mail.incoming[owner].append((local, dtype))
            continue
        if whole is not local:
            local.copy_(whole[spread.mine].to(dtype))
        for rank in range(crew.size):
            if rank != owner:
                mail.outgoing[rank].append((whole[spread.blocks[rank]], dtype))
    if crew.size > 1:
        mail.send()
    return mail


def _places(message: Tensor, mail: list[list[Piece]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each tensor with its place in the message."""
    start = 0
    for X, dtype in (piece for pieces in mail for piece in pieces):
        place = message[start : start + X.numel() * dtype.itemsize]
        yield place.view(dtype).view(X.shape), X
        start += _size((X, dtype))


def _size(piece: Piece) -> int:
    """The bytes that a tensor takes in a message."""
    X, dtype = piece
    return -(-X.numel() * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
