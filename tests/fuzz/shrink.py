"""A smaller case with the same fault: whatever can be left out is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch

from fuzz.case import Case, Event, Grad, Group, Param, Step
from fuzz.run import fault_of

T = TypeVar("T")


def shrunk(case: Case, invariant: str, *, runs: int = 600) -> Case:
    """A case as small as one change at a time makes it, in which the invariant still fails."""
    found = True
    while found and runs > 0:
        found = False
        for smaller in _smaller(case):
            runs -= 1
            fault = fault_of(smaller)
            if fault is not None and fault.invariant == invariant:
                case, found = smaller, True
                break
            if runs <= 0:
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with one thing less, what takes away most first."""
    if len(case.steps) > 1:
        yield from (replace(case, steps=steps) for steps in _without_one(case.steps))
    if len(case.params) > 1:
        yield from (_without_param(case, i) for i in range(len(case.params)))
    if case.twins:
        yield replace(case, twins=())
    yield from (replace(case, steps=steps) for steps in _with_one(case.steps, _simpler_steps))
    yield from (replace(case, groups=groups) for groups in _with_one(case.groups, _simpler_groups))
    yield from (replace(case, params=params) for params in _with_one(case.params, _simpler_params))
    for g in range(len(case.groups)):
        if len(case.groups) > 1 and all(p.group != g for p in case.params):
            yield _without_group(case, g)
    if case.small:
        yield replace(case, small=False)
    if case.path != "host":
        yield replace(case, path="host")


def _without_one(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    return (items[:i] + items[i + 1 :] for i in range(len(items)))


def _with_one(items: tuple[T, ...], simpler: Callable[[T], Iterator[T]]) -> Iterator[tuple[T, ...]]:
    for i, item in enumerate(items):
        for instead in simpler(item):
            yield (*items[:i], instead, *items[i + 1 :])


def _without_param(case: Case, i: int) -> Case:
    steps = tuple(
        replace(
            step,
            grads=step.grads[:i] + step.grads[i + 1 :],
            events=_without(i, step.events, ("freeze", "thaw")),
        )
        for step in case.steps
    )
    return replace(case, params=case.params[:i] + case.params[i + 1 :], steps=steps)


def _without_group(case: Case, g: int) -> Case:
    """The case without a group that has no parameters."""
    steps = tuple(
        replace(step, events=_without(g, step.events, ("set", "add"))) for step in case.steps
    )
    params = tuple(replace(p, group=p.group - (p.group > g)) for p in case.params)
    return replace(case, params=params, groups=case.groups[:g] + case.groups[g + 1 :], steps=steps)


def _without(number: int, events: tuple[Event, ...], about: tuple[str, ...]) -> tuple[Event, ...]:
    """The events that are not about this number of a parameter or group, the others renumbered."""
    return tuple(
        (event[0], event[1] - (event[1] > number), *event[2:]) if event[0] in about else event
        for event in events
        if event[0] not in about or event[1] != number
    )


def _simpler_steps(step: Step) -> Iterator[Step]:
    yield from (replace(step, events=events) for events in _without_one(step.events))
    if step.repeat > 1:
        yield replace(step, repeat=1)
        yield replace(step, repeat=step.repeat // 2)
    yield from (replace(step, grads=grads) for grads in _with_one(step.grads, _simpler_grads))


def _simpler_groups(group: Group) -> Iterator[Group]:
    for key in group.options:
        options = {k: x for k, x in group.options.items() if k != key}
        yield replace(group, options=options)
    if group.tensor_lr:
        yield replace(group, tensor_lr=False)


def _simpler_grads(grad: Grad) -> Iterator[Grad]:
    if grad.dtype is not None:
        yield replace(grad, dtype=None)
    if grad.layout != "plain":
        yield replace(grad, layout="plain")
    if grad.scale != 1:
        yield replace(grad, scale=1.0)
    if grad.kind != "normal":
        yield replace(grad, kind="normal")


def _simpler_params(param: Param) -> Iterator[Param]:
    if param.layout != "plain":
        yield replace(param, layout="plain")
    if param.zero:
        yield replace(param, zero=False)
    if param.dtype != torch.float32:
        yield replace(param, dtype=torch.float32)
    for shape in ((), (2, 2), (2, 3)):
        if len(shape) < len(param.shape) or sum(shape) < sum(param.shape):
            yield replace(param, shape=shape)
