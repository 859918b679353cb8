"""A step over several ranks: what is elementwise stays where it is, every matrix goes to its owner.

Vectors are updated on the blocks that a rank has. The gradient and the weight of a matrix are
brought together on the rank that owns it, which takes the step of a single process and sends the
weight back. All ranks see the same squared norms of the gradients, and so decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .adaptations import LINF
from .layout import whole
from .ownership import Member
from .roster import Roster, local
from .screen import screen_known, squared_norms
from .sharded_state import block, spread_state, take_
from .skips import SkipLog
from .spread import BUCKET, Crew, Parcel, Spread, collect_, deliver_
from .stack import Entry, Stack, compute_dtype, scalar_dtype, stacks
from .state import initial_state
from .validation import check_gradient

Grads = Mapping[Tensor, Tensor | None]  # of each parameter the block of this rank
State = Mapping[Tensor, dict[str, Any]]


@dataclass(slots=True)
class Job:
    """A member that takes part in this step, with its entry on this rank."""

    member: Member
    entry: Entry
    spread: Spread
    grad: Tensor  # this rank's block of it


class Fleet(Roster):
    """The parameters that several ranks share: their steps and their checkpoints."""

    def stacks(
        self,
        members: list[Member],
        state: State,
        phases: Callable[[], dict[Tensor, int]],
        log: SkipLog,
    ) -> Iterator[Stack]:
        """The stacks that this rank advances; the weights it owns are sent to the others."""
        grads = {m.param: _local_grad(m) for m in members}
        present, squares = self._agree(members, grads)
        self.assign(present)
        phase = phases() if any(not state[m.param] for m in present) else {}
        jobs = [
            self._job(m, grads[m.param], state[m.param], phase.get(m.param, 0)) for m in present
        ]
        kept = {id(e) for e in screen_known([job.entry for job in jobs], squares, log)}
        jobs = [job for job in jobs if id(job.entry) in kept]
        yield from self._vectors([job for job in jobs if not job.member.is_matrix])
        for crew in self._crews.values():
            matrices = [j for j in jobs if j.member.is_matrix and j.spread.crew is crew]
            for some in self._rounds(matrices):
                yield from self._matrices(crew, some)

    def squared_norms(self, members: list[Member]) -> dict[Tensor, float]:
        """The squared norm of every gradient that any rank has."""
        present, squares = self._agree(members, {m.param: _local_grad(m) for m in members})
        copies = [self._spreads[m.param].copies for m in present]
        pairs = zip(present, squares.tolist(), copies, strict=True)
        return {m.param: square / count for m, square, count in pairs}

    def spread_state(self, members: list[Member], state: State) -> dict[Tensor, dict[str, Any]]:
        """The state of the members as a checkpoint has it."""
        return spread_state(self, members, state)

    def take_(self, members: list[Member], state: State) -> None:
        """Give every rank its part of a state that was loaded."""
        take_(self, members, state)

    def block(self, m: Member, x: Tensor) -> Tensor:
        """This rank's block of a state of the parameter's shape, which all ranks must ask for."""
        return block(self, m, x)

    def _agree(self, members: list[Member], grads: Grads) -> tuple[list[Member], Tensor]:
        """The members that have a gradient on any rank, and the squared norms, on the host."""
        count, squares = {}, {}
        for crew in self._crews.values():
            mine = [m for m in members if self._spreads[m.param].crew is crew]
            for m, (n, square) in zip(mine, _sums(crew, mine, grads), strict=True):
                count[m.param], squares[m.param] = n, square
        present = [m for m in members if count[m.param]]
        for m in present:
            self._check_count(m, round(count[m.param]))
        norms = [squares[m.param] for m in present]
        return present, torch.tensor(norms, dtype=torch.float64)

    def _check_count(self, m: Member, count: int) -> None:
        """A block without gradient counts as zero; but copies of a weight must stay the same."""
        spread = self._spreads[m.param]
        if count < spread.crew.size and spread.copies > 1:
            raise RuntimeError(
                f"{m.name} has a gradient on {count} of the {spread.crew.size} ranks that hold "
                "it; reduce gradients over all of them before the step"
            )

    def _job(self, m: Member, grad: Tensor | None, state: dict[str, Any], phase: int) -> Job:
        spread, X = self._spreads[m.param], local(m.param)
        if grad is None:
            grad = torch.zeros_like(X, dtype=getattr(m.param, "grad_dtype", None))
        if not m.is_matrix:
            parts = (whole(tuple(X.shape)),)
            if not state:
                state.update(initial_state(X, m.group, m.method, parts))
            return Job(m, Entry(X, grad, state, m.group, m.method, parts, m.name), spread, grad)
        if not state:
            state.update(self._matrix_state(m, X, phase))
        entry = Entry(X, grad, state, m.group, m.method, m.parts, m.name)
        if m.method.basis is not None:
            entry.clock, entry.waiting = int(state["clock"]), int(state["waiting"])
        return Job(m, entry, spread, grad)

    def _matrix_state(self, m: Member, X: Tensor, phase: int) -> dict[str, Tensor]:
        """The state of a matrix; other ranks than its owner know the names and shapes of it."""
        like = X.new_empty(()).expand(m.param.shape)
        state = initial_state(
            like if self.owns(m.param) else like.to("meta"), m.group, m.method, m.parts, phase
        )
        return {**state, "step": X.new_zeros((), dtype=torch.float32)}

    def _vectors(self, jobs: list[Job]) -> Iterator[Stack]:
        """The elementwise ones; an ε relative to a mean is told the mean over ranks."""
        apart = [j for j in jobs if j.entry.method.adaptation is LINF and j.spread.cut]
        means = self._means(apart)
        told = {id(j.entry) for j in apart}
        yield from stacks(j.entry for j in jobs if id(j.entry) not in told)
        for stack in stacks(j.entry for j in apart):
            stack.mean = torch.stack([means[id(e)] for e in stack.entries]).to(stack.dtype)
            yield stack

    def _means(self, jobs: list[Job]) -> dict[int, Tensor]:
        """The mean that V is about to have, over all ranks, by entry."""
        sums = {
            id(e): total
            for stack in stacks(j.entry for j in jobs)
            for e, total in zip(stack.entries, _next_sums(stack), strict=True)
        }
        for crew in self._crews.values():
            mine = [j for j in jobs if j.spread.crew is crew]
            if mine:
                device = mine[0].entry.param.device
                total = torch.stack([sums[id(j.entry)].to(scalar_dtype(device)) for j in mine])
                crew.sum_(total)
                for j, x in zip(mine, total, strict=True):
                    sums[id(j.entry)] = x / (j.spread.copies * j.member.param.numel())
        return sums

    def _rounds(self, jobs: list[Job]) -> Iterator[list[Job]]:
        """The matrices in rounds, in each of which no owner has more than a bucket."""
        queues: dict[int, list[Job]] = {}
        for job in jobs:
            queues.setdefault(self._owners[job.member.param], []).append(job)
        while any(queues.values()):
            yield [job for queue in queues.values() for job in _bucket(queue)]

    def _matrices(self, crew: Crew, jobs: list[Job]) -> Iterator[Stack]:
        """The stacks of the matrices that this rank owns, brought together and sent back."""
        own = [job for job in jobs if self.owns(job.member.param)]
        weights = [(job, job.entry.param) for job in jobs]
        for e, shape in ((job.entry, job.member.param.shape) for job in own if job.spread.cut):
            e.grad, e.param = e.grad.new_empty(shape), e.param.new_empty(shape)
        gradients = [self._parcel(job, job.grad, job.entry.grad) for job in jobs]
        parcels = [self._parcel(job, X, job.entry.param) for job, X in weights]
        collect_(crew, [*gradients, *parcels])
        yield from stacks(job.entry for job in own)
        deliver_(crew, parcels)
        for job, X in weights:  # the next round needs the memory
            job.entry.param, job.entry.grad = X, job.grad

    def _parcel(self, job: Job, block: Tensor, whole: Tensor) -> Parcel:
        param = job.member.param
        return Parcel(self._owners[param], job.spread, block, whole if self.owns(param) else None)


def _local_grad(m: Member) -> Tensor | None:
    """This rank's block of a gradient, which is laid out as the parameter is if it was not."""
    param, grad = m.param, m.param.grad
    if grad is None:
        return None
    check_gradient(grad, m.name)
    if isinstance(grad, DTensor) and isinstance(param, DTensor):
        if grad.placements != param.placements:
            param.grad = grad = grad.redistribute(param.device_mesh, param.placements)
        return grad.to_local()
    return grad


