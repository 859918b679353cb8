"""Rounds: matrices that travel to their owners together, are updated there, and travel back.

While the matrices of one round are updated, those of the next are on their way to their owners and
those of the one before on their way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from ..core.batch import Entry, Stack, stacks
from ..core.parameters import Member
from ..core.units import fit_
from .exchange import BUCKET, Mail, Parcel, collect, deliver
from .owners import Roster
from .placement import Crew, Spread


@dataclass(slots=True)
class Job:
    """A member that takes part in this step, with its entry on this rank.

    Attributes:
        owner: The rank that takes the step of a matrix; −1 for a vector, which all ranks do.
        grad, param: This rank's blocks; the entry of an owner has the whole for a while.
    """

    member: Member
    entry: Entry
    spread: Spread
    owner: int
    grad: Tensor
    param: Tensor

    @property
    def load(self) -> int:
        """Numbers that its owner has to send back, in all."""
        return self.member.param.numel() * self.spread.copies


class Round:
    """Some matrices of a crew on their way to their owners and back.

    With a `wire` dtype float32 numbers travel in it. Weights do not come back then: their changes
    do, which all ranks add to what they have, so that nothing is lost of the weights themselves.
    """

    def __init__(self, crew: Crew, jobs: list[Job], wire: torch.dtype | None) -> None:
        self._crew, self._jobs, self._wire = crew, jobs, wire
        self._own = [job for job in jobs if job.owner == crew.rank]
        self._mail = Mail(crew)
        self._before: dict[int, Tensor] = {}  # own weights whose change is sent, by entry
        self._changes: list[tuple[Tensor, Tensor]] = []  # of a weight, and where it comes in

    def send(self) -> None:
        """Send gradients and weights off to their owners."""
        for job in self._own:
            e, shape = job.entry, job.member.param.shape
            if job.spread.cut:
                e.grad = e.grad.new_empty(shape)
            if job.spread.cut or self._changes_travel(job):
                e.param = e.param.new_empty(shape)
        parcels = [self._parcel(j, j.grad, j.entry.grad, self._wire_of(j.grad)) for j in self._jobs]
        for job in self._jobs:
            # An average of iterates is made of the weights themselves; decay can do with less.
            wire = None if job.member.method.after else self._wire_of(job.param)
            parcels.append(self._parcel(job, job.param, job.entry.param, wire))
        self._mail = collect(self._crew, parcels)

    def receive(self) -> list[Entry]:
        """The entries of this rank's own matrices, when they are here."""
        self._mail.receive()
        return [job.entry for job in self._own]

    def stacks(self) -> Iterator[Stack]:
        """The stacks of this rank's own matrices, when they are here."""
        entries = self.receive()
        for e in entries:
            fit_(e)
        for job in self._own:
            if self._changes_travel(job):
                e = job.entry
                self._before[id(e)] = e.param.clone() if job.spread.cut else job.param
        return stacks(entries)

    def send_back(self) -> None:
        """Send what has become of the weights off to everyone."""
        self._mail = deliver(self._crew, [self._returned(job) for job in self._jobs])
        self.let_go()

    def receive_back(self) -> None:
        """Put what the other ranks have updated in its place."""
        self._mail.receive()
        for X, change in self._changes:
            X.add_(change)
        self._changes.clear()

    def let_go(self) -> None:
        """Drop the wholes: the next rounds need the memory."""
        self._before.clear()
        for job in self._own:
            job.entry.grad, job.entry.param = job.grad, job.param

    def _returned(self, job: Job) -> Parcel:
        X = job.param
        if not self._changes_travel(job):
            return self._parcel(job, X, job.entry.param, None)
        change, whole = torch.empty_like(X), X
        if job.owner == self._crew.rank:
            whole = job.entry.param - self._before.pop(id(job.entry))
        self._changes.append((X, change))
        return self._parcel(job, change, whole, self._wire)

    def _parcel(self, job: Job, block: Tensor, whole: Tensor, wire: torch.dtype | None) -> Parcel:
        mine = job.owner == self._crew.rank
        return Parcel(job.owner, job.spread, block, whole if mine else None, wire)

    def _changes_travel(self, job: Job) -> bool:
        return self._crew.size > 1 and self._wire_of(job.param) is not None

    def _wire_of(self, X: Tensor) -> torch.dtype | None:
        """float32 alone: what is narrower has nothing to lose, and float64 may be out of range."""
        return self._wire if X.dtype == torch.float32 else None


def rounds(roster: Roster, jobs: list[Job], wire: torch.dtype | None = None) -> list[Round]:
    """The matrices in rounds, in each of which no owner has more than half a bucket to send back.

    Two rounds are held at a time, so together they are one bucket.
    """
    found = []
    for crew in roster.crews:
        queues: dict[int, list[Job]] = {}
        for job in jobs:
            if job.spread.crew is crew:
                queues.setdefault(job.owner, []).append(job)
        while any(queues.values()):
            some = [job for queue in queues.values() for job in _half_bucket(queue)]
            found.append(Round(crew, some, wire))
    return found


def overlapped(rounds: list[Round], meanwhile: Iterable[Stack]) -> Iterator[Stack]:
    """All stacks of this rank's matrices, and others that are advanced while the first travel.

    A round is sent off before the one before it is updated, and nobody waits for what is sent back
    until the next round is updated. Two rounds are held at a time.
    """
    for first in rounds[:1]:
        first.send()
    yield from meanwhile
    before: Round | None = None
    for this, following in zip_longest(rounds, rounds[1:]):
        if following is not None:
            following.send()
        yield from this.stacks()
        if before is not None:
            before.receive_back()
        this.send_back()
        before = this
    if before is not None:
        before.receive_back()


def _half_bucket(queue: list[Job]) -> list[Job]:
    """Take from the queue as many as fit into half a bucket, and at least one."""
    some = [queue.pop(0)] if queue else []
    size = sum(job.load for job in some)
    while queue and size + queue[0].load <= BUCKET // 2:
        some.append(queue.pop(0))
        size += some[-1].load
    return some
