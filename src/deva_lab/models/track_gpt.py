"""The GPT of modded-nanogpt's optimization track, which entries must leave as it is.

A plain transformer beside the one of `gpt.py`: linear layers with biases, RMS norms with gains,
rotary positions on half of each head, normed queries and keys, ReLU², capped logits; no value
embeddings, no skips. Weights are float32 but for the embedding, in whose precision it computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu, rms_norm, scaled_dot_product_attention

ATTENTION_SCALE: Final = 0.12
LOGIT_CAP: Final = 15.0
ROTARY_BASE: Final = 1024.0
HIDDEN_VARIANCE: Final = 0.33  # times the fan-in


@dataclass(frozen=True)
class TrackSize:
    """How large the model is."""

    layers: int = 12
    width: int = 768
    head: int = 128
    vocabulary: int = 50_304
    dtype: torch.dtype = torch.bfloat16  # of the embedding, and so of the stream


class Linear(nn.Linear):
    """A linear layer with a bias, computed in the precision of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """W x + b."""
        assert self.bias is not None
        return linear(x, self.weight.type_as(x), self.bias.type_as(x))


class Norm(nn.Module):
    """X over its root mean square, times a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """X normed, in its own precision."""
        return rms_norm(x, (x.shape[-1],), weight=self.gains.type_as(x))


class Attention(nn.Module):
    """Causal attention over normed queries and keys."""

    def __init__(self, size: TrackSize) -> None:
        super().__init__()
        self.head = size.head
        self.q, self.k, self.v, self.proj = (Linear(size.width, size.width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width) → the same
        """What attention adds to the stream."""
        q, k, v = (layer(x).unflatten(-1, (-1, self.head)) for layer in (self.q, self.k, self.v))
        q, k = (turned(rms_norm(y, (self.head,))) for y in (q, k))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))  # each (batch, heads, time, head)
        y = scaled_dot_product_attention(q, k, v, is_causal=True, scale=ATTENTION_SCALE)
        added: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return added


def turned(x: Tensor) -> Tensor:  # (batch, time, heads, head) → the same
    """X with the first quarter of its pairs of coordinates turned by the angle of their time."""
    head = x.shape[-1]
    rates = torch.zeros(head // 2, device=x.device)
    rates[: head // 4] = ROTARY_BASE ** -torch.linspace(0, 1, head // 4, device=x.device)
    angles = torch.arange(x.shape[1], device=x.device)[:, None, None] * rates
    cos, sin = angles.cos(), angles.sin()  # (time, 1, head / 2)
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1).type_as(x)


class MLP(nn.Module):
    """Two linear layers with ReLU² between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.proj = Linear(width, 4 * width), Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width) → the same
        """What the MLP adds to the stream."""
        added: Tensor = self.proj(relu(self.fc(x)).square())
        return added


class Block(nn.Module):
    """Attention and an MLP, each added to the normed stream."""

    def __init__(self, size: TrackSize) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(size), MLP(size.width)
        self.norm1, self.norm2 = Norm(size.width), Norm(size.width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after this block."""
        x = x + self.attention(self.norm1(x))
        mlp: Tensor = self.mlp(self.norm2(x))
        return x + mlp


class TrackGPT(nn.Module):
    """The model; its loss is the sum over tokens, in nats.

    >>> size = TrackSize(layers=1, width=16, head=8, vocabulary=11, dtype=torch.float32)
    >>> tokens = torch.zeros(2, 5, dtype=torch.long)
    >>> TrackGPT(size)(tokens, tokens).shape
    torch.Size([])
    """

    def __init__(self, size: TrackSize) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width).to(size.dtype)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.proj = Linear(size.width, size.vocabulary)
        self.norm1, self.norm2 = Norm(size.width), Norm(size.width)
        self.apply(_initialise)
        for name, weight in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.zeros_(weight)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:  # (batch, time) both
        """The sum of the losses of all tokens."""
        x = self.norm1(self.embed(inputs))
        for block in self.blocks:
            x = block(x)
        logits = self.proj(self.norm2(x)).float()
        logits = LOGIT_CAP * logits * (logits.square() + LOGIT_CAP**2).rsqrt()
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def _initialise(module: nn.Module) -> None:
    if isinstance(module, Linear):
        nn.init.normal_(module.weight, std=(HIDDEN_VARIANCE / module.in_features) ** 0.5)
        assert module.bias is not None
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight)