def _sums(crew: Crew, members: list[Member], grads: Grads) -> list[tuple[float, float]]:
    """For each member how many ranks have a gradient, and its squared norm over all of them."""
    if not members:
        return []
    device = local(members[0].param).device
    table = torch.zeros(len(members), 2, dtype=scalar_dtype(device), device=device)
    wide = torch.tensor([compute_dtype(m.param) == torch.float64 for m in members])
    for dtype in (torch.float32, torch.float64):
        found = {
            i: grad
            for i, m in enumerate(members)
            if compute_dtype(m.param) == dtype and (grad := grads[m.param]) is not None
        }
        if found:
            squares = squared_norms(list(found.values()), dtype)
            table[list(found)] = torch.stack([torch.ones_like(squares), squares], 1).to(table.dtype)
    crew.sum_(table)
    counts, squares = table.cpu().unbind(1)
    # What overflows in the precision of the computation is not finite.
    squares = torch.where(wide, squares, squares.float())
    return list(zip(counts.tolist(), squares.tolist(), strict=True))


def _next_sums(stack: Stack) -> Tensor:
    """The sum of the V that DeVA-ℓ∞ is about to have, for each member of the stack."""
    beta1, beta2, _ = stack.betas
    M = stack.read("exp_avg").lerp(stack.G, 1 - beta1).flatten(1)
    V = stack.read("exp_avg_sq").flatten(1)
    return beta2 * V.sum(1) + (1 - beta2) * M.square().sum(1)


def _bucket(queue: list[Job]) -> list[Job]:
    """Take from the queue as many as fit into a bucket, and at least one."""
    some = [queue.pop(0)] if queue else []
    size = sum(job.member.param.numel() for job in some)
    while queue and size + queue[0].member.param.numel() <= BUCKET:
        some.append(queue.pop(0))
        size += some[-1].member.param.numel()
    return some
