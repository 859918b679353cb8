"""An entry on modded-nanogpt's optimization track: its model, batch, schedule and data, on GPUs.

    torchrun --standalone --nproc_per_node=8 -m deva_lab.race.track
        --data data/fineweb10B --optimizer deva --steps 2800

The track (github.com/KellerJordan/modded-nanogpt, records/track_3_optimization) asks for the fewest
steps to a validation loss of 3.28 at one forward and backward pass a step; data, batch and model
are fixed. Only the optimizer of the blocks' matrices is ours here. The rest, its rates included, is
as in the track's Muon baseline of 2026.
"""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ..data.corpus import check_digests, find_shards, map_shard
from ..errors import UsageError
from ..files import append_line
from ..models.gpt import TrackGPT, TrackSize
from ..run.entrants import ENTRANTS, Entrant

# The baseline's Muon steps by 0.025 max(1, n/m)^½; ours by 0.2 √max(n, m) η: the same on a square
# of the width for this η, and the same decay for this λ.
RATE: Final = 0.025 / (0.2 * 768**0.5)
DECAY: Final = 0.025**2 / RATE
REST: Final = {"embed": 0.3, "head": 1 / 320, "vectors": 0.01}


@dataclass(frozen=True)
class Track:
    """The setting of the track; a test has a small one."""

    size: TrackSize = field(default_factory=TrackSize)
    context: int = 1024
    batch: int = 512  # sequences in a step, over all ranks
    micro: int = 64  # of which go through the model at once
    cooldown: float = 0.7  # the share of the steps, the last ones, in which the rate falls to zero
    validation: int = 10_240  # sequences
    evaluate_every: int = 125
    target: float = 3.28


Pair = tuple[Tensor, Tensor]  # inputs and targets, (sequences, context) each


def main(argv: Sequence[str] | None = None) -> None:
    """Run an entry on every GPU that torchrun gives us."""
    options = _parser().parse_args(argv)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    settings = {
        k: getattr(options, k) for k in ("optimizer", "lr", "weight_decay", "steps", "seed")
    }
    curve = run(Track(), options.data, device=device, report=_say, **settings)
    if dist.get_rank() == 0:
        append_line(options.out, {**settings, "curve": curve})
    dist.destroy_process_group()


def run(
    track: Track,
    data: str,
    *,
    optimizer: str,
    lr: float,
    weight_decay: float,
    steps: int,
    seed: int,
    device: torch.device,
    report: Callable[[str], None],
) -> list[tuple[int, float]]:
    """The validation losses along the way, (step, loss): the training, from top to bottom."""
    files = find_shards(data)
    if files is None:
        raise UsageError(f"--data {data} has no .bin shards: modded-nanogpt's data/ downloads them")
    check_digests(files)
    torch.manual_seed(seed)
    model = TrackGPT(track.size).to(device)  # the same on all ranks, as the seed is
    optimizers = build(model, optimizer, lr=lr, weight_decay=weight_decay)
    rates = [group["lr"] for one in optimizers for group in one.param_groups]
    compute = torch.compile(model, dynamic=False) if device.type == "cuda" else model
    held_out = next(batches(files.validation, track.validation, track.context, device))
    training = batches(files.train, track.batch, track.context, device)
    curve = []
    for step in range(steps + 1):
        if step % track.evaluate_every == 0 or step == steps:
            loss = validate(compute, held_out, track)
            curve.append((step, loss))
            report(f"step:{step}/{steps} val_loss:{loss:.5f}" + " reached" * (loss <= track.target))
        if step == steps:
            return curve
        accumulate(compute, next(training), track.micro)
        for parameter in model.parameters():
            _sum(parameter.grad)
        fall = min(1.0, (steps - step) / (track.cooldown * steps))
        groups = (group for one in optimizers for group in one.param_groups)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * fall
        for one in optimizers:
            one.step()
            one.zero_grad()
    return curve


def build(model: TrackGPT, optimizer: str, *, lr: float, weight_decay: float) -> list[Optimizer]:
    """AdamW as the track has it for what is no matrix of a block, and the entry for those."""
    entrant = Entrant.parse(optimizer)
    matrices = [(n, p) for n, p in model.blocks.named_parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    rest = [
        {"params": [model.embed.weight], "lr": REST["embed"]},
        {"params": [model.proj.weight], "lr": REST["head"]},
        {"params": vectors, "lr": REST["vectors"]},
    ]
    adamw = torch.optim.AdamW(rest, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
    known = ENTRANTS[entrant.name]
    settings: dict[str, Any] = {**known.options, **dict(entrant.options)}
    if dist.is_initialized() and "process_group" in inspect.signature(known.build).parameters:
        settings["process_group"] = dist.group.WORLD  # each matrix has one owner
    groups = [{"params": matrices, "role": "matrix"}]
    return [adamw, known.build(groups, lr=lr, weight_decay=weight_decay, **settings)]


def batches(
    files: Sequence[Path], sequences: int, context: int, device: torch.device
) -> Iterator[Pair]:
    """This rank's part of batch after batch, through the shards in their order, as on the track.

    What is left of a shard when a whole batch no longer fits is left out.
    """
    rank, ranks = _rank()
    if sequences % ranks:
        raise UsageError(f"{sequences} sequences cannot be shared by {ranks} ranks")
    whole, part = sequences * context, sequences * context // ranks
    for file in files:
        tokens = map_shard(file)
        for start in range(0, len(tokens) - whole - 1, whole):
            first = start + rank * part
            some = torch.from_numpy(tokens[first : first + part + 1].astype("int64")).to(device)
            yield some[:-1].view(-1, context), some[1:].view(-1, context)
    raise UsageError(f"{len(files)} shards have too few tokens for so many steps: get more of them")


def accumulate(model: Callable[..., Tensor], batch: Pair, micro: int) -> None:
    """Add the gradients of a batch, a few sequences at a time."""
    for inputs, targets in _parts(batch, micro):
        model(inputs, targets).backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def validate(model: Callable[..., Tensor], batch: Pair, track: Track) -> float:
    """The mean loss of a token over all ranks."""
    parts = _parts(batch, track.micro)
    total = torch.stack([model(inputs, targets) for inputs, targets in parts]).sum()
    _sum(total)
    return total.item() / (track.validation * track.context)


def _parts(batch: Pair, micro: int) -> Iterator[Pair]:
    inputs, targets = batch
    return zip(torch.split(inputs, micro), torch.split(targets, micro), strict=True)


def _rank() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _sum(x: Tensor | None) -> None:
    assert x is not None
    if dist.is_initialized():
        dist.all_reduce(x)


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deva_lab.race.track", description=__doc__)
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of .bin shards")
    parser.add_argument("--optimizer", required=True, metavar="NAME[:SETTINGS]")
    parser.add_argument("--lr", type=float, default=RATE, help=f"({RATE:.4g}, the baseline's)")
    parser.add_argument("--weight-decay", type=float, default=DECAY, help=f"({DECAY:.3g}, its)")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("track.jsonl"), help="(track.jsonl)")
    return parser


if __name__ == "__main__":
    main()
