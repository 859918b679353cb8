"""Runs a case: its events and steps, with every invariant looked at after each step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from fuzz import invariants
from fuzz.case import Case, Event
from fuzz.invariants import Before, Fault
from fuzz.subject import Subject, small_pieces
from fuzz.tensors import gradient
from fuzz.twins import RELOADED, born, twins_of


def run(case: Case) -> None:
    """Raise a Fault if an invariant does not hold in this case."""
    with small_pieces(case.small), _warnings_are_errors():
        _run(case)


def fault_of(case: Case) -> Fault | None:
    """What does not hold in a case, if anything; an error of any kind is a fault, too."""
    try:
        run(case)
    except Fault as fault:
        return fault
    except Exception as error:
        return Fault(f"no {type(error).__name__}", str(error).splitlines()[0] if str(error) else "")
    return None


def _run(case: Case) -> None:
    main = Subject(case)
    twins = twins_of(case)
    for step in case.steps:
        for event in step.events:
            twins += born(event, main)
            for subject in (main, *(twin.subject for twin in twins)):
                _apply(event, subject)
            _ask(event, main)
        for n in range(step.repeat):
            seed = step.seed + n
            grads = [gradient(g, p, seed) for g, p in zip(step.grads, case.params, strict=True)]
            grads = [g if main.takes_part(i) else None for i, g in enumerate(grads)]
            took = _step(main, grads)
            if main.unsettled:
                twins = [twin for twin in twins if twin.relation != RELOADED]
            for twin in twins:
                twin.follow(grads, main, took)
    invariants.telemetry_is_finite(main)


def _apply(event: Event, subject: Subject) -> None:
    """What an event does to the optimizer and to all of its twins."""
    what, *args = event
    if what == "set":
        subject.change(*args)
    elif what == "add":
        subject.join(*args)
    elif what == "freeze":
        subject.freeze(*args)
    elif what == "thaw":
        subject.thaw(*args)


def _ask(event: Event, main: Subject) -> None:
    """What is asked of the optimizer alone: its twins show that the answer changes nothing."""
    if event == ("telemetry",):
        invariants.telemetry_is_finite(main)
    elif event == ("averaged",):
        invariants.averages_come_and_go(main)


def _step(main: Subject, grads: list[Tensor | None]) -> bool:
    """A step, and all that holds after it; returns whether it was taken, or raised an error."""
    before = invariants.look(main, grads)
    count = main.optimizer.skipped
    main.unsettled |= any(b.skipped is None and b.grad is not None for b in before)
    try:
        main.step(grads)
    except FloatingPointError:
        took = False
    else:
        took = True
    invariants.gradients_are_untouched(main, before)
    _raised_if_asked(before, took)
    if not took:
        invariants.nothing_changed(main, before)
        return False
    invariants.everything_is_finite(main)
    invariants.without_gradient_nothing_moves(main, before)
    invariants.skipped_steps_change_nothing(main, before)
    invariants.skips_are_counted(main, before, count)
    invariants.without_rate_nothing_moves(main, before)
    invariants.zero_matrices_rest(main, before)
    return True


def _raised_if_asked(before: list[Before], took: bool) -> None:
    """nonfinite='raise' raises where a gradient is not finite, and nowhere else."""
    asked = [
        b.skipped
        for b in before
        if b.grad is not None and b.reading and b.reading.group["nonfinite"] == "raise"
    ]
    if took and True in asked:
        raise Fault("raises if asked", "a gradient is not finite and there was no error")
    if not took and all(skipped is False for skipped in asked):
        raise Fault("raises if asked", "an error, and no gradient that it is about")


@contextmanager
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the gradient of .* was not finite", RuntimeWarning)
        warnings.filterwarnings("ignore", "the parameters have no names", UserWarning)
        yield
