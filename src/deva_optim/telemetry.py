"""What an optimizer can say of each matrix between two steps, read from its state.

Nothing is recorded during a step and nothing is changed here: everything is computed anew from the
running averages and bases that the parameters keep, at the price of one or two steps.

    M_  …×n×m  momentum in the basis        O  …×n×m  direction of it
    Γ   …×n×m  variance adaptation, κ Γ     U  …×n×m  Γ ⊙ O, in the basis
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .core.bases import SIDES, restore
from .core.batch import Entry, Stack, stacks
from .core.directions import frobenius, inverse_norm
from .core.linalg import Number, value
from .core.parameters import Member
from .core.step import (
    direction_of,
    ema_,
    gamma,
    in_basis,
    looked_ahead,
    shampoo_,
)
from .core.units import fits
from .core.variance import ADAM, INSTANTANEOUS
from .diagnostics import basis_drift, msign_error, update_ratio

Telemetry = dict[str, dict[str, float]]
"""Name of the matrix → name of the quantity → value."""

Rows = dict[str, list[dict[str, float]]]
"""Name of the parameter → for each of its matrices, name of the quantity → value."""


def scalars(telemetry: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The same under one name each, quantity first, as TensorBoard groups its charts.

    >>> scalars({"layers.0.weight": {"gamma_mean": 0.9, "skipped": 0.0}})
    {'gamma_mean/layers.0.weight': 0.9, 'skipped/layers.0.weight': 0.0}
    """
    return {f"{key}/{name}": x for name, row in telemetry.items() for key, x in row.items()}


def looks_at_gradient(entry: Entry) -> bool:
    """Whether the telemetry of an entry needs its gradient, beside what its state remembers."""
    return entry.group["nesterov"] or entry.method.adaptation is INSTANTANEOUS


def stepped(members: Iterable[Member], state: Mapping[Tensor, dict[str, Any]]) -> Iterator[Entry]:
    """The matrices that have taken a step, and whose gradient is there if it is needed."""
    for m in members:
        if not m.is_matrix or not state.get(m.param):
            continue
        grad = torch.zeros_like(m.param) if m.param.grad is None else m.param.grad
        entry = Entry(m.param, grad, state[m.param], m.group, m.method, m.parts, m.name)
        there = m.param.grad is not None and fits(entry)
        if there or not looks_at_gradient(entry):
            yield entry


@torch.no_grad()
def rows(entries: Iterable[Entry]) -> Rows:
    """The telemetry of entries that have taken a step."""
    entries = list(entries)
    found: dict[str, dict[tuple[int, int], dict[str, float]]] = {e.name: {} for e in entries}
    for stack in stacks(entries):
        quantities = _quantities(stack)
        table = torch.stack([x.reshape(len(stack.entries), -1) for x in quantities.values()], -1)
        for entry, matrices in zip(stack.entries, table.tolist(), strict=True):
            part = entry.parts.index(stack.part)
            for i, row in enumerate(matrices):
                found[entry.name][part, i] = dict(zip(quantities, row, strict=True))
    return {name: [row for _, row in sorted(of.items())] for name, of in found.items()}


def numbered(rows: Rows, skipped: Callable[[str], int]) -> Telemetry:
    """Each row under a name of its own; `skipped` counts what a parameter has left out.

    A parameter that is several matrices has a row for each, numbered: `experts.weight[3]`.
    """
    return {
        f"{name}[{i}]" if len(of) > 1 else name: {**row, "skipped": float(skipped(name))}
        for name, of in rows.items()
        for i, row in enumerate(of)
    }


def _quantities(stack: Stack) -> dict[str, Tensor]:
    """What there is to say of the matrices of a stack, B×… each."""
    found = {}
    if stack.method.update is shampoo_:
        U = _shampoo_update(stack)
    else:
        M_, D_ = _momentum(stack)
        trust = _gamma(stack, M_)  # before the direction, which may use up the memory of M_
        first = stack.method.whitens  # then a factor of Γ says nothing
        U = O = value(direction_of(stack, trust * D_ if trust is not None and first else D_))
        if trust is not None and not first:
            found["gamma_norm"] = torch.linalg.matrix_norm(trust)
            found["gamma_mean"] = trust.mean((-2, -1))
            U = trust * O
        if stack.method.direction == "msign":
            found["msign_error"] = msign_error(O)
    rate = stack.group["lr"] * stack.method.rate(stack.part.shape) * stack.method.scale(U)
    X = torch.stack([stack.part.fold(e.param) for e in stack.entries]).to(stack.dtype)
    return found | _drifts(stack) | {"update_ratio": update_ratio(rate * U, X)}


def _momentum(stack: Stack) -> tuple[Tensor, Tensor]:
    """The momentum in the basis, and what of it the direction is taken of."""
    M = stack.read("exp_avg")
    M_ = in_basis(stack, M)
    if stack.group["nesterov"] and stack.method.momentum is ema_:
        return M_, in_basis(stack, looked_ahead(stack, M))
    return M_, M_


def _gamma(stack: Stack, M_: Tensor) -> Tensor | None:
    """κ Γ, or None if the method has none."""
    adaptation = stack.method.adaptation
    if adaptation is None:
        return None
    measured = adaptation.measure(stack.projected if adaptation is INSTANTANEOUS else M_)
    trust, kappa = gamma(stack, adaptation, M_.abs(), measured)
    return value(trust) * kappa


def _shampoo_update(stack: Stack) -> Tensor:
    M = stack.read("exp_avg")
    P_L, P_R = (stack.read(k) if stack.has(k) else None for k in ("root_left", "root_right"))
    U = value(restore(M, P_L, P_R))
    if stack.method.adaptation is None:
        return U
    A, kappa = gamma(stack, ADAM, M, ())
    size: Number = frobenius(value(A)) * kappa
    return U * (size * inverse_norm(U))


def _drifts(stack: Stack) -> dict[str, Tensor]:
    """How far the covariances have moved from the bases, on the sides that have one."""
    found = {}
    for side in SIDES:
        if stack.has(f"basis_{side}"):
            C = stack.read(f"covariance_{side}").tril()  # of a large one, all that is up to date
            found[f"drift_{side}"] = basis_drift(C + C.tril(-1).mT, stack.read(f"basis_{side}"))
    return found
