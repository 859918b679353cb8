"""What numbers of two bytes or one lose in place of four, measured on a small GPT.

The model reads bytes of Python's own library. Three questions, for DeVA, AdamW and Muon:

    way    from weights that have been trained for a while, STEPS more at the rate of fine-tuning in
           bfloat16: how far they go along the way of float32, and how far in all, if they are
           rounded to the nearest number and if they are rounded at random
    loss   at a larger rate from the start: the validation loss, less that of float32
    state  weights in float32 and the state narrower: the loss over that of float32, and the bytes

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
from torch.optim import Optimizer

import deva_optim
from deva_lab.language import Windows, held_out
from deva_lab.models.gpt import GPT, GPTSize

SIZE = GPTSize(layers=2, width=48, head=24, context=64, value_embeddings=1)
KINDS = ("DeVA", "AdamW", "Muon")
FINE, SMALL, LARGE = 2e-5, 5e-4, 2e-3  # the rates of the three questions


def text() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to train on, and bytes of other files to be judged by."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-h]*.py"))
    joined = [b"".join(file.read_bytes() for file in side) for side in (files[1::2], files[::10])]
    return np.frombuffer(joined[0], np.uint8), np.frombuffer(joined[1], np.uint8)


TRAIN, VALIDATION = text()


def loss_of(model: GPT, tokens: Tensor) -> Tensor:
    """The mean cross-entropy of the next byte."""
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(
    model: GPT, kind: str, rate: float, steps: int, seed: int, **options: object
) -> Optimizer:
    """Train a model in the precision that it has; returns its optimizer."""
    optimizer = getattr(deva_optim, kind)(deva_optim.param_groups(model), lr=rate, **options)
    windows = Windows(TRAIN, context=SIZE.context, batch=16, seed=seed)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, windows.batch(step)).backward()
        optimizer.step()
    return optimizer


def weights(model: GPT) -> Tensor:
    """All numbers of a model in one vector."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def way(kind: str, steps: int, seed: int, stochastic: bool) -> tuple[float, float]:
    """How far bfloat16 goes along the way of float32, and in all, over how far float32 goes."""
    torch.manual_seed(seed)
    model = GPT(SIZE, vocabulary=256)
    train(model, "DeVA", 1e-2, steps // 2, seed)
    start = weights(model.bfloat16())
    wide = copy.deepcopy(model).float()
    train(wide, kind, FINE, steps, seed + 1)
    train(model, kind, FINE, steps, seed + 1, stochastic_rounding=stochastic)
    there, here = weights(wide) - start, weights(model) - start
    return float(here @ there / (there @ there)), float(here.norm() / there.norm())


def validated(
    kind: str, rate: float, steps: int, seed: int, dtype: torch.dtype, **options: object
) -> tuple[float, int]:
    """The validation loss of a model that was trained in some precision, and bytes of state."""
    torch.manual_seed(seed)
    model = GPT(SIZE, vocabulary=256).to(dtype)
    optimizer = train(model, kind, rate, steps, seed, **options)
    with torch.no_grad():
        tokens = held_out(VALIDATION, context=SIZE.context, windows=64)
        loss = loss_of(model.float(), tokens).item()
    return loss, sum(x.nbytes for state in optimizer.state.values() for x in state.values())


def spread(found: list[float]) -> float:
    """The standard deviation, if it can be told."""
    return statistics.stdev(found) if len(found) > 1 else 0.0


def compare_weights(kind: str, steps: int, seeds: range) -> None:
    """Print what weights in bfloat16 lose."""
    wide = [validated(kind, SMALL, steps, seed, torch.float32)[0] for seed in seeds]
    for name, stochastic in (("to the nearest", False), ("at random", True)):
        ways = [way(kind, steps, seed, stochastic) for seed in seeds]
        along, in_all = (statistics.mean(x) for x in zip(*ways, strict=True))
        off = []
        for seed, loss in zip(seeds, wide, strict=True):
            options = {"stochastic_rounding": stochastic}
            half, _ = validated(kind, SMALL, steps, seed, torch.bfloat16, **options)
            off.append(half - loss)
        label, mean = f"{kind}, {name}", statistics.mean(off)
        print(f"{label:28s}  {along:13.3f}  {in_all:6.3f}  {mean:+.4f} ± {spread(off):.4f}")


def compare_states(kind: str, steps: int, seeds: range) -> None:
    """Print what a narrower state loses."""
    wide = [validated(kind, LARGE, steps, seed, torch.float32) for seed in seeds]
    for state_dtype in (torch.bfloat16, "int8"):
        options = {"state_dtype": state_dtype}
        found = [validated(kind, LARGE, steps, seed, torch.float32, **options) for seed in seeds]
        pairs = list(zip(found, wide, strict=True))
        off = [100 * (ours[0] / theirs[0] - 1) for ours, theirs in pairs]
        size = pairs[0][0][1] / pairs[0][1][1]
        label, mean = f"{kind}, {state_dtype}", statistics.mean(off)
        print(f"{label:28s}  {size:17.3f}  {mean:+.2f} % ± {spread(off):.2f} %")


def main(steps: int = 100, seeds: int = 3) -> None:
    """Print all answers, the means over the seeds and the standard deviation of the losses."""
    print("weights in bfloat16, rounded  along the way  in all  loss − loss in float32")
    for kind in KINDS:
        compare_weights(kind, steps, range(seeds))
    print("state                         bytes / float32's  loss / loss in float32 − 1")
    for kind in KINDS:
        compare_states(kind, steps, range(seeds))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
