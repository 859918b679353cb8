"""DeVA under DDP, the updates shared out over the ranks; run it again and it goes on.

torchrun --standalone --nproc-per-node 2 examples/ddp_process_group.py

Without `process_group` every rank computes every update. With it a matrix has one owner, which
keeps its state and takes its step, and `state_dict()` of one rank is not the whole: checkpoints go
through `torch.distributed.checkpoint`, and any number of ranks can read them.
"""

from __future__ import annotations

import argparse
import inspect
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy, gelu
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

import deva_optim


class Reader(nn.Module):
    """Reads a few bytes and guesses the next one."""

    def __init__(self, layers: int, width: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.read = nn.Linear(32 * context, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte, (batch, 256); tokens (batch, context)."""
        x = self.read(self.embedding(tokens).flatten(1))
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(gelu(up(norm(x))))
        logits: Tensor = self.head(x)
        return logits


class Run:
    """What a checkpoint holds; `torch.distributed.checkpoint` calls both methods."""

    def __init__(self, model: nn.Module, optimizer: Any, scheduler: LRScheduler) -> None:
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


def train(options: argparse.Namespace) -> list[float]:
    """Train up to so many steps, from the last checkpoint if there is one; returns the losses."""
    rank, world = dist.get_rank(), dist.get_world_size()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", 0)) if kind == "cuda" else None)
    torch.manual_seed(0)
    model = Reader(options.layers, options.width, options.context).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device] if kind == "cuda" else None)
    optimizer = deva_optim.DeVA(model, lr=options.lr, process_group=dist.group.WORLD)
    rise = LinearLR(optimizer, start_factor=0.1, total_iters=options.warmup)
    fall = CosineAnnealingLR(optimizer, options.steps - options.warmup, eta_min=0.1 * options.lr)
    scheduler = SequentialLR(optimizer, [rise, fall], [options.warmup])

    run = Run(model, optimizer, scheduler)
    saved = sorted(options.folder.glob("step-*"), key=lambda path: int(path.name[5:]))
    if saved:
        dcp.load({"run": run}, checkpoint_id=saved[-1])
    data, losses = text(), []
    for step in range(scheduler.last_epoch, options.steps):
        mean = torch.zeros((), device=device)
        for i in range(options.accumulate):
            ddp.require_backward_grad_sync = i == options.accumulate - 1  # as in `ddp.no_sync()`
            seed = (step * options.accumulate + i) * world + rank
            rows = batch(data, seed, options.batch, options.context).to(device)
            loss = cross_entropy(ddp(rows[:, :-1]), rows[:, -1])
            (loss / options.accumulate).backward()
            mean += loss.detach() / options.accumulate
        optimizer.step()  # all ranks together
        scheduler.step()
        optimizer.zero_grad()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
        if rank == 0 and step % options.log_every == 0:
            print(f"step {step}: {losses[-1]:.3f}")
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            partial = options.folder / f"partial-{step + 1}"
            dcp.save({"run": run}, checkpoint_id=partial)
            if rank == 0:  # renamed when every rank has written
                partial.rename(options.folder / f"step-{step + 1}")
            dist.barrier()
    return losses


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/ddp"), help="checkpoints")
    parser.add_argument("--lr", type=float, default=3e-3)
    defaults = {"steps": 500, "warmup": 20, "batch": 256, "accumulate": 2, "save-every": 100}
    sizes = {"layers": 4, "width": 256, "context": 16, "log-every": 10}
    for name, value in (defaults | sizes).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args(words)


if __name__ == "__main__":
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        train(arguments())
    finally:
        dist.destroy_process_group()
