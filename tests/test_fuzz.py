"""A slice of the fuzzer, and proof that each of its invariants can fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import deva_optim as do
import fuzz
from deva_optim.optimizer import BaseOptimizer
from fuzz import Case, Grad, Group, Param, Step, case_of, fault_of, shrunk
from fuzz.subject import Subject
from fuzz.twins import comparable, twins_of

SLICES, CASES = 8, 250  # in all half a minute of one core


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
def test_a_slice_of_the_cases(part: int) -> None:
    for seed in range(part * CASES, (part + 1) * CASES):
        fault = fault_of(case_of(seed))
        if fault is not None:
            case = shrunk(case_of(seed), fault.invariant)
            pytest.fail(f"seed {seed}: {fault_of(case)}\nfrom fuzz import *\nrun({case!r})")


def test_a_seed_is_a_case_and_a_case_is_its_text() -> None:
    for seed in range(200):
        case = case_of(seed)
        assert case == case_of(seed)
        assert eval(repr(case), vars(fuzz)) == case


def test_all_that_can_be_drawn_is_drawn() -> None:
    cases = [case_of(seed) for seed in range(2000)]
    steps = [step for case in cases for step in case.steps]
    assert {g.kind for step in steps for g in step.grads} == set(fuzz.tensors.KINDS)
    assert {g.layout for step in steps for g in step.grads} == set(fuzz.tensors.LAYOUTS)
    assert {event[0] for step in steps for event in step.events} == {
        "save", "deepcopy", "telemetry", "averaged", "set", "add", "freeze", "thaw",
    }  # fmt: skip
    assert {case.optimizer for case in cases} == set(fuzz.draw.OPTIMIZERS)
    relations = {twin.relation for case in cases[:200] for twin in twins_of(case)}
    assert len(relations) == len(fuzz.case.TWINS)


# Each invariant can fail -------------------------------------------------------------------------
#
# An optimizer is spoiled by something that is done after each of its steps, and a case that has
# what an invariant is about must show it. The same cases pass as long as nothing is spoiled.

Params = list[Tensor]


def params_of(optimizer: BaseOptimizer) -> Params:
    return [p for group in optimizer.param_groups for p in group["params"]]


def write_to_gradients(optimizer: BaseOptimizer) -> None:
    for p in params_of(optimizer):
        if p.grad is not None:
            p.grad.neg_()


def put_nan_into_weights(optimizer: BaseOptimizer) -> None:
    for p in params_of(optimizer):
        p.detach().fill_(torch.nan)


def put_infinity_into_state(optimizer: BaseOptimizer) -> None:
    for p in params_of(optimizer):
        if optimizer.state.get(p):
            optimizer.state[p]["exp_avg"].fill_(torch.inf)


def move_weights(optimizer: BaseOptimizer) -> None:
    for p in params_of(optimizer):
        p.detach().add_(0.25)


def forget_momentum(optimizer: BaseOptimizer) -> None:
    for p in params_of(optimizer):
        if optimizer.state.get(p):
            optimizer.state[p]["exp_avg"].mul_(0.5)


def count_a_skip(optimizer: BaseOptimizer) -> None:
    optimizer._skips.add(["a name"])


def move_a_little_if_foreach(optimizer: BaseOptimizer) -> None:
    if optimizer.param_groups[0]["foreach"] is not False:
        params_of(optimizer)[0].detach().add_(1e-7)


def move_if_maximize(optimizer: BaseOptimizer) -> None:
    if optimizer.param_groups[0]["maximize"]:
        move_weights(optimizer)


def move_if_a_gradient_is_bad(optimizer: BaseOptimizer) -> None:
    params = params_of(optimizer)
    if any(p.grad is not None and not p.grad.isfinite().all() for p in params):
        params[-1].detach().add_(0.25)


class Remembers:
    """Moves weights by a number that no checkpoint has: how many steps this object has seen."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}

    def __call__(self, optimizer: BaseOptimizer) -> None:
        count = self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        params_of(optimizer)[0].detach().add_(count / 64)


NORMAL = Step((Grad(),), seed=1)
TWO = (Param((3, 3), torch.float64, seed=1), Param((3, 3), torch.float64, seed=2))
CALM = (Group({"sides": "short"}),)


def spoiled(name: str, spoil: Callable[[BaseOptimizer], None], invariant: str, **case: Any) -> Any:
    return pytest.param(spoil, invariant, Case(name, **case), id=f"{invariant}, {name}")


def one(*kinds: str, **event: Any) -> tuple[Step, ...]:
    return tuple(
        Step((Grad(kind),), seed=i, **(event if i else {})) for i, kind in enumerate(kinds)
    )


