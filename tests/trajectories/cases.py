"""The cases whose trajectories are recorded: every optimizer and variant in every situation."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from helpers import MATRIX, OPTIMIZERS
from trajectories.situations import CHECKPOINT, FEW, LARGE, RANKS, SITUATIONS, Situation


class Case(NamedTuple):
    """An optimizer in a situation.

    Attributes:
        optimizer: Its name in the table of the tests.
        title: The name of the situation, and of the options if they are the point of it.
        situation: What it goes through.
        dtype: That of the weights.
        options: What its groups are given beside the options of the situation.
        arguments: What its constructor is given beside the groups.
        ranks: How two ranks share the parameters: "rows" or "copies"; None if there is one process.
        blind: Whether the step may not look at values, as on an accelerator.
        loaded: Whether the first half of the steps comes from a checkpoint of the repository.
    """

    optimizer: str
    title: str
    situation: Situation
    dtype: torch.dtype
    options: Mapping[str, Any] = MappingProxyType({})
    arguments: Mapping[str, Any] = MappingProxyType({})
    ranks: str | None = None
    blind: bool = False
    loaded: bool = False

    @property
    def stable(self) -> bool:
        """Whether rounding remains small: see `UNSTABLE`."""
        return self.optimizer not in UNSTABLE.get(self.title, ())

    @property
    def rounding(self) -> float:
        """What rounding may make of a weight."""
        given = {self.dtype}
        if self.dtype != torch.float64:  # which hardly ever is so near to a tie in half precision
            given |= {*self.options.values(), *self.arguments.values()} & set(HALF)
        eps = max(torch.finfo(dtype).eps for dtype in given) / 2
        return LONGEST * eps * (MAGNIFIED if given.isdisjoint(HALF) else 1)

    @property
    def held(self) -> bool:
        """Whether the repository has a reduced recording, which tests hold every version to.

        It must be the same on every processor. In common situations one variant of each class
        will do.
        """
        common = self.optimizer not in CLASSES and self.title in COMMON
        return self.stable and self.dtype == torch.float64 and not common

    def __str__(self) -> str:
        return f"{self.optimizer}, {self.title}, {str(self.dtype).removeprefix('torch.')}"


# There are at most 12 steps, none longer than the largest rate, 2⁻⁵; 16 is the margin. A direction
# is as precise as its computation, times what is divided by in it: a singular value that the
# quintics of msign lift 500 times, a gap between eigenvalues of a thousandth of the largest, or,
# beside the diagonal of a first gradient in its own basis, the √ε of whitening, which is 10⁻⁴. What
# is rounded to half precision is not divided by anything.
LONGEST, MAGNIFIED = 16 * 12 * 2**-5, 1e4

WIDE, HALF = (torch.float64, torch.float32), (torch.bfloat16, torch.float16)
# One name of each class.
CLASSES = ("deva", "deva-sinf", "deva-linf", "adamw", "signum", "lion", "muon", "adamuon", "soap",
           "shampoo", "splus")  # fmt: skip
PAPER = ("factored", "instantaneous")
VARIANTS = ("deva-sinf", *(f"deva-sinf-{v}" for v in (*PAPER, "whitened", "lean")))
KRONECKER = ("soap", "shampoo", "shampoo-ungrafted", "splus")
WITH_BASIS = (*VARIANTS, *KRONECKER)
TRACKED = (*(n for n in OPTIMIZERS if n.startswith("deva-sinf")), "soap")
RESTS = ("deva-linf", "adamw", "signum", "lion")
MSIGN = ("deva", "deva-sinf", "muon", "adamuon")
SAVED = ("deva", "soap", "muon", "shampoo", "splus")
# Where variants of a class differ from each other no more than elsewhere.
COMMON = ("staggered", "one by one", "convolutions", "rest", "not finite", "rising", "zero rows",
          "rank one", "absent", "scheduled", "rate as tensor", "strided", "routed",
          "rows")  # fmt: skip
EXTREME = "huge and tiny"
KINDS = ("newton-schulz", "polar-express", "svd", "soft", "firm")

# The options that the table of optimizers has no row for, and who is run with them.
CHOICES: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("nesterov", {"nesterov": True}, ("signum", "muon", "adamuon", *VARIANTS[1:3], *KRONECKER[1:])),
    ("no nesterov", {"nesterov": False}, ("deva", "deva-sinf-whitened")),
    *((f"msign {k}", {"msign": k}, ("deva", "deva-sinf", "muon")) for k in KINDS),
    ("msign svd", {"msign": "svd"}, (*VARIANTS[1:], "deva-sinf-signed")),
    ("signed", {"sign_stabilize": True}, (*VARIANTS[1:3], "muon")),
    ("not signed", {"sign_stabilize": False}, ("adamuon",)),
    ("short", {"sides": "short"}, WITH_BASIS),
    ("both", {"sides": "both"}, ("deva",)),
    ("skip first", {"skip_first": True}, ("deva", *VARIANTS)),
    ("no skip first", {"skip_first": False}, ("soap",)),
    ("largest side", {"max_dim": 5}, ("deva", *WITH_BASIS)),
    ("every second", {"covariance_every": 2}, ("deva", *VARIANTS)),
    ("each step", {"refresh_every": 1}, WITH_BASIS),
    ("eps", {"eps": 0.25}, tuple(OPTIMIZERS)),
    ("no eps", {"eps": 0.0}, tuple(OPTIMIZERS)),
    ("maximize", {"maximize": True}, CLASSES),
    ("no decay", {"weight_decay": 0.0}, CLASSES),
    ("two betas", {"betas": (0.75, 0.5)}, CLASSES),
    ("three betas", {"betas": (0.75, 0.5, 0.625)}, ("deva", *WITH_BASIS)),
    ("rate of average", {"ema_rate": 0.75}, ("splus",)),
    *((f"variant {v}", {"variant": v}, ("deva",)) for v in ("default", *PAPER)),
    *((f"rest {r}", {"rest": r}, ("deva", "muon", "soap")) for r in RESTS),
    ("narrow state", {"state_dtype": torch.bfloat16}, tuple(OPTIMIZERS)),
)  # fmt: skip

# Where rounding changes weights by more than that, by the title of the case. On one machine such a
# trajectory is the same each time, but on another one it may be different.
UNSTABLE: Mapping[str, tuple[str, ...]] = {
    # The covariances gain one rank at each step, and rounding decides what basis a refresh gives
    # their null space.
    "rank one": ("deva", "deva-rest-linf", *TRACKED, "shampoo", "shampoo-ungrafted"),
    # A gradient is diagonal in its own basis, and the rounding beside the diagonal is divided by
    # its own size.
    "no eps": ("deva", "deva-rest-linf", "deva-sinf-whitened"),
    "no skip first": ("soap",),
    # Where a row has no gradient, its momentum in the basis and their variance are rounding.
    "zero rows": ("soap", "deva-sinf-whitened"),
    # The roots of the first covariances, which are singular, are applied to later gradients.
    "staggered": ("shampoo", "shampoo-ungrafted"),
    "defaults": ("shampoo", "shampoo-ungrafted"),
    # The first covariances have a large null space.
    "large": ("deva-sinf", "soap", "shampoo", "shampoo-ungrafted"),
}


def _in_both(name: str, title: str, situation: Situation, **fields: Any) -> list[Case]:
    return [Case(name, title, situation, d, **fields) for d in WIDE]


def _by_name(cases: Iterable[Case]) -> dict[str, Case]:
    return {str(case): case for case in cases}


CASES = _by_name([
    *(c for n in OPTIMIZERS for t, s in SITUATIONS.items() for c in _in_both(n, t, s)),
    *(c for t, o, names in CHOICES for n in names for c in _in_both(n, t, FEW, options=o)),
    *(Case(n, "few", FEW, torch.bfloat16) for n in OPTIMIZERS),
    *(Case(n, "few", FEW, torch.float16) for n in CLASSES),
    *(Case(n, EXTREME, SITUATIONS[EXTREME], torch.bfloat16) for n in CLASSES),
    # In bfloat16 the order of a sum decides about the last of eight bits.
    *(Case(n, "narrow msign", FEW, torch.float32, {"msign_dtype": torch.bfloat16}) for n in MSIGN),
    *(Case(n, "large", LARGE, torch.float32) for n in ("deva", "deva-sinf", "muon", *KRONECKER)),
    *(Case(n, f"{t}, blind", SITUATIONS[t], torch.float32, blind=True)
      for n in MATRIX for t in ("matrices", "stacks", "not finite", "rising", "zeros")),
    *(Case(n, "checkpoint", CHECKPOINT, torch.float64, loaded=True) for n in SAVED),
])  # fmt: skip

WIRE = {"wire_dtype": torch.bfloat16}
SHARED = _by_name([
    *(Case(n, "rows", RANKS, torch.float64, ranks="rows") for n in OPTIMIZERS),
    *(Case(n, "copies", RANKS, torch.float32, ranks="copies") for n in MATRIX),
    *(Case(n, "narrow wire", RANKS, torch.float32, arguments=WIRE, ranks="copies")
      for n in ("deva", "soap")),
])  # fmt: skip
