"""Trains the same small GPT with DeVA, Muon, SOAP and AdamW, and prints how far each one got.

The text is the source of the standard library of the Python that runs this: nothing is downloaded.
All start from the same weights and see the same batches. Two minutes on two cores.
"""

from __future__ import annotations

import argparse
import difflib
import math
import platform
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, rms_norm, scaled_dot_product_attention
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from deva_optim import SOAP, AdamW, DeVA, Muon, param_groups

# Betas and weight decay are those of the paper's NanoGPT runs; each rate is the best of 4, 5.6, 8,
# 11 and 16e-3, by the validation loss of seed 0 at the default settings.
OPTIMIZERS: dict[str, tuple[Callable[[nn.Module, float], Optimizer], float]] = {
    "AdamW": (lambda m, lr: AdamW(param_groups(m), lr, (0.9, 0.99), weight_decay=0.1), 8e-3),
    "SOAP": (lambda m, lr: SOAP(param_groups(m), lr, weight_decay=0.1), 11e-3),
    "Muon": (lambda m, lr: Muon(param_groups(m), lr, weight_decay=0.1), 11e-3),
    "DeVA": (lambda m, lr: DeVA(m, lr, weight_decay=0.1), 8e-3),
}
BASELINE = "AdamW"


@dataclass(frozen=True)
class Settings:
    """Everything that a run depends on but its optimizer."""

    steps: int = 400
    seed: int = 0
    batch: int = 16  # sequences a step
    context: int = 128  # bytes a sequence
    layers: int = 3
    width: int = 96
    heads: int = 4
    decay: float = 0.5  # the last part of the steps, in which the learning rate falls to zero
    evaluations: int = 10  # of the validation loss, besides the one before the first step
    windows: int = 128  # sequences in an evaluation

    @property
    def checkpoints(self) -> list[int]:
        """The steps after which the validation loss is taken."""
        return sorted({self.steps * i // self.evaluations for i in range(self.evaluations + 1)})

    def schedule(self, step: int) -> float:
        """What multiplies the learning rate: 1, then a line to 0."""
        return min(1.0, (self.steps - step) / max(1.0, self.decay * self.steps))


class Text(NamedTuple):
    """The bytes to learn from and the bytes to be judged by, of different files."""

    train: Tensor  # (bytes,)
    validation: Tensor  # (bytes,)


def read_text() -> Text:
    """The public modules of the standard library by name; every tenth is for validation."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = [path.read_bytes() for path in sorted(folder.glob("[a-z]*.py"))]
    if sum(map(len, files)) < 1_000_000:
        raise SystemExit(
            f"{folder} has no source to train on: use a Python that comes with its own"
        )
    train = bytearray().join(file for i, file in enumerate(files) if i % 10)
    validation = bytearray().join(files[::10])
    return Text(*(torch.frombuffer(data, dtype=torch.uint8) for data in (train, validation)))


def batches(text: Text, settings: Settings) -> Iterator[Tensor]:
    """The batch of each step, (batch, context + 1), chosen by the seed and nothing else."""
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.steps):
        last = len(text.train) - settings.context
        yield cut(text.train, torch.randint(last, (settings.batch,), generator=generator), settings)


def held_out(text: Text, settings: Settings) -> Tensor:
    """Sequences spread over the validation text, (windows, context + 1)."""
    last = len(text.validation) - settings.context - 1
    return cut(text.validation, torch.linspace(0, last, settings.windows).long(), settings)


def cut(data: Tensor, starts: Tensor, settings: Settings) -> Tensor:
    """The sequences that begin at `starts`, (starts, context + 1)."""
    return data[starts[:, None] + torch.arange(settings.context + 1)].long()


def norm(x: Tensor) -> Tensor:
    """x over the root mean square of its last dimension."""
    return rms_norm(x, (x.shape[-1],))


def rotate(x: Tensor) -> Tensor:  # (batch, heads, time, head) → the same
    """Rotary positions: x turned by angles that grow with time."""
    rates = 1000.0 ** -torch.linspace(0, 1, x.shape[-1] // 2)  # (head / 2,)
    angles = torch.arange(x.shape[-2])[:, None] * rates  # (time, head / 2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)  # each (batch, heads, time, head / 2)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Block(nn.Module):
    """Attention and an MLP, each added to the stream and each silent at the start."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width) → the same
        """The stream after this block."""
        qkv = self.qkv(norm(x)).unflatten(-1, (3, self.heads, -1))  # (batch, time, 3, heads, head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, head)
        q, k = rotate(norm(q)), rotate(norm(k))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, time, head)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        hidden: Tensor = self.down(relu(self.up(norm(x))).square())
        return x + hidden


class GPT(nn.Module):
    """A transformer over bytes: rotary positions, RMS norms without weights, an untied head."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        torch.manual_seed(settings.seed)
        width = settings.width
        self.embedding = nn.Embedding(256, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.blocks = nn.Sequential(*(Block(width, settings.heads) for _ in range(settings.layers)))
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:  # (batch, time) → (batch, time, 256)
        """The logits of the byte that follows."""
        logits: Tensor = self.head(norm(self.blocks(norm(self.embedding(tokens)))))
        return logits


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:  # (batch, time + 1) → ()
    """The mean cross-entropy of each byte given those before it, in nats."""
    logits = model(tokens[:, :-1]).float()  # (batch, time, 256)
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@dataclass(frozen=True)
class Run:
    """What one training came to."""

    losses: dict[int, float]  # step → validation loss, in nats a byte
    model_ms: float  # of a step
    optimizer_ms: float  # of a step
    state_mb: float

    @property
    def final(self) -> float:
        """The validation loss after the last step."""
        return self.losses[max(self.losses)]

    def steps_to(self, loss: float) -> float | None:
        """After how many steps a loss was reached, on straight lines between evaluations."""
        for (a, high), (b, low) in pairwise(self.losses.items()):
            if low <= loss:
                return a + (b - a) * (high - loss) / (high - low) if high > loss else a
        return None


def train(model: nn.Module, optimizer: Optimizer, text: Text, settings: Settings) -> Run:
    """Train a model in place, its validation losses printed on one line as they come."""
    validation = held_out(text, settings)  # (windows, context + 1)
    scheduler = LambdaLR(optimizer, settings.schedule)
    losses = {0: evaluate(model, validation)}
    model_time = optimizer_time = 0.0
    for step, tokens in enumerate(batches(text, settings), start=1):
        started = time.perf_counter()
        loss_of(model, tokens).backward()  # type: ignore[no-untyped-call]
        computed = time.perf_counter()
        optimizer.step()
        optimizer_time += time.perf_counter() - computed
        model_time += computed - started
        optimizer.zero_grad()
        scheduler.step()
        if step in settings.checkpoints:
            losses[step] = evaluate(model, validation)
    ms = 1000 / settings.steps
    size = sum(x.nbytes for state in optimizer.state.values() for x in state.values())
    return Run(losses, model_time * ms, optimizer_time * ms, size / 1e6)


@torch.no_grad()
def evaluate(model: nn.Module, validation: Tensor) -> float:
    """The mean validation loss, printed too."""
    loss = loss_of(model, validation).item()
    print(f"{loss:6.2f}", end="", flush=True)
    return loss


def run(name: str, text: Text, settings: Settings, lr_scale: float) -> Run:
    """Train with one optimizer, on a line of its own."""
    build, lr = OPTIMIZERS[name]
    model = GPT(settings)
    started = time.perf_counter()
    print(f"{name:8}", end="", flush=True)
    result = train(model, build(model, lr * lr_scale), text, settings)
    print(f"{time.perf_counter() - started:5.0f} s")
    return result


def introduction(text: Text, settings: Settings) -> str:
    """What is trained on what, and the head of the lines that `run` prints."""
    size = sum(p.numel() for p in GPT(settings).parameters())
    return f"""\
A GPT over bytes: {settings.layers} layers of width {settings.width}, {size:,} parameters.
Its text: the standard library of Python {platform.python_version()}, \
{len(text.train) / 1e6:.1f} MB and {len(text.validation) / 1e6:.1f} MB of other files to validate.
Each optimizer: {settings.steps} steps of {settings.batch * settings.context:,} bytes.

Validation loss after
{"step":8}{"".join(f"{step:6}" for step in settings.checkpoints)}"""


def table(runs: dict[str, Run]) -> str:
    """The comparison, best first."""
    lines = [
        f"           loss per byte     to {BASELINE}'s loss       ms a step       state",
        "            nats    bits      tokens     time     model  optimizer     MB",
    ]
    for name, run in sorted(runs.items(), key=lambda item: item[1].final):
        tokens, seconds = effort(run, runs.get(BASELINE))
        lines.append(
            f"{name:8}{run.final:8.3f}{run.final / math.log(2):8.3f}{tokens:>12}{seconds:>9}"
            f"{run.model_ms:10.1f}{run.optimizer_ms:11.1f}{run.state_mb:7.1f}"
        )
    return "\n".join(lines)


def effort(run: Run, baseline: Run | None) -> tuple[str, str]:
    """The tokens and the time to the baseline's final loss, in % of what the baseline took."""
    steps = None if baseline is None else run.steps_to(baseline.final)
    if baseline is None or steps is None:
        return "—", "—"
    tokens = steps / max(baseline.losses)
    pace = (run.model_ms + run.optimizer_ms) / (baseline.model_ms + baseline.optimizer_ms)
    return f"{tokens:.0%}", f"{tokens * pace:.0%}"


def optimizer_name(text: str) -> str:
    """The optimizer that a user means, in any case of letters."""
    names = {name.lower(): name for name in OPTIMIZERS}
    if text.lower() not in names:
        nearest = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0)[0]
        message = f"unknown optimizer {text!r}, did you mean {nearest}? Known are"
        raise argparse.ArgumentTypeError(f"{message} {', '.join(names)}")
    return names[text.lower()]


def main(argv: Sequence[str] | None = None) -> None:
    """Train with each optimizer in turn and print the table."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("--steps", type=int, default=Settings.steps, help="steps of each run (%(default)s)")
    add("--seed", type=int, default=Settings.seed, help="of weights and batches (%(default)s)")
    add("--lr-scale", type=float, default=1.0, help="multiplies every learning rate (%(default)s)")
    some = f"some of {', '.join(OPTIMIZERS).lower()} (all)"
    add("--optimizers", type=optimizer_name, nargs="+", metavar="NAME", help=some)
    options = parser.parse_args(argv)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")
    settings = Settings(steps=options.steps, seed=options.seed)
    text = read_text()
    print(introduction(text, settings))
    names = dict.fromkeys(options.optimizers or OPTIMIZERS)
    runs = {name: run(name, text, settings, options.lr_scale) for name in names}
    print("\n" + table(runs))


if __name__ == "__main__":
    main()
