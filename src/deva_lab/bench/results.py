"""What was measured on one set of shapes, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .flops import Flops, Profile, count_flops, peak_flops, profiled
from .machine import cpu_times, others_share
from .memory import available_bytes, peak_bytes, state_bytes
from .settings import Settings, SettingsError
from .shapes import Shape, ShapeSet
from .subjects import Kind, Subject
from .timing import Case, Timing, make_case, measure, random_gradients, ratios

ONE = "/one"  # ends the name of a case on the shapes that a set is compared with


@dataclass(frozen=True)
class Result:
    """A subject on a set of shapes.

    Attributes:
        weight_bytes: Of its parameters.
        state_bytes: Of its state, measured.
        formula, formula_bytes: The same by formula.
        peak_bytes: The most that a step of a refresh period allocates for a while.
        flops: Of a step, averaged over a refresh period.
    """

    name: str
    kind: Kind
    refreshes: bool
    timing: Timing
    weight_bytes: int
    state_bytes: int
    formula: str
    formula_bytes: int
    peak_bytes: int | None = None
    flops: Flops | None = None
    profile: Profile | None = None

    @property
    def temporary(self) -> float | None:
        """The peak of temporary memory, in multiples of the weights."""
        return None if self.peak_bytes is None else self.peak_bytes / self.weight_bytes

    @property
    def products_share(self) -> float | None:
        """The share of the time that is spent in matrix products."""
        return None if self.profile is None else self.profile.products / self.profile.seconds

    @property
    def rate(self) -> float | None:
        """FLOP/s of the mean step."""
        return None if self.flops is None else self.flops.total / self.timing.mean

    def products_rate(self, steps: int) -> float | None:
        """FLOP/s inside the matrix products of a profile of so many steps."""
        if self.flops is None or self.profile is None or not self.flops.products:
            return None
        return self.flops.products * steps / self.profile.products


@dataclass(frozen=True)
class SetResult:
    """All subjects on one set of shapes.

    Attributes:
        left_out: Subject → why it was not measured.
        peak: The machine's FLOP/s in a large product, the best before and after.
        others: The share of the CPUs that other programs took during the timing; None where the
            system does not say.
    """

    shapes: ShapeSet
    results: dict[str, Result]
    left_out: dict[str, str]
    peak: float
    others: float | None = None

    def ratios(self, name: str, baseline: str) -> list[float] | None:
        """The ratios of two subjects round by round, if both were measured."""
        if name not in self.results or baseline not in self.results:
            return None
        return ratios(self.results[name].timing, self.results[baseline].timing)


def measure_set(
    shapes: ShapeSet, subjects: Iterable[Subject], settings: Settings, say: Callable[[str], None]
) -> SetResult:
    """Measure all subjects that can be measured on a set of shapes."""
    subjects = list(subjects)
    left_out = {s.name: s.missing for s in subjects if s.missing is not None}
    present = [s for s in subjects if s.name not in left_out]
    check_memory(shapes, present, settings)
    peak = peak_flops(settings.peak_size, settings.device)
    cases = _warm_cases(shapes, present, settings, left_out, say)
    before = cpu_times()
    timings = measure(cases, settings, say) if cases else {}
    others = others_share(before, cpu_times())
    results = {c.name: _result(c, timings[c.name], settings, say) for c in cases}
    peak = max(peak, peak_flops(settings.peak_size, settings.device))
    say("")
    return SetResult(shapes, results, left_out, peak, others)


def check_memory(shapes: ShapeSet, subjects: Iterable[Subject], settings: Settings) -> None:
    """Raise an error if the weights and states of all subjects at once will not fit."""
    weights, free = 4 * shapes.numel, available_bytes()
    states = [weights + s.state.bytes(shapes.shapes) for s in subjects]
    need = sum(states) + (settings.gradients + 2) * weights
    if settings.device == "cpu" and free is not None and need > free:
        raise SettingsError(
            f"{shapes.name} needs {need / 1e9:.0f} GB for {len(states)} subjects at once and "
            f"{free / 1e9:.0f} GB are free; choose some with --only, or fewer blocks: "
            f"{shapes.name.partition(':')[0]}:1"
        )


def _warm_cases(
    shapes: ShapeSet,
    subjects: list[Subject],
    settings: Settings,
    left_out: dict[str, str],
    say: Callable[[str], None],
) -> list[Case]:
    """The cases that work, past their first steps; a peer that fails is left out."""
    given: list[tuple[str, tuple[Shape, ...]]] = [("", shapes.shapes), (ONE, shapes.against)]
    sets = [(end, random_gradients(members, settings)) for end, members in given if members]
    cases = []
    for subject in subjects:
        for end, gradients in sets:
            say(f"warming up {subject.name}{end}")
            try:
                case = make_case(subject.name + end, subject, gradients, settings)
                for _ in range(settings.warmup):
                    case.step()
            except Exception as error:  # other people's code may fail in any way
                if subject.kind != "peer":
                    raise
                left_out[subject.name + end] = f"{type(error).__name__}: {error}".split("\n")[0]
                continue
            cases.append(case)
    return cases


def _result(case: Case, timing: Timing, settings: Settings, say: Callable[[str], None]) -> Result:
    say(f"counting and profiling {case.name}")
    return Result(
        case.name,
        case.subject.kind,
        case.subject.refreshes,
        timing,
        weight_bytes=sum(p.nbytes for p in case.params),
        state_bytes=state_bytes(case.optimizer),
        formula=case.subject.state.formula,
        formula_bytes=case.subject.state.bytes(case.shapes),
        **(_counted(case, settings) if settings.profile else {}),
    )


def _counted(case: Case, settings: Settings) -> dict[str, Any]:
    """What takes a refresh period of steps that are not timed."""
    period = settings.refresh_every
    flops = count_flops(lambda: [case.step() for _ in range(period)])
    return {
        "peak_bytes": peak_bytes(case.step, period, settings.device),
        "flops": Flops(flops.products / period, flops.decompositions / period),
        "profile": profiled(case.step, period, settings.device),
    }
