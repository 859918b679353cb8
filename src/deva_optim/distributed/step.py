"""A step over several ranks.

Vectors are updated where they are, each rank its own block. The gradient and the weight of a matrix
are gathered on the rank that owns it, which takes the step of a single process and sends the weight
back. All ranks see the same norms of the gradients, and so they decide alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..core.batch import Entry, Stack, decay_, stacks
from ..core.gradients import screen_known
from ..core.matrices import Part, whole
from ..core.ownership import step_cost
from ..core.parameters import Member, members
from ..core.schedule import first_phases
from ..core.skips import SkipLog
from ..core.state import initial_state
from ..core.units import compute_dtype, fit_, narrowed, norms, scalar_dtype
from ..core.variance import LINF
from ..telemetry import Rows, looks_at_gradient, rows
from ..validation import check_gradient
from .checkpoint import State, check_origin, load_state_, own_block, saved_state
from .owners import Owners
from .pipeline import WorkItem, overlapped, rounds
from .placement import Block, RankGroup, local

Groups = list[dict[str, Any]]
Grads = Mapping[Tensor, Tensor | None]  # for each parameter this rank's block of its gradient


class Distributed:
    """The parameters of an optimizer that several ranks share.

    It answers what `deva_optim.local.Strategy` asks, and takes the arguments of `Local`. All ranks
    that share parameters must call the same methods in the same order.
    """

    def __init__(
        self, process_group: ProcessGroup | DeviceMesh | None, wire_dtype: torch.dtype | None
    ) -> None:
        self._owners = Owners(process_group)
        self._wire_dtype = wire_dtype

    @property
    def shared(self) -> Collection[Tensor]:
        """The parameters that several ranks share."""
        return self._owners.placements.keys()

    def add(self, params: Iterable[Tensor]) -> Distributed:
        """Find out which of these parameters are shared, and how."""
        for param in params:
            if param not in self.shared:
                self._owners.add(param)
        return self

    def batches(self, groups: Groups, state: State, log: SkipLog) -> Iterator[Stack]:
        """The batches that this rank advances; the weights it owns are sent to the other ranks."""
        params = self._parameters(groups)
        grads, sizes = self._agree(params)
        present = [m for m in params if m.param in sizes]
        self._assign(present)
        phase = first_phases(groups) if any(not state[m.param] for m in present) else {}
        items = [self._work_item(m, grads, state, phase.get(m.param, 0)) for m in present]
        seen = torch.tensor(list(sizes.values()), dtype=torch.float64)
        kept = {id(e) for e in screen_known([x.item for x in items], seen, log)}
        items = [x for x in items if id(x.item) in kept]
        for x in items:
            if x.item.rests:
                x.item.parts = tuple(_within(part, x.placement.own_block) for part in x.item.parts)
                decay_(x.item)
        items = [x for x in items if not x.item.rests]
        vectors = self._vectors([x for x in items if x.owner < 0])
        matrices = [x for x in items if x.owner >= 0]
        in_rounds = rounds(self._owners.groups, matrices, self._wire_dtype)
        yield from overlapped(in_rounds, _arrived, meanwhile=vectors)

    def squared_norms(self, groups: Groups) -> dict[Tensor, float]:
        """The squared norm of every gradient that any rank has."""
        _, sizes = self._agree(self._parameters(groups))
        return {param: size**2 for param, size in sizes.items()}

    def telemetry(self, groups: Groups, state: State) -> Rows:
        """The telemetry of every matrix that has taken a step, computed by the owners."""
        params = [m for m in self._parameters(groups) if m.is_matrix and state.get(m.param)]
        grads, sizes = self._agree(params)
        seen = []
        for m in params:
            x = self._work_item(m, grads, state)
            if isfinite(sizes.get(m.param, inf)) or not looks_at_gradient(x.item):
                seen.append(x)
        found: Rows = {}
        for some in rounds(self._owners.groups, seen):
            some.send()
            found |= rows(some.receive())
            some.release()
        for group in self._owners.groups:
            found |= group.merged(found)
        return {m.name: found[m.name] for m in params if m.name in found}

    def blocks(self, wholes: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """This rank's blocks of states that have the shapes of their parameters."""
        return {p: own_block(self._owners, p, wholes[p]) for p in self.shared if p in wholes}

    def saved_state(self, state: State) -> dict[Tensor, dict[str, Any]]:
        """The state as a checkpoint has it: in equal shares, as DTensors."""
        return saved_state(self._owners, state)

    def load_state_(self, groups: Groups, state: State) -> None:
        """Replace a loaded state by this rank's part of it; matrices get new owners."""
        loaded = {m.param: m for m in self._parameters(groups) if state.get(m.param)}
        check_origin(self._owners, loaded, state)
        self._owners.clear()
        self._assign(loaded.values())
        load_state_(self._owners, loaded, state)

    def _parameters(self, groups: Groups) -> list[Member]:
        return members(groups, self.shared.__contains__)

    def _assign(self, params: Iterable[Member]) -> None:
        """Choose an owner for every matrix that has none."""
        new = [m for m in params if m.is_matrix and m.param not in self._owners.owner_of]
        self._owners.assign({m.param: step_cost(m.parts, m.method, m.group) for m in new})

    def _agree(self, params: list[Member]) -> tuple[Grads, dict[Tensor, float]]:
        """This rank's blocks of the gradients, and the norm of every gradient that any rank has."""
        placements = self._owners.placements
        grads = {m.param: _local_gradient(m) for m in params}
        sums: dict[Tensor, list[float]] = {}
        for group in self._owners.groups:
            some = [m.param for m in params if placements[m.param].group is group]
            sums.update(zip(some, _sums(group, some, grads), strict=True))
        sizes = {}
        for m in params:
            (count, square), placement = sums[m.param], placements[m.param]
            # A block without gradient counts as zero; but copies of a weight must stay the same.
            if 0 < count < placement.group.size and placement.copies > 1:
                raise RuntimeError(
                    f"{m.name} has a gradient on {round(count)} of the {placement.group.size} "
                    "ranks that hold it; reduce gradients over all of them before the step"
                )
            if count > 0:
                sizes[m.param] = (square / placement.copies) ** 0.5
        return grads, sizes

    def _work_item(self, m: Member, grads: Grads, state: State, phase: int = 0) -> WorkItem[Entry]:
        """What a step works on: this rank's blocks of gradient and weight, and their state."""
        X, placement, values = local(m.param), self._owners.placements[m.param], state[m.param]
        owner, grad = self._owners.owner_of.get(m.param, -1), grads[m.param]
        if grad is None:
            grad = torch.zeros_like(X, dtype=getattr(m.param, "grad_dtype", None))
        parts = m.parts if m.is_matrix else (whole(tuple(X.shape)),)
        if not values:
            like = X
            if m.is_matrix:  # the owner keeps the state of the whole, others its names and shapes
                like = X.new_empty(()).expand(m.param.shape)
                like = like if owner == placement.group.rank else like.to("meta")
            values.update(initial_state(like, m.group, m.method, parts, phase))
            values["step"] = X.new_zeros((), dtype=torch.float32)  # all ranks count steps
        entry = Entry(X, grad, values, m.group, m.method, parts, m.name)
        if m.method.basis is not None:
            entry.clock, entry.waiting = int(values["clock"]), int(values["waiting"])
        # An average of iterates is made of exact weights; weight decay can do with less.
        return WorkItem(entry, placement, owner, grad, X, exact=m.method.after is not None)

    def _vectors(self, items: list[WorkItem[Entry]]) -> Iterator[Stack]:
        """The batches of vectors. ε of DeVA-ℓ∞ is relative to the mean of V over all ranks."""
        for x in items:
            fit_(x.item)
        apart = [x for x in items if x.item.method.adaptation is LINF and x.placement.sharded]
        means = self._means(apart)
        yield from stacks(x.item for x in items if x.param not in means)
        for stack in stacks(x.item for x in apart):
            stack.mean = torch.stack([means[e.param] for e in stack.entries]).to(stack.dtype)
            yield stack

    def _means(self, items: list[WorkItem[Entry]]) -> dict[Tensor, Tensor]:
        """For this rank's block of each weight the mean that V will have after this step."""
        found = {
            e.param: total
            for stack in stacks(x.item for x in items)
            for e, total in zip(stack.entries, _next_sums(stack), strict=True)
        }
        for group in self._owners.groups:
            some = [x for x in items if x.placement.group is group]
            if some:
                dtype = scalar_dtype(some[0].param.device)
                totals = torch.stack([found[x.param].to(dtype) for x in some])
                group.sum_(totals)
                for x, total in zip(some, totals, strict=True):
                    found[x.param] = total / x.placement.load
        return found