SPOILED = [
    spoiled("muon", write_to_gradients, "gradients untouched", steps=one("normal")),
    spoiled("muon", put_nan_into_weights, "finite in, finite out", steps=one("normal")),
    spoiled("adamw", put_infinity_into_state, "finite in, finite out", steps=one("normal")),
    spoiled("muon", move_weights, "no gradient, no move", steps=one("none")),
    spoiled("muon", forget_momentum, "no gradient, no move", steps=one("normal", "none")),
    spoiled("muon", move_weights, "not finite, no change", steps=one("nan")),
    spoiled("shampoo", forget_momentum, "not finite, no change", steps=one("normal", "inf")),
    spoiled("muon", count_a_skip, "skips counted", steps=one("normal")),
    spoiled(
        "muon", move_weights, "lr 0, no move", groups=(Group({"lr": 0.0}),), steps=one("normal")
    ),
    spoiled("muon", move_weights, "a zero gradient rests", steps=one("zero")),
    spoiled(
        "muon",
        move_weights,
        "an error changes nothing",
        groups=(Group({"nonfinite": "raise"}),),
        steps=one("nan"),
    ),
    spoiled(
        "muon",
        move_a_little_if_foreach,
        "batched as one by one",
        params=TWO,
        groups=CALM,
        steps=(Step((Grad(), Grad())),),
        twins=("one-by-one",),
    ),
    spoiled("lion", move_if_maximize, "maximize mirrors", steps=(NORMAL,), twins=("mirror",)),
    spoiled(
        "lion",
        move_if_a_gradient_is_bad,
        "skipped as if absent",
        params=TWO,
        steps=(Step((Grad("nan"), Grad())),),
        twins=("spared",),
    ),
    spoiled(
        "adamw",
        Remembers(),
        "reloaded, the same bits",
        steps=one("normal", "normal", events=(("save",),)),
    ),
    spoiled(
        "adamw",
        Remembers(),
        "deepcopied, the same bits",
        steps=one("normal", "normal", events=(("deepcopy",),)),
    ),
]


def after_each_step(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Subject], None]) -> None:
    step = Subject.step

    def spoiled_step(self: Subject, grads: list[Tensor | None]) -> None:
        try:
            step(self, grads)
        finally:
            spoil(self)

    monkeypatch.setattr(Subject, "step", spoiled_step)


@pytest.mark.parametrize(("spoil", "invariant", "case"), SPOILED)
def test_each_invariant_can_fail(
    spoil: Callable[[BaseOptimizer], None],
    invariant: str,
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fault_of(case) is None
    after_each_step(monkeypatch, lambda subject: spoil(subject.optimizer))
    fault = fault_of(case)
    assert fault is not None
    assert fault.invariant == invariant


def test_a_path_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(
        "muon",
        params=TWO,
        groups=CALM,
        steps=(Step((Grad(), Grad())),),
        twins=("other-path",),
    )
    assert comparable(case)
    assert fault_of(case) is None

    def spoil(subject: Subject) -> None:
        if subject.settings["path"] == "device":
            move_weights(subject.optimizer)

    after_each_step(monkeypatch, spoil)
    fault = fault_of(case)
    assert fault is not None
    assert fault.invariant == "both paths agree"


def test_telemetry_that_is_not_finite_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("muon", steps=(NORMAL,))
    assert fault_of(case) is None
    monkeypatch.setattr(
        BaseOptimizer, "telemetry", lambda self: {"weight": {"msign_error": torch.nan}}
    )
    assert fault_of(case).invariant == "telemetry"
    monkeypatch.setattr(
        BaseOptimizer, "telemetry", lambda self: {"weight": {"update_ratio": torch.inf}}
    )
    assert fault_of(case) is None


def test_an_error_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(subject: Subject) -> None:
        raise ZeroDivisionError("in a step")

    after_each_step(monkeypatch, spoil)
    assert fault_of(Case("muon", steps=(NORMAL,))).invariant == "no ZeroDivisionError"


def test_averages_that_stay_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("splus", steps=one("normal", "normal", events=(("averaged",),)))
    assert fault_of(case) is None

    @contextmanager
    def averaged(optimizer: BaseOptimizer) -> Iterator[None]:
        yield
        move_weights(optimizer)

    monkeypatch.setattr(do.SPlus, "averaged", averaged)
    assert fault_of(case).invariant == "averaged weights"


# Shrinking ---------------------------------------------------------------------------------------


def test_a_fault_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(subject: Subject) -> None:
        for p in subject.params:
            if p.grad is not None and p.grad.isnan().any():
                raise ZeroDivisionError("in a step")

    after_each_step(monkeypatch, spoil)
    found = (case_of(seed) for seed in range(1000))
    case = next(
        case for case in found if len(case.steps) > 2 and "ZeroDivision" in str(fault_of(case))
    )
    small = shrunk(case, "no ZeroDivisionError")
    assert fault_of(small).invariant == "no ZeroDivisionError"
    (kind,) = [g.kind for step in small.steps for g in step.grads]
    assert kind in ("nan", "zero-rows")  # 0 times an infinite scale is one, too
    assert small.groups == (Group(),)
    assert not small.twins
