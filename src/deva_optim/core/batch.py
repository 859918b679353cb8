"""Parameters that advance together: gathered into one tensor, updated, and written back.

State lives with each parameter as plain tensors. Inside a step matrices of one shape are stacked,
so that one batched product serves all of them; a batch of one is a view and copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from .codes import CODES, decode, encode_
from .linalg import HALF, Number, both, over, scalar_dtype
from .matrices import PARAMETER_SHAPED, Part
from .parameters import Reading
from .rounding import round_stochastically
from .state import initial_state, on_host
from .units import as_units

# Copying a small tensor into a batch costs less than launching its kernels one by one; a large one
# is better updated where it is. Matrix products gain from a batch up to larger sizes, on the CPU as
# long as the batch stays in the cache. In numbers of a batch, measured on a CPU:
ELEMENTWISE_LIMIT: Final = 2**16
MATRIX_LIMIT: Final = 2**17
ACCELERATOR_LIMIT: Final = 2**23

# Small matrices gain from a batch, even if it must be copied together; large ones do not.
LARGE: Final = 128

# The state that a step works on. It changes the averages of every batch.
_AVERAGES: Final = (
    *("exp_avg", "exp_avg_sq", "exp_avg_rows", "exp_avg_cols"),
    *("variance_short", "variance_long", "weight_avg"),
)
_MEASURED: Final = "variance_short"  # of a covariance, if there is a basis, and no average then
_STATE: Final = (
    *_AVERAGES,
    *("covariance_left", "covariance_right", "basis_left", "basis_right"),
    *("root_left", "root_right"),
)


@dataclass(slots=True)
class Item:
    """A parameter that has a gradient, and what this step knows about it.

    Attributes:
        param, grad, parts: Of the whole parameter, or of the block that this rank updates.
        finite: Whether the gradient is finite, 0-D; None if the host knows that it is.
        size: The norm of the gradient; a tensor if the host does not know it.
        overflowed: Whether its last gradient was too large for its units: the host waits once more.
        counted: Whether the count of steps was advanced.
        clock: Steps since the first basis, plus its phase; −1 − phase until there is one.
        waiting: How many of its matrices have no basis yet.
        nonzero: For each part, which matrices have a gradient that is not zero; None if all have.
        begun: For each part, which matrices had a gradient before this step.
        scaled: Whether any of its units is another than 1.
        renews: Whether what is made of its covariances must be computed anew: its units changed.
        rounding: How often its weight was rounded at random before; None rounds it to the nearest
            number.
        offset: Where in the parameter the block begins that this rank rounds.
    """

    reading: Reading
    param: Tensor
    grad: Tensor
    state: dict[str, Any]
    parts: tuple[Part, ...]
    finite: Tensor | None = None
    size: Tensor | float = 0.0
    overflowed: bool = False
    counted: Tensor | bool = True
    clock: int = -1
    waiting: int = 0
    nonzero: list[Tensor | None] | None = None
    begun: list[Tensor] | None = None
    scaled: bool = False
    renews: bool = False
    rounding: int | None = None
    offset: int = 0

    def exponents(self, index: int) -> Tensor:
        """The exponents of the matrices of a part, on the host."""
        found: Tensor = self.state["exponent" + self.reading.suffixes[index]]
        return found

    def stored(self, X: Tensor, index: int) -> Tensor:
        """The numbers of a part of the weight as the dtype of the parameter holds them."""
        dtype = self.param.dtype
        if dtype not in HALF:
            return X
        if self.rounding is None:
            return X.clamp(-(most := torch.finfo(dtype).max), most) if dtype == torch.float16 else X
        place = self.reading.place, index, self.offset
        return round_stochastically(X, dtype, self.rounding, *place)


def item(
    reading: Reading,
    param: Tensor,
    grad: Tensor,
    state: dict[str, Any],
    parts: tuple[Part, ...],
    phase: int,
    like: Tensor | None = None,
) -> Item:
    """What a step works on: a parameter, or the block of it that this rank updates.

    An empty state is filled, allocated as `like`, or else as the parameter; its clock starts at
    `phase`.
    """
    if not state:
        shaped = param if like is None else like
        state.update(initial_state(shaped, reading.group, reading.method, parts, phase))
        reading.names = None
    if not state["exponent" + reading.suffixes[0]].is_cpu:
        # Loops that load a state, or free a device for a while, may move all of it to the device.
        state.update({key: x.cpu() for key, x in state.items() if on_host(key)})
    if reading.names is None:
        reading.names = [_names(state, suffix) for suffix in reading.suffixes]
    if grad.dtype == torch.float64 and param.dtype != torch.float64:
        grad = grad.float()
    found = Item(reading, param, grad, state, parts)
    if reading.method.basis is not None:
        found.clock, found.waiting = int(state["clock"]), int(state["waiting"])
    return found


def _names(state: dict[str, Any], suffix: str) -> dict[str, str]:
    """The names of what a step works on in the state of a part, by those of a parameter of one."""
    names = {key: key if key in PARAMETER_SHAPED else key + suffix for key in _STATE}
    return {key: name for key, name in names.items() if name in state}


class Kind:
    """Items that are updated alike, and the numbers that all batches of them share.

    Attributes:
        index: The part of the items that is updated.
        finite: Whose gradient is finite, bool; None if all are known to be.
        masked: Whether a matrix of any of them may have a gradient of zero.
        scaled: Whether any of their units is another than 1.
        compiled: Whether the update is compiled, so that no number may be a constant of a step.
    """

    def __init__(self, items: list[Item], index: int) -> None:
        self.items, self.index = items, index
        self.compiled = bool(items[0].reading.group["compile"])
        self.suffix, self.dtype = items[0].reading.suffixes[index], items[0].reading.dtype
        self.finite: Tensor | None = None
        if items[0].finite is not None:
            self.finite = torch.stack([e.finite for e in items if e.finite is not None])
        self.masked = self.scaled = False
        for e in items:
            self.masked |= e.nonzero is not None
            self.scaled |= e.scaled
        self._t: Number | None = None
        self._found: dict[tuple[Any, ...], Number] = {}

    @property
    def t(self) -> Number:
        """How many steps have been taken, this one included; a plain number if all agree."""
        if self._t is None:
            self._t = self._count()
        return self._t

    def _count(self) -> Number:
        idle = [e.state[key] for e in self.items if (key := "idle" + self.suffix) in e.state]
        if self.finite is None and not idle and not self.compiled:
            counts = {e.state["step"].item() for e in self.items}
            if len(counts) == 1:
                return float(max(counts.pop(), 1))
        steps = torch.stack([e.state["step"] for e in self.items])
        if idle:
            steps = steps.view(-1, *(1,) * idle[0].ndim) - torch.stack(idle)
        return steps.to(scalar_dtype(steps.device)).clamp_min_(1)

    def counted(self, function: Callable[..., Number], *settings: Any) -> Number:
        """function(t, …), in the precision of the computation if it is a tensor."""
        key = (function, *settings)
        if key not in self._found:
            x = function(self.t, *settings)
            self._found[key] = x.to(self.dtype) if isinstance(x, Tensor) else x
        return self._found[key]

    def weight(self, beta: float) -> Number:
        """1 − β, and zero where the gradient is not finite."""
        key = ("weight", beta)
        if key not in self._found:
            finite = self.finite
            weight = 1 - beta if finite is None else finite.to(self.dtype) * (1 - beta)
            self._found[key] = weight
        return self._found[key]


class Batch:
    """Items of one kind and shape, as tensors with a leading dimension over them.

    Numbers that differ between parameters have shape B, those that differ between the matrices of
    a parameter B×…; `broadcast` shapes both to multiply B×…×n×m.

    Attributes:
        G: The gradients, in units and in the precision of the computation, zero where they are not
            taken in; B×…×n×m.
        unit: 2^e of each matrix, shaped to multiply the batch; 1 if that is all of them.
        betas: β₁, β₂, β₃.
        finite: Whose gradient is finite, B, bool; None if all are known to be.
        nonzero: Which matrices have a gradient that is not zero, bool; None if all have.
        taken: Whose gradient is taken in, bool; None if all are. A matrix that rests takes none.
        gate: Whose step counts, bool; None if all are known to.
        decays: Whose weights decay, bool; None if all do.
        fresh: Whose basis starts with this gradient, bool; None if all have one.
        state: The state of this part, gathered, by the names of a parameter of one part; all of it
            but covariances, which are not needed in every step (see `some`).
        Q_L, Q_R: The bases; None for a side that has none.
        plain: Whether a parameter is its matrices as it is: not cut, not flattened.
        projected: G in the basis, once it has been computed.
        mean: V̄ of the whole parameters, where the batch holds shards of them; None elsewhere.
        record: What telemetry is told about this step, B×… each; None if it is not asked for.
    """

    def __init__(self, kind: Kind, members: slice) -> None:
        self._kind, self._members = kind, members
        self.items = kind.items[members]
        first, self.index = self.items[0], kind.index
        self._first = first.state
        self.part: Part = first.parts[kind.index]
        self.group, self.method = first.reading.group, first.reading.method
        self.dtype = kind.dtype
        betas = self.group.get("betas", (0.0, 0.0))
        momentum = self.group.get("momentum", betas[0])
        if first.reading.is_rest and "rest_betas" in self.group:
            betas = self.group["rest_betas"]
            # OneCycleLR and CyclicLR leave this key; theirs is the momentum of all parameters.
            momentum = momentum if "base_momentum" in self.group else betas[0]
        betas = (momentum, *betas[1:])
        default = betas[1] if self.method.beta3 is None else self.method.beta3
        self.betas = (*betas, default) if len(betas) == 2 else tuple(betas)
        self.plain = self.part.length < 0 and self.part.pieces == 1 and not self.part.flat
        self.finite = None if kind.finite is None else kind.finite[members]
        self.nonzero = self._masks() if kind.masked else None
        self.taken = self.finite
        if self.method.rests and self.nonzero is not None:
            self.taken = both(self.finite, self.nonzero)
        self.gate, self.decays = self.taken, self.finite
        self.fresh: Tensor | None = None
        self.projected: Tensor | None = None
        self.mean: Tensor | None = None
        self.unit: Number = 1.0
        self.record: dict[str, Tensor] | None = None
        self.state: dict[str, Tensor] = {}
        self.names = first.reading.names[kind.index]  # type: ignore[index]
        for key, name in self.names.items():
            if len(self.items) > 1:
                if not key.startswith("covariance"):
                    self.state[key] = gather(self.tensors(key), self.dtype)
            else:
                X = first.state[name]
                X = decode(first.state, name, self.dtype) if X.dtype in CODES else X
                X = X if self.plain or key not in PARAMETER_SHAPED else self.part.fold(X)
                self.state[key] = X.to(self.dtype).unsqueeze(0)
        self.Q_L, self.Q_R = self.state.get("basis_left"), self.state.get("basis_right")
        self.G = self._gradients()

    def tensors(self, key: str) -> list[Tensor]:
        """The state of this name, parameter by parameter."""
        name = self.names[key]
        if self._first[name].dtype in CODES:
            found = [decode(e.state, name, self.dtype) for e in self.items]
        else:
            found = [e.state[name] for e in self.items]
        if self.plain or key not in PARAMETER_SHAPED:
            return found
        return [self.part.fold(x) for x in found]

    def weights(self) -> Tensor:
        """The parameters, gathered; B×…×n×m."""
        return gather([self.part.fold(e.param) for e in self.items], self.dtype)

    @contextmanager
    def some(self, key: str, members: list[int]) -> Iterator[Tensor]:
        """The state of some members, stacked, to be changed in place while this lasts."""
        tensors = self.tensors(key)
        tensors = [tensors[i] for i in members]
        X = gather(tensors, self.dtype)
        yield X
        scatter(X, tensors)

    def write_back(self) -> None:
        """Return the averages, which the step has changed, to the parameters they came from."""
        based = self.Q_L is not None or self.Q_R is not None
        for key, X in self.state.items():
            if key not in _AVERAGES or (based and key == _MEASURED):
                continue
            dtype = self._first[self.names[key]].dtype
            if dtype in CODES:
                self._encode(key, X)
            elif len(X) > 1 or X.dtype != dtype:
                scatter(X, self.tensors(key))

    def _encode(self, key: str, X: Tensor) -> None:
        for e, x in zip(self.items, X, strict=True):
            if not self.plain:  # what other parts have is decoded, and encoded as it was
                whole = decode(e.state, key, self.dtype)
                self.part.fold(whole).copy_(x)
                x = whole
            encode_(e.state, key, x)

    def count(self) -> None:
        """Count the steps: a graph cannot."""
        _ = self._kind.t

    def counted(self, function: Callable[..., Number], *settings: Any) -> Number:
        """function(t, …) of the counts of steps, shaped to multiply the batch."""
        x = self._kind.counted(function, *settings)
        return self.broadcast(x[self._members]) if isinstance(x, Tensor) else x

    def weight(self, beta: float, gate: Tensor | None) -> Number:
        """1 − β, or zero where the gate is closed: what lerp_ needs to average."""
        if gate is None:
            return 1 - beta
        if gate is self.finite:
            x = self._kind.weight(beta)
            return self.broadcast(x[self._members]) if isinstance(x, Tensor) else x
        return self.broadcast(gate.to(self.dtype) * (1 - beta))

    def broadcast(self, x: Tensor) -> Tensor:
        """A number for each parameter or matrix, shaped to multiply the batch."""
        return over(x if x.dtype == torch.bool else x.to(self.dtype), self.G)

    def _gradients(self) -> Tensor:
        if self.plain:
            G = gather([e.grad for e in self.items], self.dtype)
        else:
            G = gather([self.part.fold(e.grad) for e in self.items], self.dtype)
        if self.group["maximize"]:
            G = -G
        if self.taken is not None:  # a weight of zero would not silence NaN
            G = torch.where(over(self.taken, G), G, 0)
        if self._kind.scaled:
            exponents = torch.stack([e.exponents(self.index) for e in self.items])
            self.unit = over(as_units(exponents, G), G)
            G = G / self.unit
        return G

    def _masks(self) -> Tensor | None:
        found = [None if e.nonzero is None else e.nonzero[self.index] for e in self.items]
        known = next((x for x in found if x is not None), None)
        if known is None:
            return None
        return torch.stack([torch.ones_like(known) if x is None else x for x in found])


def batches(items: Iterable[Item]) -> Iterator[Batch]:
    """The items as batches of one kind each, none larger than what pays."""
    kinds: dict[tuple[Any, ...], list[Item]] = {}
    for e in items:
        group, method, X = id(e.reading.group), e.reading.method.name, e.param
        alike = group, method, X.device, X.dtype, e.grad.dtype, e.waiting > 0, e.parts
        for i in range(len(e.parts)):
            kinds.setdefault((*alike, i), []).append(e)
    for key, members in kinds.items():
        index, size = key[-1], _most(members[0])
        kind = Kind(members, index)
        # Where matrices begin, or may rest and have counts of their own, these change during the
        # step, so that such a batch shares no numbers with others; nor does one whose numbers are
        # part of a graph.
        rests = kind.masked and "idle" + kind.suffix in members[0].state
        apart = members[0].waiting > 0 or rests or kind.compiled
        for start in range(0, len(members), size):
            some = slice(start, start + size)
            if apart:
                yield Batch(Kind(members[some], index), slice(None))
            else:
                yield Batch(kind, some)


def _most(item: Item) -> int:
    """How many parameters like this one to update at once."""
    if item.reading.group["foreach"] is False:
        return 1
    if not item.reading.is_matrix:
        limit = ELEMENTWISE_LIMIT
    else:
        limit = MATRIX_LIMIT if item.param.device.type == "cpu" else ACCELERATOR_LIMIT
    return max(1, limit // max(1, item.param.numel()))


def gather(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The tensors as one, with a leading dimension over them; of a single one a view."""
    if len(tensors) == 1:
        return tensors[0].to(dtype).unsqueeze(0)
    return torch.stack(tensors).to(dtype)


def scatter(X: Tensor, tensors: list[Tensor]) -> None:
    """Undo `gather`; what was a view is already there."""
    if len(tensors) > 1 or tensors[0].dtype != X.dtype:
        torch._foreach_copy_(tensors, list(X.unbind()))
