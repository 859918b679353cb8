"""A loop in the manner of nanochat: a rate for each kind of parameter, and schedules of all of it.

python examples/nanochat_loop.py [--optimizer Muon --momentum 0.95 --first-momentum 0.85]

Matrices, embedding, head and scalars have rates of their own. Rates are constant and fall to zero
at the end, the momentum of the matrices grows at the beginning, and the weight decay falls to zero
all along. Groups are live: what is written into them holds from the next step on. Run it again and
it goes on.
"""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention

import deva_optim


def norm(x: Tensor) -> Tensor:
    """X over the root mean square of its last dimension."""
    return rms_norm(x, (x.shape[-1],))


def rotated(x: Tensor) -> Tensor:  # (batch, heads, time, head) → the same
    """X with each pair of its coordinates turned by an angle that grows with time."""
    time, half = x.shape[-2], x.shape[-1] // 2
    rates = 10_000.0 ** -torch.linspace(0, 1, half, device=x.device)
    angles = torch.arange(time, device=x.device)[:, None] * rates  # (time, half)
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


class Block(nn.Module):
    """Attention over normed queries and keys, and an MLP with ReLU²."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width) → the same
        """The stream after this block."""
        y = norm(x)
        q, k, v = (
            f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = scaled_dot_product_attention(norm(rotated(q)), norm(rotated(k)), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        added: Tensor = self.down(self.up(norm(x)).relu().square())
        return x + added


class GPT(nn.Module):
    """A GPT over bytes; a scalar for each layer weighs the stream before it."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.stream = nn.Parameter(torch.ones(layers))
        self.head = nn.Linear(width, 256, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte, (batch, time, 256), between -15 and 15."""
        x = norm(self.tokens(tokens))
        for scale, block in zip(self.stream, self.blocks, strict=True):
            x = block(scale * x)
        return 15 * torch.tanh(self.head(norm(x)).float() / 15)


def text() -> Tensor:
    """The source of a few modules of Python's own library, as bytes."""
    modules = ("argparse", "inspect", "typing", "ast", "tarfile", "optparse", "doctest")
    found = b"".join(inspect.getsource(__import__(name)).encode() for name in modules)
    return torch.frombuffer(bytearray(found), dtype=torch.uint8)


def batch(data: Tensor, seed: int, rows: int, context: int) -> Tensor:
    """Rows of bytes at places that the seed determines, (rows, context + 1)."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(len(data) - context, (rows, 1), generator=generator)
    return data[start + torch.arange(context + 1)].long()


def schedule(optimizer: torch.optim.Optimizer, step: int, options: argparse.Namespace) -> None:
    """Write rate, momentum and weight decay of this step into the groups."""
    left = 1 - step / options.steps
    growth = min(1.0, step / options.momentum_steps)
    momentum = options.first_momentum + growth * (options.momentum - options.first_momentum)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * min(1.0, left / options.warmdown)
        group["weight_decay"] = group["initial_weight_decay"] * left
        if group["role"] == "matrix":
            group["momentum"] = momentum


def train(options: argparse.Namespace) -> list[float]:
    """Train up to so many steps, from the checkpoint if there is one; returns the losses."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = GPT(options.layers, options.width, options.heads).to(device)
    optimizer = getattr(deva_optim, options.optimizer)(
        model,
        lr=options.lr,
        embedding_lr=options.embedding_lr,
        head_lr=options.head_lr,
        rest_lr=options.rest_lr,
        rest_betas=(0.8, 0.95),
        weight_decay=options.weight_decay,
        rest_weight_decay=0.0,
    )
    for group in optimizer.param_groups:
        group["initial_lr"], group["initial_weight_decay"] = group["lr"], group["weight_decay"]
    checkpoint, first = options.folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    data, losses = text(), []
    for step in range(first, options.steps):
        schedule(optimizer, step, options)
        mean = 0.0
        for i in range(options.accumulate):
            seed = step * options.accumulate + i
            rows = batch(data, seed, options.batch, options.context).to(device)
            loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            (loss / options.accumulate).backward()
            mean += loss.item() / options.accumulate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean)
        if step % options.log_every == 0:
            print(f"step {step}: {mean:.3f}")
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            options.folder.mkdir(parents=True, exist_ok=True)
            torch.save({**state, "step": step + 1}, checkpoint.with_suffix(".partial"))
            checkpoint.with_suffix(".partial").replace(checkpoint)
    return losses


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/nanochat"), help="checkpoint")
    parser.add_argument("--optimizer", default="DeVA", help="a class of deva_optim")
    rates = {"lr": 0.01, "embedding-lr": 0.2, "head-lr": 0.004, "rest-lr": 0.01}
    others = {"momentum": 0.8, "first-momentum": 0.7, "weight-decay": 0.1, "warmdown": 0.4}
    for name, value in (rates | others).items():
        parser.add_argument(f"--{name}", type=float, default=value)
    defaults = {"steps": 1000, "momentum-steps": 300, "batch": 16, "accumulate": 2}
    sizes = {"layers": 4, "width": 256, "heads": 4, "context": 256}
    for name, whole in (defaults | sizes | {"save-every": 200, "log-every": 10}).items():
        parser.add_argument(f"--{name}", type=int, default=whole)
    return parser.parse_args(words)


if __name__ == "__main__":
    train(arguments())
