"""The GPT of the paper's family: modded-nanogpt as of May 2025, at any size.

Rotary positions on half of each head, RMS norms without weights, normed queries and keys, ReLU²,
projections that start at zero, an untied head with soft-capped logits, value embeddings in the
early layers, and a stream that mixes in its own beginning and, in the second half, the first half.

Heads are narrower in smaller models; what their scores can reach stays the same, so that attention
is as sharp. One learning rate is to be right for all of it, where modded-nanogpt has rates from
0.04 to 0.6 for embeddings, head and scalars. So embeddings start small and logits are not divided
by √width: what a step of that one rate changes is then no small part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu, rms_norm, scaled_dot_product_attention

from ..run.settings import TASKS

SHARPEST: Final = 15.36  # score of attention: 0.12 of the 128 that normed heads of 128 can reach
LOGIT_CAP: Final = 30.0
EMBEDDING_STD: Final = 0.1


class GPTSize(NamedTuple):
    """How large a GPT is, its vocabulary aside."""

    layers: int
    width: int
    head: int  # the width of a head
    context: int  # tokens that it can see
    value_embeddings: int  # in the first so many layers
    validation: int = 16_384  # tokens in an evaluation, at most, so that it costs little
    without_attention: Sequence[int] = ()  # layers that are an MLP alone


SIZES: Final = {name: GPTSize(**row) for name, row in TASKS["gpt"].models.items()}


def norm(x: Tensor) -> Tensor:
    """X over the root mean square of its last dimension."""
    return rms_norm(x, (x.shape[-1],))


class Rotary(nn.Module):
    """Rotary positions: the first quarter of the angles grows with time, the rest stays at zero."""

    cos: Tensor  # (context, head / 2)
    sin: Tensor

    def __init__(self, head: int, context: int) -> None:
        super().__init__()
        rates = torch.zeros(head // 2)
        turning = max(1, head // 4)
        rates[:turning] = 1024.0 ** -torch.linspace(0, 1, turning)
        angles = torch.arange(context)[:, None] * rates  # (context, head / 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (batch, heads, time, head) → the same
        """X with each pair of its coordinates turned by the angle of its time."""
        cos, sin = (t[: x.shape[-2]].to(x.dtype) for t in (self.cos, self.sin))
        a, b = x.chunk(2, dim=-1)  # each (batch, heads, time, head / 2)
        return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


class Attention(nn.Module):
    """Causal attention over normed queries and keys, its values mixed with embedded ones."""

    def __init__(self, size: GPTSize, with_values: bool) -> None:
        super().__init__()
        width, self.head = size.width, size.head
        bound = (3 / width) ** 0.5 / 2  # a uniform distribution of standard deviation 1/(2 √width)
        self.qkv = nn.Parameter(torch.empty(3, width, width).uniform_(-bound, bound))
        self.out = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.out.weight)
        self.mix = nn.Parameter(torch.tensor([0.5, 0.5])) if with_values else None

    def forward(self, x: Tensor, rotary: Rotary, values: Tensor | None) -> Tensor:
        """What attention adds to the stream x, (batch, time, width); `values` is like x."""
        batch, time, width = x.shape
        qkv = linear(x, self.qkv.flatten(0, 1)).view(batch, time, 3, width // self.head, self.head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, head)
        if values is not None and self.mix is not None:
            embedded = values.view(batch, time, -1, self.head).transpose(1, 2)
            v = self.mix[0] * v + self.mix[1] * embedded
        q, k = rotary(norm(q)), rotary(norm(k))
        y = scaled_dot_product_attention(q, k, v, is_causal=True, scale=SHARPEST / self.head)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with ReLU² between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        bound = (3 / width) ** 0.5 / 2
        nn.init.uniform_(self.up.weight, -bound, bound)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width) → the same
        """What the MLP adds to the stream."""
        return self.down(relu(self.up(x)).square())


class Block(nn.Module):
    """Attention and an MLP, each added to the stream and each silent at the start."""

    def __init__(self, size: GPTSize, layer: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.tensor([1.0, 0.0]))
        attends = layer not in size.without_attention
        self.attention = Attention(size, layer < size.value_embeddings) if attends else None
        self.mlp = MLP(size.width)

    def forward(self, x: Tensor, start: Tensor, rotary: Rotary, values: Tensor | None) -> Tensor:
        """The stream after this block; `start` is the stream before the first."""
        x = self.mix[0] * x + self.mix[1] * start
        if self.attention is not None:
            x = x + self.attention(norm(x), rotary, values)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    """A decoder-only transformer.

    Args:
        size: One of `SIZES`, or one's own.
        vocabulary: The number of token ids.

    >>> model = GPT(SIZES["tiny"], vocabulary=100)
    >>> model(torch.zeros(2, 5, dtype=torch.long)).shape
    torch.Size([2, 5, 100])
    """

    def __init__(self, size: GPTSize, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.values = nn.ModuleList(
            nn.Embedding(vocabulary, size.width) for _ in range(size.value_embeddings)
        )
        self.rotary = Rotary(size.head, size.context)
        self.blocks = nn.ModuleList(Block(size, layer) for layer in range(size.layers))
        # One for each layer of the second half; a single layer has none, not an empty parameter.
        self.skips = nn.ParameterList(torch.ones(1) for _ in range(size.layers // 2))
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        nn.init.zeros_(self.head.weight)
        for embedding in (self.embedding, *self.values):
            nn.init.normal_(embedding.weight, std=EMBEDDING_STD)

    def forward(self, tokens: Tensor) -> Tensor:  # (batch, time) → (batch, time, vocabulary)
        """The logits of the token that follows each one."""
        x = start = norm(self.embedding(tokens))
        values = [embedding(tokens) for embedding in self.values]
        values += [None] * (len(self.blocks) - len(values))
        halfway, passed = len(self.skips), list[Tensor]()
        for layer, block in enumerate(self.blocks):
            if layer >= len(self.blocks) - halfway:
                x = x + self.skips[layer - len(self.blocks)] * passed.pop()
            x = block(x, start, self.rotary, values[layer])
            if layer < halfway:
                passed.append(x)
        # The logits are by far the largest tensor: scaled before they are made, capped in place.
        logits: Tensor = self.head(norm(x) * (4 / LOGIT_CAP)).float()
        return LOGIT_CAP * logits.sigmoid_()  # between 0 and the cap, with slope 1 in the middle


# The GPT of modded-nanogpt's optimization track, which entries must leave as it is ----------------
# A plain transformer: linear layers with biases, RMS norms with gains, no value embeddings, no
# skips. Weights are float32 but for the embedding, in whose precision it computes.

TRACK_SCALE: Final = 0.12  # of attention
TRACK_CAP: Final = 15.0  # of logits
HIDDEN_VARIANCE: Final = 0.33  # times the fan-in


class TrackSize(NamedTuple):
    """How large the model is."""

    layers: int = 12
    width: int = 768
    head: int = 128
    context: int = 1024  # tokens that it can see
    vocabulary: int = 50_304
    dtype: torch.dtype = torch.bfloat16  # of the embedding, and so of the stream


class TrackLinear(nn.Linear):
    """A linear layer with a bias, computed in the precision of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """W x + b."""
        return linear(x, self.weight.type_as(x), self.bias.type_as(x))


