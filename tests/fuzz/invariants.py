"""What holds after every step, whatever the optimizer, its options and its gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deva_optim.core.codes import CODES, SCALE
from deva_optim.core.matrices import Part
from deva_optim.core.parameters import Reading
from fuzz.subject import Subject

_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
# What times a step, and is no memory of gradients.
_COUNTERS = ("step", "clock", "idle", "waiting", "rounding")


class Fault(AssertionError):  # noqa: N818 (of the library, not of this program)
    """An invariant that does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Before(NamedTuple):
    """A parameter before a step, and what is known of its gradient."""

    reading: Reading | None  # None if it has not joined
    weight: Tensor
    state: dict[str, Tensor]
    grad: Tensor | None
    copy: Tensor | None  # of the gradient
    skipped: bool | None  # whether the step must be left out; None if that may or may not be


def look(subject: Subject, grads: list[Tensor | None]) -> list[Before]:
    """What is to be remembered of every parameter before a step with these gradients."""
    known = {id(r.param): r for r in subject.optimizer.readings()}
    found = []
    for i, (p, g) in enumerate(zip(subject.params, grads, strict=True)):
        reading = known.get(id(p))
        state = {key: x.clone() for key, x in subject.state(i).items()}
        copy = None if g is None else g.clone()
        skipped = (
            None
            if g is None or reading is None
            else must_skip(g, p, reading, subject.settings["path"], state)
        )
        found.append(Before(reading, p.detach().clone(), state, g, copy, skipped))
    return found


def must_skip(
    grad: Tensor, param: Tensor, reading: Reading, path: str, state: dict[str, Tensor]
) -> bool | None:
    """Whether a gradient counts as not finite; None where it may or may not.

    Every method takes whatever is finite. Nothing is said of a gradient that rounds to infinity in
    the precision of its weight, of squares that only a narrower dtype of the state cannot hold, and
    on the device's path of a gradient far too large for units that earlier ones have chosen, or for
    a unit of 1, which a matrix has whose first gradient comes after those of others beside it.
    """
    if not grad.isfinite().all():
        return True
    largest, wide = float(grad.abs().amax()), compute_dtype(param)
    if largest > torch.finfo(wide).max:
        return None
    if largest == 0:
        return False
    size = math.log2(largest) + math.log2(float((grad.double() / largest).norm()))
    given = reading.group["state_dtype"]
    narrow = _exponents(torch.float32 if given == "int8" else given or wide)
    if narrow - 1 < 2 * size < _exponents(wide) - 1:
        return None
    exponents = [x.flatten() for key, x in state.items() if key.startswith("exponent")]
    units = [e if e > -1024 else 0 for x in exponents for e in x.tolist()]
    kept = torch.float32 if given in _NARROW else wide
    far = _FAR[kept] + min(units, default=0)
    return None if path == "device" and size > far else False


# How large a norm may be in units on the device's path, as a power of two, with a margin.
_FAR = {torch.float32: 49, torch.float64: 399}
_NARROW = (torch.float32, torch.bfloat16, "int8")


def _exponents(dtype: torch.dtype) -> float:
    """The largest power of two of a dtype."""
    return math.log2(torch.finfo(dtype).max)


def compute_dtype(X: Tensor) -> torch.dtype:
    """The precision that a parameter is updated in."""
    return torch.float64 if X.dtype == torch.float64 else torch.float32


# The invariants ---------------------------------------------------------------------------------


def gradients_are_untouched(subject: Subject, before: list[Before]) -> None:
    """The optimizer reads gradients and never writes to them, not even a zero's sign."""
    for i, b in enumerate(before):
        if subject.params[i].grad is not b.grad:
            raise Fault("gradients untouched", f"parameter {i} has another gradient tensor")
        if b.grad is None or b.copy is None:
            continue
        if not torch.equal(_bits(b.grad), _bits(b.copy)):
            raise Fault("gradients untouched", f"the gradient of parameter {i} was written to")


