"""A step over several ranks.

Vectors are updated where they are, each rank its own block. The gradient and the weight of a matrix
are gathered on the rank that owns it, which takes the step of a single process and sends the weight
back. All ranks see the same norms of the gradients, and so they decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..core.balance import first_phases, step_cost
from ..core.batch import Batch, batches, item
from ..core.gradients import SkipLog, check_gradient, choose_units_, not_finite, screen
from ..core.linalg import norms, scalar_dtype
from ..core.matrices import Part, whole
from ..core.parameters import Reading
from ..core.step import decay_
from ..local import Local, State, local_tensor
from ..options import Ranks
from .checkpoint import check_origin, load_state_, own_block, saved_state
from .pipeline import WorkItem, overlapped, rounds
from .placement import Owners, RankGroup, Runs

T = TypeVar("T")
Grads = Mapping[Tensor, Tensor | None]  # for each parameter this rank's block of its gradient


class Distributed(Local):
    """The parameters of an optimizer that several ranks share.

    All ranks that share parameters must call the same methods in the same order.
    """

    def __init__(self, process_group: Ranks, wire_dtype: torch.dtype | None) -> None:
        super().__init__(process_group, wire_dtype)
        self._owners = Owners(process_group)
        self.shared = self._owners.placements.keys()

    def add(self, params: Iterable[Tensor]) -> None:
        """Find out which of these parameters are shared, and how."""
        for param in params:
            if param not in self.shared:
                self._owners.add(param)

    def batches(self, readings: list[Reading], state: State, skips: SkipLog) -> Iterator[Batch]:
        """The batches that this rank advances; the weights it owns are sent to the other ranks."""
        sizes, grads = self._agree(self._shared(readings))
        present = [r for r in readings if r.param in sizes]
        for r in present:
            if r.group["nonfinite"] == "raise" and not math.isfinite(sizes[r.param]):
                raise not_finite(r.name)
        self._assign(present)
        phase = first_phases(readings) if any(not state[r.param] for r in present) else {}
        items = [self._work_item(r, grads, state, phase.get(r.param, 0)) for r in present]
        seen = torch.tensor(list(sizes.values()), dtype=torch.float64, device="cpu")
        return self._batches(items, seen, skips)

    def _batches(self, items: list[WorkItem], seen: Tensor, skips: SkipLog) -> Iterator[Batch]:
        updated, resting = screen([x.item for x in items], skips, known=seen)
        work = {id(x.item): x for x in items}
        for e in resting:
            placement = work[id(e)].placement
            e.parts = tuple(_within(part, placement.own_runs) for part in e.parts)
            e.offset = placement.offset
            decay_(e)
        items = [work[id(e)] for e in updated]
        vectors = self._vectors([x for x in items if x.owner < 0])
        matrices = [x for x in items if x.owner >= 0]
        travelling = rounds(self._owners.groups, matrices, self.wire_dtype)
        yield from overlapped(travelling, meanwhile=vectors)

    def squared_norms(self, readings: list[Reading]) -> dict[Tensor, float]:
        """The squared norm of every gradient that any rank has."""
        sizes, _ = self._agree(self._shared(readings))
        return {param: size**2 for param, size in sizes.items()}

    def merged(self, rows: dict[str, T]) -> dict[str, T]:
        """The rows of all ranks, by the name of the parameter."""
        for group in self._owners.groups:
            rows = {**rows, **group.merged(rows)}
        return rows

    def blocks(self, wholes: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """This rank's blocks of states that have the shapes of their parameters."""
        return {p: own_block(self._owners, p, wholes[p]) for p in self.shared if p in wholes}

    def saved_state(self, state: State) -> dict[Tensor, dict[str, Any]]:
        """The state as a checkpoint has it: in equal shares, as DTensors."""
        return saved_state(self._owners, state)

    def load_state_(self, readings: list[Reading], state: State) -> None:
        """Replace a loaded state by this rank's part of it; matrices get new owners."""
        loaded = {r.param: r for r in self._shared(readings) if state.get(r.param)}
        check_origin(self._owners, loaded, state)
        self._owners.clear()
        self._assign(loaded.values())
        load_state_(self._owners, loaded, state)

    def _shared(self, readings: list[Reading]) -> list[Reading]:
        return [r for r in readings if r.param in self.shared]

    def _assign(self, params: Iterable[Reading]) -> None:
        """Choose an owner for every matrix that has none."""
        new = [r for r in params if r.is_matrix and r.param not in self._owners.owner_of]
        self._owners.assign({r.param: step_cost(r.parts, r.method, r.group) for r in new})

    def _agree(self, params: list[Reading]) -> tuple[dict[Tensor, float], Grads]:
        """The norm of every gradient that any rank has, over all ranks, and this rank's blocks."""
        grads = {r.param: _local_gradient(r) for r in params}
        counts: dict[Tensor, int] = {}
        sizes: dict[Tensor, float] = {}
        for group in self._owners.groups:
            some = [r for r in params if self._owners.placements[r.param].group is group]
            for r, (count, square) in zip(some, _sums(group, some, grads), strict=True):
                counts[r.param] = round(count)
                sizes[r.param] = (square / self._owners.placements[r.param].copies) ** 0.5
        for r in params:
            count, placement = counts[r.param], self._owners.placements[r.param]
            # A block without gradient counts as zero; but copies of a weight must stay the same.
            if 0 < count < placement.group.size and placement.copies > 1:
                raise RuntimeError(
                    f"{r.name} has a gradient on {count} of the {placement.group.size} ranks that "
                    "hold it; reduce gradients over all of them before the step"
                )
        return {r.param: sizes[r.param] for r in params if counts[r.param]}, grads

    def _work_item(self, r: Reading, grads: Grads, state: State, phase: int) -> WorkItem:
        """What a step works on: this rank's blocks of gradient and weight, and their state."""
        placement, owner = self._owners.placements[r.param], self._owners.owner_of.get(r.param, -1)
        X, grad, values, parts = local_tensor(r.param), grads[r.param], state[r.param], r.parts
        like = X
        if grad is None:
            grad = torch.zeros_like(X, dtype=getattr(r.param, "grad_dtype", None))
        if r.is_matrix:  # the owner keeps the state of the whole, others the shapes of it
            like = X.new_empty(()).expand(r.param.shape)
            like = like if owner == placement.group.rank else like.to("meta")
        else:
            # The numbers that share a scale of codes must not be cut between ranks.
            coded = r.group["state_dtype"] == "int8"
            if coded and X.ndim > 1 and X.shape[1:] != r.param.shape[1:]:
                raise ValueError(
                    f"state_dtype must not be 'int8' for {r.name}, which is updated entry by entry "
                    "and sharded along another dimension than the first; use torch.bfloat16, or "
                    "shard its rows"
                )
            parts = (whole(tuple(X.shape)),)
        fresh = not values
        found = item(r, X, grad, values, parts, phase, like)
        found.offset = 0 if r.is_matrix else placement.offset
        if fresh:
            values["step"] = X.new_zeros((), dtype=torch.float32)  # all ranks count steps
        # An average of weights is made of exact ones; weight decay can do with less.
        exact = r.group["ema_rate"] is not None
        return WorkItem(found, placement, owner, found.grad, X, exact=exact)

    def _vectors(self, items: list[WorkItem]) -> Iterator[Batch]:
        """The batches of vectors; an ε that is relative to a mean is told that over all ranks."""
        apart = []
        for x in items:
            choose_units_(x.item)
            adaptation = x.item.reading.method.adaptation
            if adaptation is not None and adaptation.whole_mean and x.placement.sharded:
                apart.append(x)
        means = self._means(apart)
        yield from batches(x.item for x in items if x.param not in means)
        for b in batches(x.item for x in apart):
            b.mean = torch.stack([means[e.param] for e in b.items]).to(b.dtype)
            yield b

    def _means(self, items: list[WorkItem]) -> dict[Tensor, Tensor]:
        """For this rank's block of each weight the mean that V will have after this step."""
        found = {
            e.param: total
            for b in batches(x.item for x in items)
            for e, total in zip(b.items, _next_sums(b), strict=True)
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


def _within(part: Part, own: list[Runs]) -> Part:
    """What a block of a parameter has of one of its parts."""
    if part.length < 0:  # all of the parameter
        return part
    start, stop = (
        sum(min(max(end - a, 0), b - a) for a, b in own[part.dim])  # how much is before the end
        for end in (part.start, part.start + part.length)
    )
    return part._replace(start=start, length=stop - start)


def _local_gradient(r: Reading) -> Tensor | None:
    """This rank's block of a gradient, which is first placed as its parameter if it was not."""
    param, grad = r.param, r.param.grad
    if grad is None:
        return None
    check_gradient(grad, r.name)
    if isinstance(grad, DTensor) and isinstance(param, DTensor):
        if grad.placements != param.placements:
            param.grad = grad = grad.redistribute(param.device_mesh, param.placements)
        grad = grad.to_local()
    return grad.to(r.dtype) if grad.dtype == torch.float64 else grad


def _sums(group: RankGroup, params: list[Reading], grads: Grads) -> list[list[float]]:
    """For each parameter how many ranks have a gradient, and the sum of its squares over them."""
    if not params:
        return []
    device = local_tensor(params[0].param).device
    table = torch.zeros(len(params), 2, dtype=scalar_dtype(device), device=device)
    for dtype in (torch.float32, torch.float64):
        found = {
            i: grad
            for i, r in enumerate(params)
            if r.dtype == dtype and (grad := grads[r.param]) is not None
        }
        if found:
            squares = norms(list(found.values()), dtype).square()
            table[list(found)] = torch.stack([torch.ones_like(squares), squares], 1).to(table.dtype)
    group.sum_(table)
    return table.tolist()


def _next_sums(b: Batch) -> Tensor:
    """The sum that V, an average of M², will have after this step, for each item of the batch."""
    beta1, beta2, _ = b.betas
    M = b.state["exp_avg"].lerp(b.G, 1 - beta1).flatten(1)
    V = b.state["exp_avg_sq"].flatten(1)
    sums: Tensor = beta2 * V.sum(1) + (1 - beta2) * M.square().sum(1)
    return sums
