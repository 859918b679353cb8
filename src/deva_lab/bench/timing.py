"""Time of a step: subjects take turns, so that a busy moment of the machine slows all of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError, check_least
from ..machine import available_bytes, peak_flops, wait
from .counting import count_flops, peak_bytes, products_seconds, state_bytes
from .subjects import Shape, ShapeSet, Subject, matrices

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What is measured, and how often; printed and saved with the results.

    `options.ini` says what the other numbers are.

    Attributes:
        shapes: Names of shape sets, see `subjects.SETS`.
        only: Names of subjects or globs; see `subjects.SUBJECTS`.
        compile: The backend by which each of ours is measured once more, compiled; None is none.
        profile: Whether to count FLOPs and memory and to profile, after the timing.
    """

    shapes: tuple[str, ...] = ("gpt-256", "gpt-768", "tiny", "tiny-batch")
    only: tuple[str, ...] = ("*",)
    baseline: str = "muon"
    rounds: int = 7
    steps: int = 10
    warmup: int = 21
    refresh_every: int = 10
    gradients: int = 3
    compile: str | None = None
    profile: bool = True
    threads: int = 0
    device: str = "cpu"
    seed: int = 0
    peak_size: int = 2048

    def __post_init__(self) -> None:
        check_least(self, steps=1, warmup=1, refresh_every=1, gradients=1, threads=0, rounds=2)
        if self.steps % self.refresh_every:
            raise UsageError(
                f"steps must be a multiple of refresh_every ({self.refresh_every}), got "
                f"{self.steps}: every turn has to hold its share of the refreshes"
            )


class Case:
    """A subject with parameters of its own and the gradients that all of them share.

    Attributes:
        gradients: Sets of gradients that take turns, a tensor for each parameter.
        seconds: Of the steps so far.
    """

    def __init__(self, subject: Subject, gradients: list[list[Tensor]], settings: Settings) -> None:
        if subject.matrices_only:  # which are views
            gradients = [
                [M for G in given for M in G.view(-1, *matrices(tuple(G.shape))[0])]
                for given in gradients
            ]
        self.name, self.subject, self.gradients = subject.name, subject, gradients
        self.params = [torch.full_like(G, 0.02).requires_grad_() for G in gradients[0]]
        self.shapes = tuple(tuple(p.shape) for p in self.params)
        self.optimizer = subject.build(self.params, settings.refresh_every)
        self.device = settings.device
        self.seconds: list[float] = []

    def steps(self, count: int) -> list[float]:
        """Take so many steps; returns the seconds of each."""
        return [self.step() for _ in range(count)]

    def step(self) -> float:
        """Take a step; returns its seconds. A peer may drop its gradients: they are set anew."""
        gradients = self.gradients[len(self.seconds) % len(self.gradients)]
        for p, G in zip(self.params, gradients, strict=True):
            p.grad = G
        wait(self.device)
        start = time.perf_counter()
        self.optimizer.step()
        wait(self.device)
        self.seconds.append(time.perf_counter() - start)
        return self.seconds[-1]


def random_gradients(shapes: Sequence[Shape], settings: Settings) -> list[list[Tensor]]:
    """Sets of random gradients for parameters of these shapes."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    how: dict[str, Any] = {"generator": generator, "device": settings.device}
    return [[torch.randn(shape, **how) for shape in shapes] for _ in range(settings.gradients)]


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


@dataclass(frozen=True)
class Result:
    """A subject on a set of shapes, in seconds, bytes and FLOPs; None is what was not counted.

    Attributes:
        rounds: The seconds of every step, round by round.
        first: Those of the very first, which makes the state.
        weight_bytes: Of its parameters.
        state_bytes: Of its state, measured.
        formula, formula_bytes: The same by formula.
        peak_bytes: The most that a step of a refresh period allocates for a while.
        flops: Of a step, averaged over a refresh period.
        products_share: The share of the time that is spent in matrix products.
        products_rate: FLOP/s inside of them.
    """

    name: str
    kind: str
    rounds: tuple[tuple[float, ...], ...]
    first: float
    weight_bytes: int
    state_bytes: int
    formula: str
    formula_bytes: int
    peak_bytes: int | None = None
    flops: float | None = None
    products_share: float | None = None
    products_rate: float | None = None

    @property
    def steps(self) -> list[float]:
        """The seconds of all steps but the first ones."""
        return [seconds for turn in self.rounds for seconds in turn]

    @property
    def means(self) -> list[float]:
        """The mean step of each round: the refreshes are in it."""
        return [fmean(turn) for turn in self.rounds]

    @property
    def mean(self) -> float:
        """The median over the rounds of the mean step."""
        return median(self.means)

    @property
    def worst(self) -> float:
        """The median over the rounds of the slowest step: a single pause is not in it."""
        return median(max(turn) for turn in self.rounds)

    @property
    def temporary(self) -> float | None:
        """The peak of temporary memory, in multiples of the weights."""
        return None if self.peak_bytes is None else self.peak_bytes / self.weight_bytes


@dataclass(frozen=True)
class SetResult:
    """All subjects on one set of shapes.

    Attributes:
        left_out: What could not be measured, and why.
        peak: FLOP/s of the machine in a large product, the best before and after.
    """

    shapes: ShapeSet
    results: dict[str, Result]
    left_out: dict[str, str]
    peak: float

    def ratios(self, name: str, baseline: str) -> list[float] | None:
        """The mean step of a subject over another's, round by round, if both were measured."""
        if name not in self.results or baseline not in self.results:
            return None
        pair = (self.results[each].means for each in (name, baseline))
        return [a / b for a, b in zip(*pair, strict=True)]

    def ratio(self, name: str, baseline: str) -> float | None:
        """The median of these ratios."""
        ratios = self.ratios(name, baseline)
        return None if ratios is None else median(ratios)


