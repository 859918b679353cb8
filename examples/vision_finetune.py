"""Fine-tuning a vision transformer with DeVA and rates that fall from layer to layer.

python examples/vision_finetune.py [--weights FILE]

`FILE` is a `state_dict` of the model below without its head, as `torch.save` writes it; without it
the weights are random. The images are drawn, so that nothing is downloaded: put your own into
`images`. Run it again and it goes on.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.optim.lr_scheduler import LambdaLR

import deva_optim


class Block(nn.Module):
    """Attention and an MLP, each added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, patches, width) → the same
        """The stream after this block."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))  # (batch, heads, patches, head)
        y = scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        added: Tensor = self.fc2(gelu(self.fc1(self.norm2(x))))
        return x + added


class ViT(nn.Module):
    """A vision transformer with a class token and learnt positions."""

    def __init__(
        self, layers: int, width: int, heads: int, pixels: int, patch: int, classes: int
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + (pixels // patch) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)  # new: it begins by preferring no class
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes, (batch, classes); images (batch, 3, pixels, pixels)."""
        x = self.patch_embed(x).flatten(2).mT
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def images(seed: int, rows: int, pixels: int, classes: int) -> tuple[Tensor, Tensor]:
    """Stripes whose direction is their class, with noise, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (rows,), generator=generator)
    angle = (labels * math.pi / classes)[:, None, None]
    phase = torch.rand(rows, 1, 1, generator=generator) * 2 * math.pi
    y, x = torch.meshgrid(torch.arange(pixels), torch.arange(pixels), indexing="ij")
    stripes = torch.sin(1.2 * (x * angle.cos() + y * angle.sin()) + phase)
    noise = torch.randn(rows, 3, pixels, pixels, generator=generator)
    return stripes[:, None] + 0.3 * noise, labels


def rate(step: int, steps: int, warmup: int) -> float:
    """The share of the learning rate: a linear warmup, then a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(options: argparse.Namespace) -> list[float]:
    """Train up to so many steps, from the checkpoint if there is one; returns the losses."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    sizes = options.layers, options.width, options.heads, options.pixels, options.patch
    model = ViT(*sizes, options.classes).to(device)
    if options.weights is not None:
        weights = torch.load(options.weights, map_location=device)
        missing = model.load_state_dict(weights, strict=False).missing_keys
        if set(missing) - {"head.weight", "head.bias"}:
            raise ValueError(f"{options.weights} lacks {missing}")
    # The head has the whole rate, the last block 0.75 of it, the one before 0.75², and so on.
    groups = deva_optim.param_groups(model, layer_decay=options.layer_decay)
    optimizer = deva_optim.DeVA(groups, lr=options.lr, weight_decay=options.weight_decay)
    scheduler = LambdaLR(optimizer, lambda step: rate(step, options.steps, options.warmup))
    checkpoint = options.folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    losses = []
    for step in range(scheduler.last_epoch, options.steps):
        mean = 0.0
        for i in range(options.accumulate):
            seed = step * options.accumulate + i
            x, labels = images(seed, options.batch, options.pixels, options.classes)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(x.to(device))
            loss = cross_entropy(logits.float(), labels.to(device), label_smoothing=0.1)
            (loss / options.accumulate).backward()
            mean += loss.item() / options.accumulate
        deva_optim.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(mean)
        if step % options.log_every == 0:
            print(f"step {step}: {mean:.3f}")
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            options.folder.mkdir(parents=True, exist_ok=True)
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save(states, checkpoint.with_suffix(".partial"))
            checkpoint.with_suffix(".partial").replace(checkpoint)
    return losses


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/vision"), help="checkpoint")
    parser.add_argument("--weights", type=Path, help="a state_dict to begin from")
    for name, value in {"lr": 3e-4, "layer-decay": 0.75, "weight-decay": 0.05}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    defaults = {"steps": 300, "warmup": 20, "batch": 64, "accumulate": 1, "classes": 10}
    sizes = {"layers": 6, "width": 192, "heads": 3, "pixels": 32, "patch": 4}
    for name, whole in (defaults | sizes | {"save-every": 100, "log-every": 10}).items():
        parser.add_argument(f"--{name}", type=int, default=whole)
    return parser.parse_args(words)


if __name__ == "__main__":
    train(arguments())
