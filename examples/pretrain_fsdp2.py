"""Pre-training a GPT with DeVA, FSDP2 and distributed checkpoints; run it again and it goes on.

torchrun --standalone --nproc-per-node 2 examples/pretrain_fsdp2.py --text FILE
python examples/pretrain_fsdp2.py --steps 20     # one process, on Python's own source

The ranks are GPUs if there are any, otherwise processes on the CPU. A checkpoint may be read by
another number of ranks than wrote it.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import math
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim.lr_scheduler import LambdaLR

import deva_optim


class Block(nn.Module):
    """Attention and an MLP, each added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width) → the same
        """The stream after this block."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))  # (batch, heads, time, head)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        added: Tensor = self.down(self.up(self.norm2(x)).relu().square())
        return x + added


class GPT(nn.Module):
    """A GPT over bytes."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte, (batch, time, 256)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Run:
    """What a checkpoint holds; `torch.distributed.checkpoint` calls both methods."""

    def __init__(self, model: nn.Module, optimizer: Any, scheduler: LambdaLR) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler

    def state_dict(self) -> dict[str, Any]:
        """Weights and state as every number of ranks can read them; all ranks must ask."""
        weights, state = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": state, "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        """Go on from what was loaded."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )
        self.scheduler.load_state_dict(found["scheduler"])


def rate(step: int, steps: int, warmup: int) -> float:
    """The share of the learning rate: a linear warmup, then a cosine to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done)))


def read(text: Path | None) -> Tensor:
    """The bytes of a file, or of a few modules of Python's own library."""
    if text is not None:
        found = text.read_bytes()
    else:
        modules = ("argparse", "inspect", "typing", "ast", "tarfile", "optparse", "doctest")
        found = b"".join(inspect.getsource(__import__(name)).encode() for name in modules)
    return torch.frombuffer(bytearray(found), dtype=torch.uint8)


def batch(data: Tensor, seed: int, rows: int, context: int) -> Tensor:
    """Rows of bytes at places that the seed determines, (rows, context + 1)."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(len(data) - context, (rows, 1), generator=generator)
    return data[start + torch.arange(context + 1)].long()


def train(options: argparse.Namespace) -> list[float]:
    """Train up to so many steps, from the last checkpoint if there is one; returns the losses."""
    rank, world = dist.get_rank(), dist.get_world_size()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", 0)) if kind == "cuda" else None)

    torch.manual_seed(0)  # all ranks begin with the same weights
    model = GPT(options.layers, options.width, options.heads, options.context).to(device)
    mesh = init_device_mesh(kind, (world,))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = half if kind == "cuda" else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = deva_optim.DeVA(model, lr=options.lr, weight_decay=0.1)  # after sharding
    scheduler = LambdaLR(optimizer, lambda step: rate(step, options.steps, options.warmup))

    run = Run(model, optimizer, scheduler)
    saved = sorted(options.folder.glob("step-*"), key=lambda path: int(path.name[5:]))
    if saved:
        dcp.load({"run": run}, checkpoint_id=saved[-1])
    data, losses = read(options.text), []
    for step in range(scheduler.last_epoch, options.steps):
        mean = torch.zeros((), device=device)
        for i in range(options.accumulate):
            last = i == options.accumulate - 1
            model.set_requires_gradient_sync(last)  # type: ignore[operator]  # of FSDP2
            seed = (step * options.accumulate + i) * world + rank
            rows = batch(data, seed, options.batch, options.context).to(device)
            loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1).float(), rows[:, 1:].flatten())
            (loss / options.accumulate).backward()
            mean += loss.detach() / options.accumulate
        deva_optim.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
        if rank == 0 and step % options.log_every == 0:
            print(f"step {step}: {losses[-1]:.3f}")
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            save(run, options.folder / f"step-{step + 1}")
    return losses


def save(run: Run, folder: Path) -> None:
    """Write a checkpoint under another name, and rename it when every rank has written."""
    partial = folder.with_name(f"partial-{folder.name}")
    dcp.save({"run": run}, checkpoint_id=partial)
    if dist.get_rank() == 0:
        partial.rename(folder)
    dist.barrier()


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/fsdp2"), help="checkpoints")
    parser.add_argument(
        "--text", type=Path, help="a file to learn; Python's own source if left out"
    )
    parser.add_argument("--lr", type=float, default=3e-3)
    defaults = {"steps": 1000, "warmup": 50, "batch": 16, "accumulate": 4, "save-every": 200}
    sizes = {"layers": 6, "width": 384, "heads": 6, "context": 256, "log-every": 10}
    for name, value in (defaults | sizes).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args(words)


if __name__ == "__main__":
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:  # without torchrun: one process
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        train(arguments())
    finally:
        gc.collect()  # what is left of the run holds groups, whose threads must end before Python
        dist.destroy_process_group()
