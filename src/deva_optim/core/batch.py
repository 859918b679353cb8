"""Parameters that advance together: gathered into one tensor, updated, and written back.

State lives with each parameter as plain tensors. Inside a step, matrices of one shape are stacked,
so that a batched product serves all of them; a stack of one is a view and copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from .bases import BASES, project
from .linalg import Number, Term, add_, both, over, scaled, value
from .matrices import PARAMETER_SHAPED, Part
from .methods import Method, method_of
from .units import as_units, compute_dtype, exponents, is_scaled, scalar_dtype, suffixes

# Copying a small tensor into a stack costs less than launching its kernels one by one; a large one
# is better updated where it is. Matrix products gain from a batch up to larger sizes, on the CPU as
# long as the stack stays in the cache. In numbers of a stack, measured on a CPU:
ELEMENTWISE_LIMIT: Final = 2**16
MATRIX_LIMIT: Final = 2**17
ACCELERATOR_LIMIT: Final = 2**22


@dataclass(slots=True)
class Entry:
    """A parameter with a gradient, and what this step knows about it."""

    param: Tensor
    grad: Tensor
    state: dict[str, Any]
    group: dict[str, Any]
    method: Method
    parts: tuple[Part, ...]
    name: str
    finite: Tensor | None = None  # 0-D, bool; None if the host knows that the gradient is
    size: Tensor | float = 0.0  # the norm of its gradient; a tensor if the host does not know it
    asks: bool = False  # whether the host waits for the size: it was too large a step before
    rests: bool = False  # whether its gradient is zero and only weight decay moves it
    counted: Tensor | bool = True  # whether its count of steps was advanced
    clock: int = -1  # steps since its first basis was chosen, this one and its phase included
    waiting: int = 0  # how many of its matrices have no basis yet
    nonzero: list[Tensor | None] | None = None  # of each part, which matrices have a gradient
    begun: list[Tensor] | None = None  # of each part, which matrices had one before
    scaled: bool | None = None  # whether its units are other than 1; None: not looked at yet
    renews: bool = False  # whether what is made of its covariances must be made anew

    @property
    def is_scaled(self) -> bool:
        """Whether any of its matrices is measured in another unit than 1."""
        if self.scaled is None:
            self.scaled = any(is_scaled(x) for x in exponents(self))
        return self.scaled


class Cohort:
    """Entries of one kind, and the numbers a step needs of each, computed for all of them at once.

    Attributes:
        suffix: What the names of the state of a part end in.
        finite: Whose gradient is finite, bool; None if all are known to be.
    """

    def __init__(self, entries: list[Entry], suffix: str) -> None:
        self.entries = entries
        self.suffix = suffix
        finite = [e.finite for e in entries if e.finite is not None]
        self.finite = _gather(finite, torch.bool) if finite else None
        self._dtype = compute_dtype(entries[0].param)
        self._found: dict[tuple[Any, ...], Number] = {}

    @cached_property
    def t(self) -> Number:
        """How many steps have been taken, this one included; a plain number if all agree."""
        idle = [e.state[key] for e in self.entries if (key := "idle" + self.suffix) in e.state]
        if self.finite is None and not idle:
            counts = {int(e.state["step"]) for e in self.entries}
            if len(counts) == 1:
                return float(max(counts | {1}))
        steps = torch.stack([e.state["step"] for e in self.entries])
        if idle:
            steps = steps.view(-1, *(1,) * idle[0].ndim) - torch.stack(idle)
        return steps.to(scalar_dtype(steps.device)).clamp_min_(1)

    def counted(self, function: Callable[..., Number], *settings: Any) -> Number:
        """function(t, …), in the precision of the computation if it is a tensor."""
        key = (function, *settings)
        if key not in self._found:
            x = function(self.t, *settings)
            self._found[key] = x.to(self._dtype) if isinstance(x, Tensor) else x
        return self._found[key]

    def weight(self, beta: float) -> Number:
        """1 − β, and zero where the gradient is not finite."""
        key = ("weight", beta)
        if key not in self._found:
            finite = self.finite
            weight = 1 - beta if finite is None else finite.to(self._dtype) * (1 - beta)
            self._found[key] = weight
        return self._found[key]


class Stack:
    """Entries of one group, method and shape, as tensors with a leading dimension over them.

    Numbers that differ between parameters have shape B, those that differ between the matrices of
    a parameter B×…; `broadcast` shapes both to multiply B×…×n×m.

    Attributes:
        G: The gradients, in units and in the precision of the computation, zero where they are not
            taken in; B×…×n×m.
        unit: 2^e of each matrix, shaped to multiply the stack; 1 if that is all of them.
        finite: Whose gradient is finite, B, bool; None if all are known to be.
        nonzero: Which matrices have a gradient that is not zero, bool; None if all have.
        taken: Whose gradient is taken in, bool; None if all are. A matrix that rests takes none.
        gate: Whose step counts, bool; None if all are known to.
        decays: Whose weights decay, bool; None if all do.
        fresh: Whose basis starts with this gradient, bool; None if all have one.
        mean: V̄ of the whole parameters, where the stack holds shards of them; None elsewhere.
    """

    def __init__(self, cohort: Cohort, members: slice, index: int) -> None:
        self.entries = cohort.entries[members]
        self.index = index
        self.part = self.entries[0].parts[index]
        self.group = self.entries[0].group
        self.method = self.entries[0].method
        self.dtype = compute_dtype(self.entries[0].param)
        self._cohort = cohort
        self._members = members
        self._held: dict[str, Tensor] = {}
        self.finite = None if cohort.finite is None else cohort.finite[members]
        self.nonzero = self._masks()
        self.taken = both(self.finite, self.nonzero) if self.method.rests else self.finite
        self.gate, self.decays = self.taken, self.finite
        self.fresh: Tensor | None = None
        self.mean: Tensor | None = None
        self.unit: Number = 1.0
        self.G = self._gradients()

    @property
    def betas(self) -> tuple[float, float, float]:
        """β₁, β₂, β₃: the group's, or those of its rest for what is not a matrix."""
        is_matrix = self.method.name == method_of(self.group).name
        betas = self.group["betas" if is_matrix else "rest_betas"]
        default = betas[1] if self.method.beta3 is None else self.method.beta3
        return betas[0], betas[1], betas[2] if len(betas) > 2 else default

    def counted(self, function: Callable[..., Number], *settings: Any) -> Number:
        """function(t, …) of the counts of steps, shaped to multiply the stack."""
        return self._shaped(self._cohort.counted(function, *settings))

    def broadcast(self, x: Tensor) -> Tensor:
        """A number for each parameter or matrix, shaped to multiply the stack."""
        x = x if x.dtype == torch.bool else x.to(self.dtype)
        return over(x, self.G)

    def weight(self, beta: float, gate: Tensor | None) -> Number:
        """1 − β, or zero where the gate is closed: what lerp_ needs to average."""
        if gate is None:
            return 1 - beta
        if gate is self.finite:
            return self._shaped(self._cohort.weight(beta))
        return self.broadcast(gate.to(self.dtype) * (1 - beta))

    def _shaped(self, x: Number) -> Number:
        """This stack's part of what may be a number for each member of the cohort."""
        return self.broadcast(x[self._members]) if isinstance(x, Tensor) else x

    @property
    def bases(self) -> tuple[Tensor | None, Tensor | None]:
        """Q_L and Q_R; None for a side that has none."""
        left, right = (self.read(key) if self.has(key) else None for key in BASES)
        return left, right

    def bases_of(self, members: list[int]) -> tuple[Tensor | None, Tensor | None]:
        """The same for some members, to be looked at."""
        left, right = (self._chosen(key, members) if self.has(key) else None for key in BASES)
        return left, right

    @cached_property
    def projected(self) -> Tensor:
        """G′ = Q_Lᵀ G Q_R, in the basis that this step works in."""
        return project(self.G, *self.bases)

    def has(self, key: str) -> bool:
        """Whether the parameters keep a state of this name."""
        return self._key(key) in self.entries[0].state

    @property
    def awaits_basis(self) -> bool:
        """Whether there may be matrices that have no basis yet."""
        kept = self.has("covariance_left") or self.has("covariance_right")
        return kept and self.entries[0].waiting > 0

    def read(self, key: str) -> Tensor:
        """The state of this name, stacked; change it in place, then `commit` it."""
        if key not in self._held:
            self._held[key] = _gather(self.tensors(key), self.dtype)
        return self._held[key]

    def commit(self, *keys: str) -> None:
        """Write changed state back to the parameters it came from."""
        for key in keys:
            _scatter(self._held[key], self.tensors(key))

    @contextmanager
    def some(self, key: str, members: list[int]) -> Iterator[Tensor]:
        """The state of some members, stacked, to be changed in place while this lasts."""
        X = self._chosen(key, members)
        yield X
        tensors = self.tensors(key)
        _scatter(X, [tensors[i] for i in members])
        self._held.pop(key, None)

    def forget(self, *keys: str) -> None:
        """Read these anew when they are asked for: the parameters' own have changed."""
        for key in keys:
            self._held.pop(key, None)

    def tensors(self, key: str) -> list[Tensor]:
        """The state of this name, parameter by parameter."""
        tensors = [e.state[self._key(key)] for e in self.entries]
        return [self.part.fold(x) for x in tensors] if key in PARAMETER_SHAPED else tensors

    def _chosen(self, key: str, members: list[int]) -> Tensor:
        tensors = self.tensors(key)
        return _gather([tensors[i] for i in members], self.dtype)

    def _key(self, key: str) -> str:
        return key if key in PARAMETER_SHAPED else key + self._cohort.suffix

    def _gradients(self) -> Tensor:
        G = _gather([self.part.fold(e.grad) for e in self.entries], self.dtype)
        G = -G if self.group["maximize"] else G
        if self.taken is not None:  # a weight of zero would not silence NaN
            G = torch.where(over(self.taken, G), G, 0)
        if any(e.is_scaled for e in self.entries):
            found = torch.stack([exponents(e)[self.index] for e in self.entries])
            unit = as_units(found, G)
            self.unit = over(unit, G)
            G = G / self.unit
        return G

    def _masks(self) -> Tensor | None:
        """Which matrices have a gradient that is not zero; None if all are known to."""
        found = [None if e.nonzero is None else e.nonzero[self.index] for e in self.entries]
        known = next((x for x in found if x is not None), None)
        if known is None:
            return None
        return torch.stack([torch.ones_like(known) if x is None else x for x in found])


