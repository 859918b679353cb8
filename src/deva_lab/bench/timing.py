"""Time of a step: every subject in turn, round after round, so that all share the same weather."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from .flops import wait
from .settings import Settings
from .shapes import Shape, matrices
from .subjects import Subject


@dataclass
class Case:
    """A subject with parameters of its own and the gradients that all of them share.

    Attributes:
        gradients: Sets of gradients that take turns, a tensor for each parameter.
        taken: How many steps have been taken.
        first: The seconds of the first of them.
    """

    name: str
    subject: Subject
    shapes: tuple[Shape, ...]
    params: list[Tensor]
    gradients: list[list[Tensor]]
    optimizer: Optimizer
    device: str
    taken: int = 0
    first: float = 0.0

    def step(self) -> float:
        """Take a step; returns its seconds. A peer may drop its gradients: they are set anew."""
        for p, G in zip(self.params, self.gradients[self.taken % len(self.gradients)], strict=True):
            p.grad = G
        wait(self.device)
        start = time.perf_counter()
        self.optimizer.step()
        wait(self.device)
        seconds = time.perf_counter() - start
        if not self.taken:
            self.first = seconds
        self.taken += 1
        return seconds


def random_gradients(shapes: Sequence[Shape], settings: Settings) -> list[list[Tensor]]:
    """Sets of random gradients for parameters of these shapes."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)

    def draw(shape: Shape) -> Tensor:
        return torch.randn(shape, generator=generator, device=settings.device)

    return [[draw(shape) for shape in shapes] for _ in range(settings.gradients)]


def make_case(
    name: str, subject: Subject, gradients: list[list[Tensor]], settings: Settings
) -> Case:
    """A subject with weights for these gradients, which are shared and not copied."""
    if subject.matrices_only:
        gradients = [[M for G in given for M in _matrices_of(G)] for given in gradients]
    params = [torch.zeros_like(G).add_(0.02).requires_grad_() for G in gradients[0]]
    shapes = tuple(tuple(p.shape) for p in params)
    optimizer = subject.build(params, settings)
    return Case(name, subject, shapes, params, gradients, optimizer, settings.device)


def _matrices_of(G: Tensor) -> list[Tensor]:
    """The matrices of a parameter, as views."""
    n, m = matrices(tuple(G.shape))[0]
    return list(G.view(-1, n, m).unbind())


@dataclass(frozen=True)
class Timing:
    """Seconds of every step, round by round, and of the very first, which makes the state."""

    rounds: tuple[tuple[float, ...], ...]
    first: float = 0.0

    @property
    def steps(self) -> list[float]:
        """All of them."""
        return [seconds for turn in self.rounds for seconds in turn]

    @property
    def median(self) -> float:
        """Of all steps."""
        return statistics.median(self.steps)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third, of all steps."""
        return quartiles(self.steps)

    @property
    def means(self) -> list[float]:
        """The mean step of each round: the refreshes are in it."""
        return [statistics.fmean(turn) for turn in self.rounds]

    @property
    def mean(self) -> float:
        """The median over the rounds of the mean step."""
        return statistics.median(self.means)

    @property
    def worst(self) -> float:
        """The median over the rounds of the slowest step: a hiccup of the machine is not in it."""
        return statistics.median(max(turn) for turn in self.rounds)

    @property
    def phases(self) -> list[float]:
        """The median over the rounds of the first step, of the second, and so on."""
        return [statistics.median(turns) for turns in zip(*self.rounds, strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def ratios(timing: Timing, baseline: Timing) -> list[float]:
    """The mean step over that of the baseline, round by round."""
    return [a / b for a, b in zip(timing.means, baseline.means, strict=True)]


def measure(
    cases: Sequence[Case], settings: Settings, say: Callable[[str], None]
) -> dict[str, Timing]:
    """Time all cases, interleaved; the one that begins changes from round to round."""
    rounds: dict[str, list[tuple[float, ...]]] = {case.name: [] for case in cases}
    for i in range(settings.rounds):
        gc.collect()
        first = i % len(cases)
        for case in (*cases[first:], *cases[:first]):
            say(f"round {i + 1} of {settings.rounds}: {case.name}")
            with _without_collection():
                rounds[case.name].append(tuple(case.step() for _ in range(settings.steps)))
    return {case.name: Timing(tuple(rounds[case.name]), case.first) for case in cases}


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the collector of garbage from running while it lasts."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
