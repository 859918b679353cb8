"""Whole training steps, forward and backward included, of the laboratory's GPT."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import deva_optim as do

from ..errors import UsageError
from ..models.gpt import GPT, SIZES
from ..tables import aligned
from .machine import summary
from .step import Check
from .timing import Say, option, quartiles

BASELINE: Final = "AdamW"
OPTIMIZERS: Final[dict[str, Callable[[nn.Module], Optimizer]]] = {
    BASELINE: lambda model: torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1),
    "Muon": lambda model: do.Muon(model, 1e-3, weight_decay=0.1, nesterov=False),
    "DeVA short": lambda model: do.DeVA(model, 1e-3, sides="short"),
    "DeVA both": lambda model: do.DeVA(model, 1e-3, sides="both"),
    "SOAP": lambda model: do.SOAP(model, 1e-3),
}
WARMUP: Final = 4  # steps: layers that start at zero keep others without a gradient and a basis
BOUND: Final = 1.15  # of DeVA's whole step over AdamW's, at the default settings


@dataclass(frozen=True)
class TrainingSettings:
    """What is trained, a size of GPT on so many sequences of its context a step, and how often."""

    size: str = option("small", "of the GPT", choices=SIZES)
    vocabulary: int = option(4096, "how many tokens there are")
    batch: int = option(64, "sequences a step")
    seed: int = option(0, "of weights and tokens")
    rounds: int = option(20, "how often every optimizer takes a step")

    def __post_init__(self) -> None:
        if self.rounds < 2:
            raise UsageError(f"--rounds must be at least 2 to have a spread, got {self.rounds}")


def run(settings: TrainingSettings, show: Say = print) -> bool:
    """Measure and show a table; returns whether the requirement holds."""
    torch.manual_seed(settings.seed)
    size = SIZES[settings.size]
    tokens = torch.randint(settings.vocabulary, (settings.batch, size.context + 1))
    trained = {}
    for name, build in OPTIMIZERS.items():
        model = GPT(size, settings.vocabulary)
        trained[name] = model, build(model)
        for _ in range(WARMUP):
            step(*trained[name], tokens)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trained}
    for _ in range(settings.rounds):  # they take turns, a step each
        for name, pair in trained.items():
            seconds[name].append(step(*pair, tokens))
    show(summary("cpu"))
    show(
        f"GPT of width {size.width}, {size.layers} layers, "
        f"{sum(p.numel() for p in model.parameters()):,} parameters; "
        f"{settings.batch * size.context:,} tokens a step, {settings.rounds} rounds\n"
    )
    ratios, rows = {}, []
    for name, times in seconds.items():
        whole, part = (median(column) for column in zip(*times, strict=True))
        pairs = zip(times, seconds[BASELINE], strict=True)
        values = [mine / base for (mine, _), (base, _) in pairs]
        ratios[name] = fmean(values)  # a mean, for the refreshes to count
        low, high = quartiles(values)
        times_of = f"{1e3 * whole:.0f}", f"{1e3 * part:.1f}"
        rows.append((name, *times_of, f"{ratios[name]:.3f}", f"{low:.3f}–{high:.3f}"))
    show(aligned(("optimizer", "step, ms", "its part", f"/ {BASELINE}", "quartiles"), rows))
    checks = [
        Check(10, f"time of a training step, {name} / {BASELINE}", ratios[name], "≤", BOUND)
        for name in ("DeVA short", "DeVA both")
    ]
    show("\n" + "\n".join(map(str, checks)))
    return all(check.holds for check in checks)


def step(model: nn.Module, optimizer: Optimizer, tokens: Tensor) -> tuple[float, float]:
    """Train on a batch; returns the seconds of all of it and of the optimizer's part."""
    start = time.perf_counter()
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    middle = time.perf_counter()
    optimizer.step()
    end = time.perf_counter()
    return end - start, end - middle