class TrackNorm(nn.RMSNorm):
    """X over its root mean square, times a gain, in the precision of x."""

    def forward(self, x: Tensor) -> Tensor:
        """X normed."""
        assert self.weight is not None
        return rms_norm(x, self.normalized_shape, self.weight.type_as(x))


class TrackBlock(nn.Module):
    """Causal attention and an MLP with ReLU², each of the normed stream and added to it."""

    def __init__(self, size: TrackSize) -> None:
        super().__init__()
        width, self.head = size.width, size.head
        self.q, self.k, self.v, self.out = (TrackLinear(width, width) for _ in range(4))
        self.up, self.down = TrackLinear(width, 4 * width), TrackLinear(4 * width, width)
        self.norm1, self.norm2 = TrackNorm(width), TrackNorm(width)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:  # (batch, time, width) → the same
        """The stream after this block."""
        y = self.norm1(x)
        q, k, v = (layer(y).unflatten(-1, (-1, self.head)) for layer in (self.q, self.k, self.v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))  # each (batch, heads, time, head)
        q, k = (rotary(norm(y).float()).type_as(y) for y in (q, k))
        y = scaled_dot_product_attention(q, k, v, is_causal=True, scale=TRACK_SCALE)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(relu(self.up(self.norm2(x))).square())


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
        self.rotary = Rotary(size.head, size.context)
        self.blocks = nn.ModuleList(TrackBlock(size) for _ in range(size.layers))
        self.proj = TrackLinear(size.width, size.vocabulary)
        self.norm1, self.norm2 = TrackNorm(size.width), TrackNorm(size.width)
        nn.init.normal_(self.embed.weight)
        for module in self.modules():
            if isinstance(module, TrackLinear):
                nn.init.normal_(module.weight, std=(HIDDEN_VARIANCE / module.in_features) ** 0.5)
        for name, param in self.named_parameters():
            if name.endswith(("out.weight", "down.weight", "proj.weight", "bias")):
                nn.init.zeros_(param)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:  # (batch, time) both
        """The sum of the losses of all tokens."""
        x = self.norm1(self.embed(inputs))
        for block in self.blocks:
            x = block(x, self.rotary)
        logits = self.proj(self.norm2(x)).float()
        logits = TRACK_CAP * logits * (logits.square() + TRACK_CAP**2).rsqrt()
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
