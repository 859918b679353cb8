"""What recorded trajectories go through: the parameters, their gradients and what happens to them.

Every input is a whole number over a power of two, drawn with a seed of its own. So it is the same
on every processor, and no gradient depends on the weights: rounding is not fed back.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]
Change = Callable[[Tensor, int], Tensor | None]  # the gradient of a step, the number of the step

# Without staggering, a parameter moves as it would in an optimizer of its own.
OPTIONS: Mapping[str, Any] = {
    "lr": 2**-6, "weight_decay": 0.125, "refresh_every": 2, "stagger": False,
}  # fmt: skip


@cache
def numbers(key: str, shape: Shape) -> Tensor:
    """Numbers of [−1, 1) in float64, drawn for this key; float32 holds them exactly, too."""
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randint(-(2**20), 2**20, shape, generator=generator).double() / 2**20


def gradient(name: str, shape: Shape, step: int) -> Tensor:
    """The gradient of a parameter at a step from 1 on: a part that stays, and one that does not."""
    return numbers(f"{name}, always", shape) / 2 + numbers(f"{name}, step {step}", shape)


@dataclass(frozen=True)
class Situation:
    """Parameters and what happens to them.

    Attributes:
        shapes: The parameters by name.
        own: Options of single parameters, each of which is then a group of its own.
        options: Options of all parameters.
        changes: What becomes of the gradients of single parameters.
        schedule: What changes the options of a group before each step.
        steps: How many there are.
        saved_after: The step after which the optimizer is saved, and another one goes on.
        strided: Whether the weights are laid out in another order than their dimensions.
        module: What makes a model whose parameters are routed; it then has the shapes.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    own: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=lambda: OPTIONS)
    changes: Mapping[str, Change] = field(default_factory=dict)
    schedule: Callable[[dict[str, Any], int], None] | None = None
    steps: int = 7
    saved_after: int | None = None
    strided: bool = False
    module: Callable[[], nn.Module] | None = None


# Gradients ---------------------------------------------------------------------------------------


def zero_at(*steps: int) -> Change:
    return lambda G, t: torch.zeros_like(G) if t in steps else G


def absent_at(*steps: int) -> Change:
    return lambda G, t: None if t in steps else G


def matrix_zero_at(index: int, *steps: int) -> Change:
    """One matrix of a stack has no gradient at these steps."""

    def change(G: Tensor, t: int) -> Tensor:
        G = G.clone()
        if t in steps:
            G[index] = 0
        return G

    return change


def nonfinite_at(step: int, value: float) -> Change:
    """One number of the gradient is not finite at this step."""

    def change(G: Tensor, t: int) -> Tensor:
        G = G.clone()
        if t == step:
            G.view(-1)[1] = value
        return G

    return change


def times_power(G: Tensor, exponent: int) -> Tensor:
    """G · 2^e; in float64, whose exponents reach eight times as far as those of float32, 2^5e."""
    return G * 2.0 ** (5 * exponent if G.dtype == torch.float64 else exponent)


def scaled_by(*exponents: int) -> Change:
    """A gradient times a power of two; of a stack, each matrix times its own."""

    def change(G: Tensor, t: int) -> Tensor:
        if len(exponents) == 1:
            return times_power(G, *exponents)
        return torch.stack([times_power(g, e) for g, e in zip(G, exponents, strict=True)])

    return change


def jumps(before: int, after: int) -> Change:
    """A gradient times a power of two, and times another one from the fourth step on."""
    return lambda G, t: times_power(G, before if t < 4 else after)


def without_rows(G: Tensor, t: int) -> Tensor:
    G = G.clone()
    G[::2] = 0
    return G


def without_columns(G: Tensor, t: int) -> Tensor:
    return without_rows(G.mT, t).mT


def of_rank_one(G: Tensor, t: int) -> Tensor:
    return G[:, :1] * G[:1]


# Options that change on the way ------------------------------------------------------------------


def scheduled(group: dict[str, Any], step: int) -> None:
    """A rate that is another one at each step, decay and betas that change once."""
    group["lr"] = OPTIONS["lr"] * (1 + step % 3) / 2
    if step == 4:
        group["weight_decay"] = 0.25
        for key in ("betas", "rest_betas"):
            if key in group:
                group[key] = tuple(0.75 * beta for beta in group[key])
        if "momentum" in group:
            group["momentum"] *= 0.75


def scheduled_in_place(group: dict[str, Any], step: int) -> None:
    group["lr"].fill_(OPTIONS["lr"] * (1 + step % 3) / 2)


