"""What weights in bfloat16 lose, with and without stochastic rounding, measured on a small GPT.

The model reads bytes of Python's own library. Two questions, for DeVA, AdamW and Muon:

    way    from weights that have been trained for a while, STEPS more at the rate of fine-tuning in
           bfloat16: how far they go along the way of float32, and how far in all
    loss   at a larger rate from the start: the validation loss, less that of float32

python examples/precision.py [STEPS] [SEEDS]
"""

from __future__ import annotations

import copy
import statistics
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import deva_optim
from deva_lab.data.windows import Windows, held_out
from deva_lab.models.gpt import GPT, GPTSize

SIZE = GPTSize(layers=2, width=48, head=24, context=64, value_embeddings=1)
KINDS = ("DeVA", "AdamW", "Muon")
FINE, RATE = 2e-5, 5e-4  # of fine-tuning, and of the second question


def text() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to train on, and bytes of other files to be judged by."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-h]*.py"))
    joined = [b"".join(file.read_bytes() for file in side) for side in (files[1::2], files[::10])]
    return np.frombuffer(joined[0], np.uint8), np.frombuffer(joined[1], np.uint8)


TRAIN, VALIDATION = text()


def loss_of(model: GPT, tokens: Tensor) -> Tensor:
    """The mean cross-entropy of the next byte."""
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model: GPT, kind: str, rate: float, steps: int, seed: int, **options: object) -> GPT:
    """The model after some steps, in the precision that it has."""
    optimizer = getattr(deva_optim, kind)(deva_optim.param_groups(model), lr=rate, **options)
    windows = Windows(TRAIN, context=SIZE.context, batch=16, seed=seed)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, windows.batch(step)).backward()
        optimizer.step()
    return model


def weights(model: GPT) -> Tensor:
    """All numbers of a model in one vector."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def way(kind: str, steps: int, seed: int, stochastic: bool) -> tuple[float, float]:
    """How far bfloat16 goes along the way of float32, and in all, over how far float32 goes."""
    torch.manual_seed(seed)
    model = train(GPT(SIZE, vocabulary=256), "DeVA", 1e-2, steps // 2, seed).bfloat16()
    start = weights(model)
    wide = weights(train(copy.deepcopy(model).float(), kind, FINE, steps, seed + 1)) - start
    options = {"stochastic_rounding": stochastic}
    half = weights(train(model, kind, FINE, steps, seed + 1, **options)) - start
    return float(half @ wide / (wide @ wide)), float(half.norm() / wide.norm())


@torch.no_grad()
def validated(kind: str, steps: int, seed: int, dtype: torch.dtype, **options: object) -> float:
    """The validation loss of a model that was trained in some precision."""
    torch.manual_seed(seed)
    model = GPT(SIZE, vocabulary=256).to(dtype)
    with torch.enable_grad():
        train(model, kind, RATE, steps, seed, **options)
    return loss_of(model.float(), held_out(VALIDATION, context=SIZE.context, windows=64)).item()


def main(steps: int = 100, seeds: int = 3) -> None:
    """Print both answers, the mean over the seeds and its standard deviation."""
    print("weights in bfloat16, rounded  along the way  in all  loss − loss in float32")
    for kind in KINDS:
        wide = [validated(kind, steps, seed, torch.float32) for seed in range(seeds)]
        for name, stochastic in (("to the nearest", False), ("at random", True)):
            ways = [way(kind, steps, seed, stochastic) for seed in range(seeds)]
            along, in_all = (statistics.mean(x) for x in zip(*ways, strict=True))
            options = {"stochastic_rounding": stochastic}
            off = [
                validated(kind, steps, seed, torch.bfloat16, **options) - wide[seed]
                for seed in range(seeds)
            ]
            spread = statistics.stdev(off) if seeds > 1 else 0.0
            label = f"{kind}, {name}"
            print(
                f"{label:28s}  {along:13.3f}  {in_all:6.3f}  "
                f"{statistics.mean(off):+.4f} ± {spread:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