def everything_is_finite(subject: Subject) -> None:
    """Weights and state are finite as long as they were: no gradient can change that."""
    for i, p in enumerate(subject.params):
        tensors = {"weight": p.detach(), **subject.state(i)}
        flat = [x.reshape(-1) for x in tensors.values() if x.is_floating_point()]
        if not torch.cat([x.double() for x in flat]).isfinite().all():
            bad = [key for key, x in tensors.items() if not x.isfinite().all()]
            raise Fault("finite in, finite out", f"{', '.join(bad)} of parameter {i}")


def without_gradient_nothing_moves(subject: Subject, before: list[Before]) -> None:
    """No gradient: neither weight nor state changes, and no state is made."""
    for i, b in enumerate(before):
        if b.grad is None:
            _unchanged("no gradient, no move", subject, i, b)
            if subject.state(i).keys() != b.state.keys():
                raise Fault("no gradient, no move", f"parameter {i} has a state now")


def skipped_steps_change_nothing(subject: Subject, before: list[Before]) -> None:
    """A gradient that is not finite: neither weight nor state changes.

    On the device's path the host does not know: it counts refreshes and roundings on.
    """
    for i, b in enumerate(before):
        if b.skipped:
            besides = ("clock", "rounding") if subject.settings["path"] == "device" else ()
            _unchanged("not finite, no change", subject, i, b, besides)


def skips_are_counted(subject: Subject, before: list[Before], count: int) -> None:
    """The count of skipped steps grows by one for each gradient that is not finite."""
    due = sum(b.skipped is True for b in before)
    may = due + sum(b.skipped is None and b.grad is not None for b in before)
    if not due <= subject.optimizer.skipped - count <= may:
        grown = subject.optimizer.skipped - count
        raise Fault("skips counted", f"{grown} steps were left out, and not {due}")


def nothing_changed(subject: Subject, before: list[Before]) -> None:
    """A step that raises has changed nothing, of no parameter."""
    for i, b in enumerate(before):
        _unchanged("an error changes nothing", subject, i, b)


def without_rate_nothing_moves(subject: Subject, before: list[Before]) -> None:
    """A learning rate of zero: the weight stays, bit for bit."""
    for i, b in enumerate(before):
        if b.reading is not None and float(b.reading.group["lr"]) == 0:
            _same("lr 0, no move", f"the weight of parameter {i}", subject.params[i], b.weight)


def zero_matrices_rest(subject: Subject, before: list[Before]) -> None:
    """Of a matrix whose gradient is zero only the weight decays; its memory stays as it is.

    So it is under Muon, AdaMuon, DeVA-S∞ and SPlus. Elementwise methods, SOAP and Shampoo go on
    with their momentum, as their papers say.
    """
    for i, b in enumerate(before):
        if b.grad is None or b.reading is None or b.skipped is not False or not rests(b.reading):
            continue
        for n, part in enumerate(b.reading.parts):
            zero = _zero_matrices(part.fold(b.grad), compute_dtype(b.weight))
            if zero.any():
                suffix = f".{n}" if len(b.reading.parts) > 1 else ""
                _decays_only(i, part, zero, subject.params[i], b)
                _remembers(i, part, zero, subject.state(i), b.state, suffix)


def rests(reading: Reading) -> bool:
    """Whether a method leaves a matrix alone whose gradient is zero."""
    return reading.method.rests


def _zero_matrices(G: Tensor, dtype: torch.dtype) -> Tensor:
    """Which matrices are zero: those whose norm is surely below the smallest normal number."""
    most = G.double().abs().amax((-2, -1)) * math.sqrt(G.shape[-2] * G.shape[-1])
    return most < 0.99 * torch.finfo(dtype).tiny