def apply_(stack: Stack, U: Term, kappa: Number) -> None:
    """X ← (1 − ηλ) X − η s κ U for every parameter of the stack."""
    lr, decay = stack.group["lr"], stack.group["weight_decay"]
    lr = lr.reshape(()).to(stack.dtype) if isinstance(lr, Tensor) else lr
    rate = lr * stack.method.rate(stack.part.shape)
    factor = rate * stack.method.scale(U) * kappa
    shrink: Number = rate * decay
    if stack.decays is not None:
        shrink = stack.broadcast(stack.decays).to(stack.dtype) * shrink
    if stack.gate is not None:
        U, factor = scaled(U, factor, where=stack.broadcast(stack.gate)), 1.0
    elif isinstance(factor, Tensor):
        U, factor = scaled(U, factor), 1.0
    U = U if len(stack.entries) == 1 else value(U)
    for i, entry in enumerate(stack.entries):
        X = stack.part.slice(entry.param)
        wide = stack.part.cut(X).to(stack.dtype)
        mine = U[i : i + 1] if isinstance(U, Tensor) else U
        lost = shrink[i : i + 1] if isinstance(shrink, Tensor) and shrink.ndim else shrink
        add_(wide.unsqueeze(0), mine, keep=1 - lost, weight=-factor)
        if wide.data_ptr() != X.data_ptr():  # a copy: in half precision, or not laid out for it
            X.copy_(_within(X.dtype, stack.part.unfold(wide, entry.param)))


