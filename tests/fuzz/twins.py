"""Optimizers that take the same steps in another way, and must arrive where the first one does.

Copies through a file and copies in memory do the same arithmetic: they agree bit for bit. So do a
run that climbs with negated gradients, and on the host's path one whose bad gradients are absent.
Batched work and work one by one, and the two paths, agree to rounding, which `comparable` is about.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.case import Case, Event
from fuzz.invariants import Fault
from fuzz.subject import Subject
from fuzz.tensors import NOT_FINITE

# In float64, on weights and updates of order one. A step rounds some hundred times, 1e-14; the
# matrix sign lifts what it finds by up to 3.4445⁵ ≈ 500 (Polar Express: 1000); an eigenbasis moves
# by the rounding over the gap of its eigenvalues, of which one in 10⁵ has less than 1e-3 of the
# norm; and the rate is 1e-2 at the most: 1e-14 · 10³ · 10³ · 1e-2. Where one by one is the same
# arithmetic in another loop, the largest of 12,000 differences was 4e-16.
TOLERANCE = 1e-10

RELOADED = "reloaded, the same bits"


@dataclass
class Twin:
    """A subject that follows another, and how closely."""

    relation: str
    subject: Subject
    tolerance: float = 0.0
    negated: bool = False
    spared: bool = False  # from gradients that are not finite: they are absent

    def follow(self, grads: list[Tensor | None], main: Subject, took: bool) -> None:
        """Take the step that `main` took, or raised an error at, and compare."""
        if self.negated:
            grads = [None if g is None else -g for g in grads]
        if self.spared:
            grads = [None if g is None or not g.isfinite().all() else g for g in grads]
        try:
            self.subject.step(grads)
        except FloatingPointError:
            if took:
                raise Fault(self.relation, "only the twin raised an error") from None
        self._compare(main)

    def _compare(self, main: Subject) -> None:
        for i, (p, q) in enumerate(zip(main.params, self.subject.params, strict=True)):
            if self.tolerance:
                apart = float((p.detach() - q.detach()).abs().amax())
                if apart > self.tolerance:
                    raise Fault(self.relation, f"parameter {i} is {apart:.1e} off")
                continue
            ours, theirs = main.state(i), self.subject.state(i)
            for key in ("weight", *(ours if theirs else ())):
                x, y = (p.detach(), q.detach()) if key == "weight" else (ours[key], theirs[key])
                if x.dtype != y.dtype or not torch.equal(x, y):
                    raise Fault(self.relation, f"{key} of parameter {i} differs")


def born(event: Event, main: Subject) -> list[Twin]:
    """The twin that an event brings.

    A copy through a file does not know of gradients that were too large for their units: on the
    device's path the host hears of them a step late, and raises the units then.
    """
    if event == ("save",) and not main.unsettled:
        return [Twin(RELOADED, main.reloaded())]
    if event == ("deepcopy",):
        return [Twin("deepcopied, the same bits", main.deepcopied())]
    return []


def twins_of(case: Case) -> list[Twin]:
    """The twins that are there from the start, where they can be compared."""
    found = []
    if "one-by-one" in case.twins and comparable(case):
        one = Subject(case, foreach=False)
        found.append(Twin("batched as one by one", one, TOLERANCE))
    if "other-path" in case.twins and comparable(case) and not _has(case, NOT_FINITE):
        # after a gradient that is not finite the clocks of the two paths differ
        other = Subject(case, path="device" if case.path == "host" else "host")
        found.append(Twin("both paths agree", other, TOLERANCE))
    if "mirror" in case.twins and all(g.layout == "plain" for s in case.steps for g in s.grads):
        # -g of another layout may be laid out anew, and then products round in another order
        found.append(Twin("maximize mirrors", Subject(case, mirrored=True), negated=True))
    if "spared" in case.twins and _can_be_spared(case):
        found.append(Twin("skipped as if absent", Subject(case), spared=True))
    return found


def comparable(case: Case) -> bool:
    """Whether rounding stays rounding in a case, in another order of the same arithmetic.

    It does not in float32 (a tolerance would hide what is looked for), with gradients that have
    directions of rounding alone (SOAP and the sign methods divide those by themselves, and the
    matrix sign lifts them), and with products in half precision.
    """
    for group in case.groups:
        options = group.options
        if options.get("eps", 1e-8) < 1e-8:
            return False
        if options.get("state_dtype") or options.get("msign_dtype"):
            return False
    grads = [g for step in case.steps for g in step.grads]
    normal = all(g.kind == "none" or g.kind in NOT_FINITE or g.kind == "normal" for g in grads)
    plain = all(g.scale == 1 and g.dtype is None for g in grads)
    return normal and plain and all(p.dtype == torch.float64 for p in case.params)


def _can_be_spared(case: Case) -> bool:
    """On the host's path a bad gradient is as good as none, unless something waits for it.

    A group that joins between it and the first good one gives the parameter another phase.
    """
    raises = any(group.options.get("nonfinite") == "raise" for group in case.groups)
    late = any(event[0] == "add" for step in case.steps for event in step.events)
    return case.path == "host" and not raises and not late and _has(case, NOT_FINITE)


def _has(case: Case, kinds: object) -> bool:
    return any(g.kind in kinds for step in case.steps for g in step.grads)  # type: ignore[operator]