def measure_set(
    shapes: ShapeSet, subjects: Sequence[Subject], settings: Settings, say: Say
) -> SetResult:
    """Measure all subjects that can be measured on a set of shapes; a peer that fails is left out.

    All cases are timed in turn, round by round; the one that begins changes.
    """
    left_out = {s.name: s.missing for s in subjects if s.missing is not None}
    present = [s for s in subjects if s.name not in left_out]
    check_memory(shapes, present, settings)
    peak = peak_flops(settings.peak_size, settings.device)
    cases = _warm_cases(shapes, present, settings, left_out, say)
    rounds: dict[str, list[list[float]]] = {case.name: [] for case in cases}
    for i in range(settings.rounds):
        gc.collect()
        first = i % max(len(cases), 1)
        for case in (*cases[first:], *cases[:first]):
            say(f"round {i + 1} of {settings.rounds}: {case.name}")
            gc.disable()  # the collector would run in the steps of one or the other
            try:
                rounds[case.name].append(case.steps(settings.steps))
            finally:
                gc.enable()
    results = {}
    for case in cases:
        say(f"counting and profiling {case.name}")
        results[case.name] = _result(case, rounds[case.name], settings)
    peak = max(peak, peak_flops(settings.peak_size, settings.device))
    say("")
    return SetResult(shapes, results, left_out, peak)


def check_memory(shapes: ShapeSet, subjects: Sequence[Subject], settings: Settings) -> None:
    """Raise an error if the weights and states of all subjects at once will not fit."""
    weights, free = 4 * shapes.numel, available_bytes()
    states = sum(weights + s.state.bytes(shapes.shapes) for s in subjects)
    need = states + (settings.gradients + 2) * weights
    if settings.device == "cpu" and free is not None and need > free:
        raise UsageError(
            f"{shapes.name} needs {need / 1e9:.0f} GB for {len(subjects)} subjects at once and "
            f"{free / 1e9:.0f} GB are free; choose some with --only, or fewer blocks: "
            f"{shapes.name.partition(':')[0]}:1"
        )


def _warm_cases(
    shapes: ShapeSet,
    subjects: Sequence[Subject],
    settings: Settings,
    left_out: dict[str, str],
    say: Say,
) -> list[Case]:
    """The cases that work, past their first steps."""
    gradients = random_gradients(shapes.shapes, settings)
    cases = []
    for subject in subjects:
        say(f"warming up {subject.name}")
        try:
            case = Case(subject, gradients, settings)
            case.steps(settings.warmup)
            cases.append(case)
        except Exception as error:  # other people's code may fail in any way
            if subject.kind != "peer":
                raise
            left_out[subject.name] = f"{type(error).__name__}: {error}".split("\n")[0]
    return cases


def _result(case: Case, rounds: list[list[float]], settings: Settings) -> Result:
    """What a case comes to, after a refresh period of steps for each of what is counted."""
    counted: dict[str, Any] = {}
    if settings.profile:
        period, device = settings.refresh_every, settings.device
        flops = count_flops(lambda: case.steps(period))
        counted["flops"] = flops.total / period
        counted["peak_bytes"] = peak_bytes(case.step, period, device)
        products, seconds = products_seconds(case.step, period, device)
        counted["products_share"] = products / seconds
        counted["products_rate"] = flops.products / products if flops.products else None
    return Result(
        case.name,
        case.subject.kind,
        tuple(map(tuple, rounds)),
        case.seconds[0],
        weight_bytes=sum(p.nbytes for p in case.params),
        state_bytes=state_bytes(case.optimizer),
        formula=case.subject.state.formula,
        formula_bytes=case.subject.state.bytes(case.shapes),
        **counted,
    )
