"""A step over several ranks: what is elementwise stays where it is, every matrix goes to its owner.

Vectors are updated on the blocks that a rank has. The gradient and the weight of a matrix are
brought together on the rank that owns it, which takes the step of a single process and sends the
weight back. All ranks see the same squared norms of the gradients, and so decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..core.batch import Entry, Stack, decay_, stacks
from ..core.gradients import screen_known
from ..core.matrices import whole
from ..core.parameters import Member
from ..core.skips import SkipLog
from ..core.state import initial_state
from ..core.units import compute_dtype, fit_, narrowed, norms, scalar_dtype
from ..core.variance import LINF
from ..options import check_gradient
from ..telemetry import Rows, looks_at_gradient, rows
from .checkpoint import block, spread_state, take_
from .owners import Roster, local
from .pipeline import Job, overlapped, rounds
from .placement import Crew

Grads = Mapping[Tensor, Tensor | None]  # of each parameter the block of this rank
State = Mapping[Tensor, dict[str, Any]]


class Fleet(Roster):
    """The parameters that several ranks share: their steps and their checkpoints.

    Args:
        ranks: Who shares the parameters that are not DTensors; None if nobody does.
        wire_dtype: dtype of float32 numbers on their way; None leaves them as they are.
    """

    def __init__(
        self, ranks: ProcessGroup | DeviceMesh | None, wire_dtype: torch.dtype | None
    ) -> None:
        super().__init__(ranks)
        self._wire_dtype = wire_dtype

    def stacks(
        self,
        members: list[Member],
        state: State,
        phases: Callable[[], dict[Tensor, int]],
        log: SkipLog,
    ) -> Iterator[Stack]:
        """The stacks that this rank advances; the weights it owns are sent to the others."""
        grads = {m.param: _local_grad(m) for m in members}
        present, sizes = self._agree(members, grads)
        self.assign(present)
        phase = phases() if any(not state[m.param] for m in present) else {}
        jobs = [
            self._job(m, grads[m.param], state[m.param], phase.get(m.param, 0)) for m in present
        ]
        kept = {id(e) for e in screen_known([job.entry for job in jobs], sizes, log)}
        jobs = [job for job in jobs if id(job.entry) in kept]
        for job in jobs:
            if job.entry.rests:
                decay_(job.entry)
        jobs = [job for job in jobs if not job.entry.rests]
        vectors = self._vectors([job for job in jobs if not job.member.is_matrix])
        matrices = rounds(self, [job for job in jobs if job.member.is_matrix], self._wire_dtype)
        yield from overlapped(matrices, meanwhile=vectors)

    def squared_norms(self, members: list[Member]) -> dict[Tensor, float]:
        """The squared norm of every gradient that any rank has."""
        present, sizes = self._agree(members, {m.param: _local_grad(m) for m in members})
        return {m.param: size**2 for m, size in zip(present, sizes.tolist(), strict=True)}

    def telemetry(self, members: list[Member], state: State) -> Rows:
        """What can be said of every matrix that has taken a step, told by the owners to all."""
        stepped = [m for m in members if m.is_matrix and state.get(m.param)]
        grads = {m.param: _local_grad(m) for m in stepped}
        present, sizes = self._agree(stepped, grads)
        there = {m.param for m, x in zip(present, sizes.tolist(), strict=True) if isfinite(x)}
        jobs = [self._job(m, grads[m.param], state[m.param], 0) for m in stepped]
        seen = [j for j in jobs if j.member.param in there or not looks_at_gradient(j.entry)]
        found: Rows = {}
        for some in rounds(self, seen):
            some.send()
            found |= rows(some.receive())
            some.let_go()
        for crew in self.crews:
            found |= crew.union(found)
        return {m.name: found[m.name] for m in stepped if m.name in found}

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
        """The members that have a gradient on any rank, and their norms, on the host."""
        count, squares = {}, {}
        for crew in self.crews:
            mine = [m for m in members if self._spreads[m.param].crew is crew]
            for m, (n, square) in zip(mine, _sums(crew, mine, grads), strict=True):
                count[m.param], squares[m.param] = n, square
        present = [m for m in members if count[m.param]]
        for m in present:
            self._check_count(m, round(count[m.param]))
        sizes = [(squares[m.param] / self._spreads[m.param].copies) ** 0.5 for m in present]
        return present, torch.tensor(sizes, dtype=torch.float64)

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
            entry = Entry(X, grad, state, m.group, m.method, parts, m.name)
            return Job(m, entry, spread, -1, grad, X)
        if not state:
            state.update(self._matrix_state(m, X, phase))
        entry = Entry(X, grad, state, m.group, m.method, m.parts, m.name)
        if m.method.basis is not None:
            entry.clock, entry.waiting = int(state["clock"]), int(state["waiting"])
        return Job(m, entry, spread, self._owners[m.param], grad, X)

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
        for job in jobs:
            fit_(job.entry)
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
        for crew in self.crews:
            mine = [j for j in jobs if j.spread.crew is crew]
            if mine:
                device = mine[0].entry.param.device
                total = torch.stack([sums[id(j.entry)].to(scalar_dtype(device)) for j in mine])
                crew.sum_(total)
                for j, x in zip(mine, total, strict=True):
                    sums[id(j.entry)] = x / (j.spread.copies * j.member.param.numel())
        return sums


def _local_grad(m: Member) -> Tensor | None:
    """This rank's block of a gradient, which is laid out as the parameter is if it was not."""
    param, grad = m.param, m.param.grad
    if grad is None:
        return None
    check_gradient(grad, m.name)
    if isinstance(grad, DTensor) and isinstance(param, DTensor):
        if grad.placements != param.placements:
            param.grad = grad = grad.redistribute(param.device_mesh, param.placements)
        return narrowed(grad.to_local(), param)
    return narrowed(grad, param)


def _sums(crew: Crew, members: list[Member], grads: Grads) -> list[tuple[float, float]]:
    """For each member how many ranks have a gradient, and its squared norm over all of them."""
    if not members:
        return []
    device = local(members[0].param).device
    table = torch.zeros(len(members), 2, dtype=scalar_dtype(device), device=device)
    for dtype in (torch.float32, torch.float64):
        found = {
            i: grad
            for i, m in enumerate(members)
            if compute_dtype(m.param) == dtype and (grad := grads[m.param]) is not None
        }
        if found:
            squares = norms(list(found.values()), dtype).square()
            table[list(found)] = torch.stack([torch.ones_like(squares), squares], 1).to(table.dtype)
    crew.sum_(table)
    counts, squares = table.cpu().unbind(1)
    return list(zip(counts.tolist(), squares.tolist(), strict=True))


def _next_sums(stack: Stack) -> Tensor:
    """The sum of the V that DeVA-ℓ∞ is about to have, for each member of the stack."""
    beta1, beta2, _ = stack.betas
    M = stack.read("exp_avg").lerp(stack.G, 1 - beta1).flatten(1)
    V = stack.read("exp_avg_sq").flatten(1)
    return beta2 * V.sum(1) + (1 - beta2) * M.square().sum(1)
