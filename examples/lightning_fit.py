"""DeVA in Lightning: a tiny GPT-2 learns to count; run it again and it goes on.

What the optimizer tells of each matrix is logged beside the loss.

python examples/lightning_fit.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

import deva_optim
from deva_optim.integrations.lightning import TelemetryCallback


def counting(rows: int = 64, length: int = 16, vocabulary: int = 64) -> torch.Tensor:
    """Rows of numbers, each one more than the last."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(vocabulary, (rows, 1), generator=generator)
    return (start + torch.arange(length)) % vocabulary


class Counter(lightning.LightningModule):
    """A GPT-2 of two layers of width 32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0)
        self.gpt2 = GPT2LMHeadModel(config)
        self.losses: list[float] = []

    def training_step(self, tokens: torch.Tensor, _: int) -> torch.Tensor:
        """The loss of a batch."""
        loss: torch.Tensor = self.gpt2(input_ids=tokens, labels=tokens).loss
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        """DeVA, with a warmup by steps."""
        optimizer = deva_optim.DeVA(self, lr=1e-2)
        warmup = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": warmup, "interval": "step"},
        }


def train(folder: Path, epochs: int) -> list[float]:
    """Train up to so many epochs, going on from the last one in the folder; returns the losses."""
    model = Counter()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=[ModelCheckpoint(folder, save_last=True), TelemetryCallback(every=4)],
        logger=CSVLogger(folder),  # or any other: telemetry goes to all of them
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = folder / "last.ckpt"
    loader = DataLoader(counting(), batch_size=16)
    trainer.fit(model, loader, ckpt_path=str(last) if last.exists() else None)
    print(f"loss {model.losses[-1]:.3f} after {trainer.global_step} steps")
    return model.losses


if __name__ == "__main__":
    train(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/lightning"), epochs=8)
