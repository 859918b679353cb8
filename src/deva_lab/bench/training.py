"""Compare whole training steps, forward and backward included, of the laboratory's GPT.

    deva bench training                    16,384 tokens a step, as the requirement says
    deva bench training --size medium --batch 16 --rounds 40

The optimizers take turns, a step each, and ratios are taken within rounds. What an optimizer adds
to a step matters the less, the more tokens the step has.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import deva_optim as do

from ..models.gpt import GPT, SIZES
from ..render import aligned
from .checks import Check
from .machine import machine, summary
from .timing import quartiles

BASELINE: Final = "AdamW"
OPTIMIZERS: Final[dict[str, Callable[[nn.Module], Optimizer]]] = {
    BASELINE: lambda model: torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1),
    "Muon": lambda model: do.Muon(model, 1e-3, weight_decay=0.1, nesterov=False),
    "DeVA short": lambda model: do.DeVA(model, 1e-3, sides="short"),
    "DeVA both": lambda model: do.DeVA(model, 1e-3, sides="both"),
    "SOAP": lambda model: do.SOAP(model, 1e-3),
}
WARMUP: Final = (
    4  # layers that start at zero keep others without a gradient, and so without a basis
)
BOUND: Final = 1.15  # of DeVA's whole step over AdamW's, at the default settings


@dataclass(frozen=True)
class TrainingSettings:
    """What is trained: a size of GPT, and how many sequences of its context a step has."""

    size: str = "small"
    vocabulary: int = 4096
    batch: int = 64
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch * SIZES[self.size].context


@dataclass
class Trainee:
    """A model and its optimizer."""

    model: nn.Module
    optimizer: Optimizer

    def step(self, tokens: Tensor) -> tuple[float, float]:
        """Train on a batch; returns the seconds of all of it and of the optimizer's part."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        logits = self.model(tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        middle = time.perf_counter()
        self.optimizer.step()
        end = time.perf_counter()
        return end - start, end - middle


def run(settings: TrainingSettings, rounds: int, show: Callable[[str], None] = print) -> bool:
    """Measure and show a table; returns whether the requirement holds."""
    torch.manual_seed(settings.seed)
    size = SIZES[settings.size]
    tokens = torch.randint(settings.vocabulary, (settings.batch, size.context + 1))
    trainees = {}
    for name, build in OPTIMIZERS.items():
        model = GPT(size, settings.vocabulary)
        trainees[name] = Trainee(model, build(model))
        for _ in range(WARMUP):
            trainees[name].step(tokens)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trainees}
    for _ in range(rounds):
        for name, trainee in trainees.items():
            seconds[name].append(trainee.step(tokens))
    show(summary(machine("cpu")))
    count = sum(p.numel() for p in trainees[BASELINE].model.parameters())
    show(
        f"GPT of width {size.width}, {size.layers} layers, {count:,} parameters; "
        f"{settings.tokens:,} tokens a step, {rounds} rounds\n"
    )
    ratios, rows = {}, []
    for name, times in seconds.items():
        whole, part = (statistics.median(column) for column in zip(*times, strict=True))
        pairs = zip(times, seconds[BASELINE], strict=True)
        values = [mine / base for (mine, _), (base, _) in pairs]
        ratios[name] = statistics.fmean(values)  # a mean, for the refreshes to count
        low, high = quartiles(values)
        times_of = f"{1e3 * whole:.0f}", f"{1e3 * part:.1f}"
        rows.append((name, *times_of, f"{ratios[name]:.3f}", f"{low:.3f}–{high:.3f}"))
    show(aligned(("optimizer", "step, ms", "its part", f"/ {BASELINE}", "quartiles"), rows))
    checks = [
        Check(10, f"time of a training step, {name} / {BASELINE}", ratios[name], "≤", BOUND)
        for name in ratios
        if name.startswith("DeVA")
    ]
    show("\n" + "\n".join(map(str, checks)))
    return all(check.holds for check in checks)


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options and run; returns the exit code."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("deva bench training", None, __doc__, formatter_class=layout)
    default = TrainingSettings()
    parser.add_argument("--size", choices=SIZES, default=default.size, help="(%(default)s)")
    for name in ("vocabulary", "batch", "seed"):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=int, default=value, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="(%(default)s)")
    options = vars(parser.parse_args(argv))
    rounds = options.pop("rounds")
    if rounds < 2:
        parser.error(f"--rounds must be at least 2 to have a spread, got {rounds}")
    run(TrainingSettings(**options), rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