def _within(part: Part, block: Block) -> Part:
    """What a block of a parameter has of one of its parts."""
    if part.length < 0:  # all of the parameter
        return part
    here = block[part.dim]
    start = min(max(part.start, here.start), here.stop)
    stop = max(min(part.start + part.length, here.stop), start)
    return part._replace(start=start - here.start, length=stop - start)


def _arrived(entries: list[Entry]) -> Iterator[Stack]:
    """The batches of matrices that have arrived on their owner."""
    for e in entries:
        fit_(e)
    return stacks(entries)


def _local_gradient(m: Member) -> Tensor | None:
    """This rank's block of a gradient, which is first placed as its parameter if it was not."""
    param, grad = m.param, m.param.grad
    if grad is None:
        return None
    check_gradient(grad, m.name)
    if isinstance(grad, DTensor) and isinstance(param, DTensor):
        if grad.placements != param.placements:
            param.grad = grad = grad.redistribute(param.device_mesh, param.placements)
        grad = grad.to_local()
    return narrowed(grad, param)


def _sums(group: RankGroup, params: list[Tensor], grads: Grads) -> list[list[float]]:
    """For each parameter how many ranks have a gradient, and the sum of its squares over them."""
    if not params:
        return []
    device = local(params[0]).device
    table = torch.zeros(len(params), 2, dtype=scalar_dtype(device), device=device)
    for dtype in (torch.float32, torch.float64):
        alike = ((i, grads[p]) for i, p in enumerate(params) if compute_dtype(p) == dtype)
        found = {i: grad for i, grad in alike if grad is not None}
        if found:
            squares = norms(list(found.values()), dtype).square()
            table[list(found)] = torch.stack([torch.ones_like(squares), squares], 1).to(table.dtype)
    group.sum_(table)
    sums: list[list[float]] = table.tolist()
    return sums


def _next_sums(stack: Stack) -> Tensor:
    """The sum that V of DeVA-ℓ∞ will have after this step, for each entry of the batch."""
    beta1, beta2, _ = stack.betas
    M = stack.read("exp_avg").lerp(stack.G, 1 - beta1).flatten(1)
    V = stack.read("exp_avg_sq").flatten(1)
    return beta2 * V.sum(1) + (1 - beta2) * M.square().sum(1)
