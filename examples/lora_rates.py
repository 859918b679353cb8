"""Which role and which rate for LoRA: A and B as matrices or elementwise, against AdamW.

A tiny Llama learns Python's own source, byte by byte, and is then fine-tuned on the prose of
Python's manual with LoRA of rank 8. The table has the loss on prose that was held out, the mean
over the seeds at each rate; below it, the differences from AdamW, seed by seed, each at its best
rate. Every method has the same base model, the same A, the same batches and the same schedule.

python examples/lora_rates.py [--seeds 3] [--steps 60] [--rates 5e-3 1e-2 2e-2 4e-2]
"""

from __future__ import annotations

import argparse
import copy
import pydoc_data.topics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import deva_optim

LENGTH, BATCH = 64, 8
BYTES = 128  # the texts are ASCII


def as_matrices(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """DeVA as it is: A and B are matrices."""
    return deva_optim.DeVA(model, lr=lr, weight_decay=0.0)


def as_vectors(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """DeVA with A and B among the rest, which get AdamW with β₂ = 0.99."""
    groups = deva_optim.param_groups(model, overrides=[("lora_", "vector")])
    return deva_optim.DeVA(groups, lr=lr, weight_decay=0.0)


def adamw(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """AdamW of torch."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)


METHODS: dict[str, Callable[[nn.Module, float], torch.optim.Optimizer]] = {
    "AdamW": adamw,
    "DeVA, A and B elementwise": as_vectors,
    "DeVA, A and B matrices": as_matrices,
}


def tokens(text: str) -> Tensor:
    """The bytes of a text, one token each."""
    return torch.tensor(list(text.encode("ascii", "ignore")))


def code() -> Tensor:
    """A million bytes of Python's own source."""
    files = sorted(Path(copy.__file__).parent.glob("*.py"))
    return tokens("".join(file.read_text("utf-8") for file in files)[:1_000_000])


def prose() -> tuple[Tensor, Tensor]:
    """The topics of Python's manual, to train on, and the last tenth of them, held out."""
    found = tokens("".join(pydoc_data.topics.topics.values()))
    return found[: -len(found) // 10], found[-len(found) // 10 :]


def batches(text: Tensor, seed: int) -> Iterator[Tensor]:
    """Windows of a text at random places, for ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=generator)
        yield text[starts + torch.arange(LENGTH)]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, text: Tensor, steps: int, seed: int
) -> None:
    """Train with a warm-up over a tenth of the steps and a cosine schedule."""
    schedule = get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    for _, rows in zip(range(steps), batches(text, seed), strict=False):
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@torch.no_grad()
def loss_on(model: nn.Module, text: Tensor) -> float:
    """The mean loss over 16 batches."""
    some = zip(range(16), batches(text, seed=0), strict=False)
    return mean(model(input_ids=rows, labels=rows).loss.item() for _, rows in some)


def base_model(steps: int) -> LlamaForCausalLM:
    """Two layers of width 64 that have seen Python's source."""
    torch.manual_seed(0)
    sizes = {"vocab_size": BYTES, "hidden_size": 64, "intermediate_size": 176}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": LENGTH}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    train(model, deva_optim.DeVA(model, lr=3e-3), code(), steps, seed=0)
    return model


def fine_tuned(
    base: LlamaForCausalLM, method: str, lr: float, seed: int, steps: int, data: tuple[Tensor, ...]
) -> float:
    """The loss on held-out prose after so many steps."""
    torch.manual_seed(seed)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    model = get_peft_model(copy.deepcopy(base), lora)
    train(model, METHODS[method](model, lr), data[0], steps, seed)
    return loss_on(model, data[1])


def spread(found: list[float]) -> float:
    """The standard deviation, if it can be told."""
    return stdev(found) if len(found) > 1 else 0.0


def main(seeds: int, steps: int, rates: list[float], base_steps: int) -> None:
    """Print the table."""
    start, data = time.perf_counter(), prose()
    base = base_model(base_steps)
    print(f"{seeds} seeds, {steps} steps; before fine-tuning {loss_on(base, data[1]):.3f}")
    print("".join(["learning rate".ljust(28), *(f"{lr:<16g}" for lr in rates)]))
    best: dict[str, list[float]] = {}
    for method in METHODS:
        found = [
            [fine_tuned(base, method, lr, seed, steps, data) for seed in range(seeds)]
            for lr in rates
        ]
        best[method] = min(found, key=mean)
        cells = (f"{mean(x):.3f} ± {spread(x):.3f}".ljust(16) for x in found)
        print("".join([method.ljust(28), *cells]), flush=True)
    for method in list(METHODS)[1:]:
        pairs = zip(best[method], best["AdamW"], strict=True)
        apart = [ours - theirs for ours, theirs in pairs]
        error = spread(apart) / seeds**0.5
        print(f"{method}: {mean(apart):+.3f} from AdamW, standard error {error:.3f}")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-3, 1e-2, 2e-2, 4e-2])
    parser.add_argument("--base-steps", type=int, default=300)
    chosen = parser.parse_args()
    main(chosen.seeds, chosen.steps, chosen.rates, chosen.base_steps)