def decay_(e: Entry) -> None:
    """X ← (1 − ηλ) X: all that happens to a parameter that rests."""
    lr, dtype = e.group["lr"], compute_dtype(e.param)
    lr = lr.reshape(()).to(dtype) if isinstance(lr, Tensor) else lr
    for part in e.parts:
        X = part.slice(e.param)
        X.copy_(X.to(dtype) * (1 - lr * e.method.rate(part.shape) * e.group["weight_decay"]))


def _within(dtype: torch.dtype, X: Tensor) -> Tensor:
    """X, held to the largest number of float16 if that is what it is stored in."""
    return X.clamp(-(most := torch.finfo(dtype).max), most) if dtype == torch.float16 else X


def stacks(entries: Iterable[Entry]) -> Iterator[Stack]:
    """The entries as stacks of one kind each, none larger than what pays."""
    kinds: dict[tuple[Any, ...], list[Entry]] = {}
    for e in entries:
        kind = (id(e.group), e.method.name, e.param.device, e.param.dtype, e.grad.dtype)
        for i in range(len(e.parts)):
            kinds.setdefault((*kind, e.waiting > 0, i, e.parts), []).append(e)
    for (*_, i, parts), members in kinds.items():
        size = _most(members[0])
        suffix = suffixes(parts)[i]
        together = Cohort(members, suffix)
        # A stack of matrices that begin or rest changes what its members count.
        apart = members[0].waiting > 0 or any(e.nonzero is not None for e in members)
        for start in range(0, len(members), size):
            some = slice(start, start + size)
            if apart:
                yield Stack(Cohort(members[some], suffix), slice(None), i)
            else:
                yield Stack(together, some, i)


def _most(entry: Entry) -> int:
    """How many parameters like this one to stack."""
    if entry.group["foreach"] is False:
        return 1
    if entry.method.vector is None:
        limit = ELEMENTWISE_LIMIT
    else:
        limit = MATRIX_LIMIT if entry.param.device.type == "cpu" else ACCELERATOR_LIMIT
    return max(1, limit // max(1, entry.param.numel()))


def _gather(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    if len(tensors) == 1:
        return tensors[0].to(dtype).unsqueeze(0)
    return torch.stack(tensors).to(dtype)


def _scatter(X: Tensor, tensors: list[Tensor]) -> None:
    """Undo _gather; what was a view is already there."""
    if len(tensors) > 1 or tensors[0].dtype != X.dtype:
        torch._foreach_copy_(tensors, list(X.unbind()))
