"""DeVA in a loop of Accelerate: a tiny GPT-2 learns to count; run it again and it goes on.

python examples/accelerate_loop.py [FOLDER]
accelerate launch examples/accelerate_loop.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from deva_optim import DeVA
from deva_optim.integrations.accelerate import clip_grad_norm_, log_telemetry


def counting(rows: int = 64, length: int = 16, vocabulary: int = 64) -> torch.Tensor:
    """Rows of numbers, each one more than the last."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(vocabulary, (rows, 1), generator=generator)
    return (start + torch.arange(length)) % vocabulary


def tiny_gpt2() -> GPT2LMHeadModel:
    """Two layers of width 32."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0))


def train(folder: Path, epochs: int) -> list[float]:
    """Train up to so many epochs, going on from the last one in the folder; returns the losses."""
    accelerator = Accelerator()  # log_with="tensorboard" or another, and then `init_trackers`
    model = tiny_gpt2()
    optimizer = DeVA(model, lr=1e-2)  # before `prepare`, which also shards it for FSDP2
    warmup = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    loader = DataLoader(counting(), batch_size=16)
    model, optimizer, loader, warmup = accelerator.prepare(model, optimizer, loader, warmup)

    done = len(list(folder.glob("epoch-*")))
    if done:
        accelerator.load_state(str(folder / f"epoch-{done - 1}"))
    losses, step = [], done * len(loader)
    for epoch in range(done, epochs):
        for tokens in loader:
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            clip_grad_norm_(accelerator, optimizer, 1.0)
            optimizer.step()
            warmup.step()
            optimizer.zero_grad()
            step += 1
            log_telemetry(accelerator, optimizer, step, every=4)
            losses.append(loss.item())
        accelerator.print(f"epoch {epoch}: {losses[-1]:.3f}")
        accelerator.save_state(str(folder / f"epoch-{epoch}"))
    return losses


if __name__ == "__main__":
    train(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/accelerate"), epochs=8)
