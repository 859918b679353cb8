"""What a matrix should do at a step whose gradient is exactly zero, measured on experts.

A byte-level model with sixteen experts reads so few tokens a step that about half of the experts
have none. Three answers are compared, each from the same weights on the same batches:

    rest     the expert waits: neither weight nor state changes (what this library does)
    fade     it goes on along its momentum, by β₁ᵏ of its length at the k-th such step
    go on    it goes on along its momentum at full length (what Muon does as published)

python examples/experts_without_tokens.py [STEPS] [SEEDS]
"""

from __future__ import annotations

import inspect
import statistics
import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

import deva_optim

EXPERTS, WIDTH, CONTEXT, TOKENS, BETA = 16, 48, 8, 24, 0.9
ANSWERS = ("rest", "fade", "go on")


class Experts(nn.Module):
    """Reads CONTEXT bytes and guesses the next one; one expert of sixteen looks at each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.read = nn.Linear(16 * CONTEXT, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.ParameterList(torch.randn(4 * WIDTH, WIDTH) * 0.1 for _ in range(EXPERTS))
        self.down = nn.ParameterList(torch.randn(WIDTH, 4 * WIDTH) * 0.05 for _ in range(EXPERTS))
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte, B×128; tokens B×CONTEXT."""
        x = self.read(self.embedding(tokens).flatten(1))
        weight, choice = self.router(x).softmax(-1).max(-1)
        parts = torch.zeros_like(x)
        for i in range(EXPERTS):
            here = choice == i
            parts[here] = gelu(x[here] @ self.up[i].T) @ self.down[i].T
        out: Tensor = self.head(x + weight.unsqueeze(-1) * parts)
        return out


def text() -> Tensor:
    """The source of a few modules of Python's own library, as bytes."""
    modules = ("argparse", "inspect", "typing", "ast", "tarfile", "optparse", "doctest", "zipfile")
    found = b"".join(inspect.getsource(__import__(name)).encode() for name in modules)
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).long().clamp_max(127)


def train(kind: str, answer: str, steps: int, seed: int) -> tuple[float, float]:
    """The loss on text that was held out, and the share of experts without tokens."""
    torch.manual_seed(seed)
    data, model = text(), Experts()
    cut = int(0.9 * len(data))
    experts = [*model.up, *model.down]
    known = {id(p) for p in experts}
    groups = [{"params": [p], "lr": 1e-2, "role": "matrix"} for p in experts]
    groups += [{"params": [p for p in model.parameters() if id(p) not in known], "role": "vector"}]
    make = {
        "Muon": lambda: deva_optim.Muon(groups, momentum=BETA, nesterov=True, lr=3e-3),
        "DeVA": lambda: deva_optim.DeVA(groups, betas=(BETA, 0.95, 0.95), lr=3e-3),
    }
    optimizer = make[kind]()
    idle = [0] * len(experts)
    for step in range(steps):
        start = torch.randint(cut - CONTEXT, (TOKENS,))
        windows = data[start[:, None] + torch.arange(CONTEXT + 1)]
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(model(windows[:, :-1]), windows[:, -1]).backward()
        rate = 1e-2 * min(1.0, 2 * (1 - step / steps))
        for i, p in enumerate(experts):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            zero = not p.grad.any()
            idle[i] += zero
            k = 0 if not zero else getattr(p, "k", 0) + 1
            p.k = k  # type: ignore[attr-defined]
            optimizer.param_groups[i]["lr"] = rate * BETA**k if answer == "fade" else rate
            if zero and answer != "rest":
                p.grad.normal_().mul_(1e-20)  # not zero: the momentum decays, and is followed
        optimizer.param_groups[-1]["lr"] = 0.3 * rate
        optimizer.step()
    with torch.no_grad():
        windows = data[torch.arange(cut, len(data) - CONTEXT, 7)[:, None] + torch.arange(9)]
        loss = cross_entropy(model(windows[:, :-1]), windows[:, -1]).item()
    return loss, sum(idle) / (len(idle) * steps)


def main(steps: int = 1500, seeds: int = 5) -> None:
    """Print a row for each optimizer and answer: losses, and the difference from resting."""
    torch.set_num_threads(1)
    for kind in ("Muon", "DeVA"):
        found = {a: [train(kind, a, steps, seed) for seed in range(seeds)] for a in ANSWERS}
        rest = [loss for loss, _ in found["rest"]]
        for answer, runs in found.items():
            losses = [loss for loss, _ in runs]
            over = [x - y for x, y in zip(losses, rest, strict=True)]
            spread = statistics.stdev(over) if seeds > 1 else 0.0
            share = statistics.mean(share for _, share in runs)
            print(
                f"{kind:5} {answer:6} loss {statistics.mean(losses):.4f}, above resting "
                f"{statistics.mean(over):+.4f} ± {spread:.4f}, experts without tokens {share:.0%}"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