class Model(nn.Module):
    """One of each kind of layer that the routing tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.attention = nn.MultiheadAttention(6, 2)
        self.norm = nn.LayerNorm(6)
        self.layer = nn.Linear(6, 8)
        self.convolution = nn.Conv2d(2, 4, 2)
        self.recurrent = nn.LSTM(3, 4)
        self.head = nn.Linear(8, 9)


# The table ---------------------------------------------------------------------------------------

# At most twice as many columns as rows, or the other way round: after two gradients both
# covariances have full rank. In the null space of one a basis is what rounding makes of it.
TWINS: Mapping[str, Shape] = {
    "wide": (5, 8), "wide, 2nd": (5, 8), "wide, 3rd": (5, 8), "square": (6, 6),
    "square, 2nd": (6, 6), "bias": (5,), "bias, 2nd": (5,),
}  # fmt: skip
MIXED: Mapping[str, Shape] = {
    "wide": (5, 8), "wide, 2nd": (5, 8), "tall": (7, 4), "square": (6, 6), "stack": (3, 4, 5),
    "bias": (5,),
}  # fmt: skip
RESTING: Mapping[str, Change] = {"stack": matrix_zero_at(1, 1, 2, 3, 5)}

SITUATIONS: Mapping[str, Situation] = {
    "matrices": Situation({"wide": (6, 10), "tall": (10, 6), "square": (7, 7)}),
    "batched": Situation(TWINS),
    "staggered": Situation(TWINS, options={**OPTIONS, "refresh_every": 3, "stagger": True}),
    "one by one": Situation(TWINS, options={**OPTIONS, "foreach": False}),
    "stacks": Situation(
        {"stack": (3, 5, 4), "twin": (3, 5, 4), "deep": (2, 2, 3, 5)},
        own={"deep": {"layout": "stack"}},
        changes=RESTING,
    ),
    "convolutions": Situation(
        {"kernel": (4, 2, 2, 2), "line": (5, 2, 3)}, own={"line": {"layout": "conv"}}
    ),
    "split": Situation(
        {
            "equal": (12, 5),
            "unequal": (9, 4),
            "columns": (4, 9),
            "equal columns": (5, 8),
            "stack": (2, 7, 4),
            "kernel": (6, 2, 2, 1),
        },
        own={
            "equal": {"split": 3},
            "unequal": {"split": (2, 3, 4)},
            "columns": {"split": (2, 2, 5), "split_dim": -1},
            "equal columns": {"split": 2, "split_dim": -1},
            "stack": {"split": (3, 4)},
            "kernel": {"split": 2},
        },
    ),
    "rest": Situation(
        {
            "bias": (5,),
            "bias, 2nd": (5,),
            "scalar": (),
            "row": (1, 4),
            "column": (4, 1),
            "as one": (4, 5),
        },
        own={"as one": {"role": "vector"}},
    ),
    "not finite": Situation(
        MIXED,
        changes={
            "wide": nonfinite_at(4, torch.nan),
            "tall": nonfinite_at(1, torch.inf),
            "stack": nonfinite_at(6, -torch.inf),
            "bias": nonfinite_at(5, torch.nan),
        },
    ),
    "huge and tiny": Situation(
        {"huge": (5, 8), "tiny": (5, 8), "stack": (3, 4, 5), "bias": (5,)},
        changes={
            "huge": scaled_by(100),
            "tiny": scaled_by(-100),
            "stack": scaled_by(-100, 0, 100),
            "bias": scaled_by(-100),
        },
    ),
    "rising": Situation(
        {"rising": (6, 6), "from one": (6, 6), "falling": (5, 8), "bias": (5,)},
        changes={
            "rising": jumps(-100, 100),
            "from one": jumps(0, 100),
            "falling": jumps(100, -20),
            "bias": jumps(-100, 100),
        },
    ),
    "zeros": Situation(
        {"late": (5, 8), "pausing": (5, 8), "never": (4, 4), "stack": (3, 4, 5), "bias": (5,)},
        changes={
            "late": zero_at(1, 2, 3),
            "pausing": zero_at(4, 5),
            "never": zero_at(*range(1, 8)),
            "bias": zero_at(1, 6),
            **RESTING,
        },
    ),
    "zero rows": Situation(
        {"rows": (6, 4), "columns": (4, 6)},
        changes={"rows": without_rows, "columns": without_columns},
    ),
    "rank one": Situation({"rank one": (4, 6)}, changes={"rank one": of_rank_one}),
    "absent": Situation(
        MIXED,
        changes={
            "wide": absent_at(1, 2),
            "tall": absent_at(5),
            "square": absent_at(*range(1, 8)),
            "bias": absent_at(2, 3),
        },
    ),
    "resumed": Situation(
        {**MIXED, "fused": (7, 4)},
        own={"fused": {"split": (3, 4)}},
        changes=RESTING,  # one matrix has no basis yet when the state is saved
        saved_after=3,
    ),
    "scheduled": Situation(MIXED, schedule=scheduled),
    "rate as tensor": Situation(
        MIXED, options={**OPTIONS, "lr": torch.tensor(OPTIONS["lr"])}, schedule=scheduled_in_place
    ),
    "strided": Situation({**MIXED, "kernel": (4, 2, 2, 2)}, strided=True),
    "routed": Situation(module=Model),
    "defaults": Situation(MIXED, options={}, steps=12),
    "defaults, square": Situation({"square": (6, 6), "bias": (5,)}, options={}, steps=12),
}

# For options and for weights in half precision, which are run in this situation alone.
FEW = Situation(MIXED, changes=RESTING)
# Where sizes of blocks matter: large products and decompositions are cut into smaller ones.
LARGE = Situation({"long": (520, 24), "middle": (130, 40), "middle, 2nd": (130, 40)}, steps=4)
RANKS = Situation(
    {"wide": (5, 7), "tall": (7, 5), "twin": (7, 5), "stack": (3, 5, 4), "kernel": (4, 2, 2, 2),
     "fused": (7, 4), "bias": (9,)},
    own={"fused": {"split": (3, 4)}},
    changes={**RESTING, "wide": nonfinite_at(4, torch.nan)},
)  # fmt: skip
CHECKPOINT = Situation(
    {**MIXED, "fused": (7, 4), "narrow": (4, 6), "scalar": ()},
    own={"fused": {"split": (3, 4)}, "narrow": {"state_dtype": torch.bfloat16}},
    changes={"stack": matrix_zero_at(1, 1, 2, 3, 4, 5, 7)},  # no basis yet when it is saved
    steps=10,
)