def _decays_only(i: int, part: Part, zero: Tensor, param: Tensor, b: Before) -> None:
    assert b.reading is not None
    group = b.reading.group
    rate = b.reading.method.rate
    of_shape = 1.0 if rate is None else rate(part.shape)
    shrink = float(group["lr"]) * of_shape * group["weight_decay"]
    old, new = part.fold(b.weight)[zero].double(), part.fold(param.detach())[zero].double()
    # 1 − ηλ and its product with X are rounded in the precision of the computation, then the
    # result in that of the weight: half a unit each, and half of that again for a rate in float32.
    # Below the smallest normal number a unit is the smallest number of all.
    wide, own = torch.finfo(compute_dtype(param)), torch.finfo(param.dtype)
    rounding = (wide.eps + own.eps) * old.abs() + wide.eps * wide.tiny + own.eps * own.tiny
    if ((new - (1 - shrink) * old).abs() > 2 * rounding).any():
        raise Fault("a zero gradient rests", f"the weight of parameter {i} moved")


def _remembers(
    i: int,
    part: Part,
    zero: Tensor,
    state: dict[str, Tensor],
    before: dict[str, Tensor],
    suffix: str,
) -> None:
    """The averages, covariances and bases of resting matrices are what they were, or still zero."""
    for key, x in state.items():
        name, dot, number = key.partition(".")
        # the average of the weights follows the weight, which decays
        if name in (*_COUNTERS, "weight_avg") or dot + number not in ("", suffix):
            continue
        if not before and not name.startswith(("exp_avg", "covariance")):
            continue  # what a state starts from is not zero for all of it
        was = before.get(key, torch.zeros_like(x))
        coded = x.dtype in CODES or name.endswith(SCALE)
        if coded and (part.length >= 0 or part.pieces > 1 or zero.ndim > 1):
            continue  # its matrices may share the scale of a block with others that move
        if name in ("exp_avg", "exp_avg_sq"):
            x, was = part.fold(x), part.fold(was)
        _same("a zero gradient rests", f"{key} of parameter {i}", x[zero], was[zero])


def _unchanged(
    invariant: str, subject: Subject, i: int, b: Before, besides: tuple[str, ...] = ()
) -> None:
    _same(invariant, f"the weight of parameter {i}", subject.params[i], b.weight)
    state = subject.state(i)
    for key, was in b.state.items():
        if key not in besides:
            _same(invariant, f"{key} of parameter {i}", state[key], was)
    if not b.state and state and (int(state["step"]) or state["exp_avg"].any()):
        raise Fault(invariant, f"the first state of parameter {i} is not an empty one")


def _same(invariant: str, what: str, ours: Tensor, theirs: Tensor) -> None:
    if what.startswith("covariance"):  # of a large one only the lower half says anything
        ours, theirs = ours.tril(), theirs.tril()
    if ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
        raise Fault(invariant, f"{what} changed")


def _bits(X: Tensor) -> Tensor:
    return X.detach().view(_INTEGERS[X.element_size()])


# What may be asked between steps ----------------------------------------------------------------


def telemetry_is_finite(subject: Subject) -> None:
    """Telemetry never raises and has numbers alone; a zero weight has an infinite ratio."""
    for name, row in subject.optimizer.telemetry().items():
        for key, x in row.items():
            if not (math.isfinite(x) or (key == "update_ratio" and x == math.inf)):
                raise Fault("telemetry", f"{key} of {name} is {x}")


def averages_come_and_go(subject: Subject) -> None:
    """The averaged weights are finite, and after them the weights are back, bit for bit."""
    if all(group["ema_rate"] is None for group in subject.optimizer.param_groups):
        return
    kept = [p.detach().clone() for p in subject.params]
    with subject.optimizer.averaged():
        if not all(p.isfinite().all() for p in subject.params):
            raise Fault("averaged weights", "are not finite")
    for i, (p, X) in enumerate(zip(subject.params, kept, strict=True)):
        _same("averaged weights", f"the weight of parameter {i}", p, X)
