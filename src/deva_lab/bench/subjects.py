"""What is measured: optimizers, on the shapes of the hidden matrices of real models.

Weights are (out, in), convolutions (out, in, kh, kw), stacks of experts (experts, out, in). Fused
projections are cut apart, as the routing of deva_optim does it.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import deva_optim as do
from deva_optim.core.matrices import parts

from ..errors import UsageError, unknown
from ..run.user_source import find, is_user_task

Shape = tuple[int, ...]

# Shapes -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShapeSet:
    """The shapes of the parameters of one optimizer: blocks of one kind, and what comes before."""

    about: str  # what it is, in a few words
    block: tuple[Shape, ...]
    blocks: int = 1
    stem: tuple[Shape, ...] = ()
    name: str = ""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """One a parameter."""
        return self.stem + self.blocks * self.block

    @property
    def numel(self) -> int:
        """How many parameters, in numbers."""
        return sum(map(math.prod, self.shapes))


def gpt_block(d: int) -> tuple[Shape, ...]:
    """Query, key, value, output, up and down of a transformer of width d."""
    return (*4 * ((d, d),), (4 * d, d), (d, 4 * d))


def llama_block(d: int, keys: int, inner: int) -> tuple[Shape, ...]:
    """Query, output; key, value; gate, up; down, with fewer heads for keys and values."""
    return (*2 * ((d, d),), *2 * ((keys, d),), *2 * ((inner, d),), (d, inner))


def _stage(inputs: int, outputs: int) -> tuple[Shape, ...]:
    """The six 3×3 convolutions of a stage of ResNet-20."""
    return ((outputs, inputs, 3, 3), *5 * ((outputs, outputs, 3, 3),))


# Mixtral's layer (8 experts, width : feed-forward = 2 : 7), an eighth as wide.
_MOE: Final = (
    *2 * ((512, 512),),
    *2 * ((128, 512),),
    (8, 512),
    *2 * ((8, 1792, 512),),
    (8, 512, 1792),
)
_RESNET20: Final = ((16, 3, 3, 3), *_stage(16, 16), *_stage(16, 32), *_stage(32, 64))
_LLAMA_1B, _LLAMA_8B = llama_block(2048, 512, 8192), llama_block(4096, 1024, 14336)

SETS: Final[dict[str, ShapeSet]] = {
    "gpt-256": ShapeSet("four GPT blocks of width 256", gpt_block(256), 4),
    "gpt-768": ShapeSet("one GPT block of width 768", gpt_block(768)),
    "gpt2-small": ShapeSet("the hidden matrices of GPT-2 small", gpt_block(768), 12),
    "llama-1b-block": ShapeSet("one block of Llama 3.2 1B", _LLAMA_1B),
    "llama-8b": ShapeSet("the hidden matrices of Llama 3 8B", _LLAMA_8B, 32),
    "vit-l": ShapeSet("the hidden matrices of ViT-L/16", gpt_block(1024), 24, ((1024, 3, 16, 16),)),
    "resnet20": ShapeSet("the convolutions of ResNet-20 for CIFAR", _RESNET20),
    "moe": ShapeSet("a Mixtral layer, an eighth as wide", _MOE),
    "tiny": ShapeSet("one 9×9 matrix", ((9, 9),)),
    "tiny-batch": ShapeSet("a hundred 9×9 matrices in one parameter", ((100, 9, 9),)),
}


def shape_set(name: str) -> ShapeSet:
    """The set of this name; `gpt2-small:2` has two of its blocks, `gpt-512` is one of any width.

    The name of a user's task, such as my_task.py, stands for the hidden matrices of its model.
    """
    if is_user_task(name):
        from ..run.tasks import model_of  # which needs more packages than a benchmark

        return ShapeSet("", hidden_matrices(model_of(name)), name=find(name).name)
    if name in SETS:
        return replace(SETS[name], name=name)
    base, colon, count = name.partition(":")
    prefix, width = base[:4], base[4:]
    if base in SETS:
        found = SETS[base]
    elif prefix == "gpt-" and _positive(width):
        found = ShapeSet("", gpt_block(int(width)))
    else:
        raise unknown("shape set", base, [*SETS, "gpt-WIDTH"])
    if colon and not _positive(count):
        raise UsageError(f"the number of blocks must be a positive integer, got {name!r}")
    return replace(found, about="", name=name, blocks=int(count or found.blocks))


def _positive(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def hidden_matrices(model: nn.Module) -> tuple[Shape, ...]:
    """The shapes of what a matrix method gets of a model, fused weights cut apart."""
    found = [
        part.shape
        for group in do.param_groups(model)
        if group["role"] == "matrix"
        for _, p in group["params"]
        for part in parts(
            tuple(p.shape), group["layout"], group.get("split"), group.get("split_dim", -2)
        )
    ]
    if not found:
        raise UsageError("the model has no hidden matrices: there is nothing to measure")
    return tuple(found)


def matrices(shape: Shape) -> list[tuple[int, int]]:
    """A parameter as matrices: a convolution is one, a stack as many as it holds.

    >>> matrices((16, 3, 3, 3)), matrices((2, 5, 7))
    ([(16, 27)], [(5, 7), (5, 7)])
    """
    if len(shape) > 3:
        return [(shape[0], math.prod(shape[1:]))]
    *lead, n, m = shape
    return math.prod(lead) * [(n, m)]


# Subjects -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What a method keeps of an n×m matrix.

    Attributes:
        numbers: How many, as a sum such as `nm + 2s²`, s being the short side.
        square: Whether both sides of a square matrix count as short.
        moment_bytes: Bytes of a number of nm; everything else has 4.
        counters: Bytes of what is counted: for a parameter, for each of its matrices, and for each
            in a stack besides.

    >>> State("2nm + s²").bytes([(3, 5)])
    156
    """

    numbers: str
    square: bool = False
    moment_bytes: int = 4
    counters: tuple[int, int, int] = (0, 0, 0)

    @property
    def formula(self) -> str:
        """The numbers kept of an n×m matrix."""
        small = "" if self.moment_bytes == 4 else f", nm in {self.moment_bytes} bytes"
        return self.numbers + small

    def bytes(self, shapes: Iterable[Shape]) -> int:
        """The bytes of the state of parameters of these shapes, counters included."""
        of_parameter, of_matrix, of_stacked = self.counters
        total = 0
        for shape in shapes:
            each = of_matrix + of_stacked * (len(shape) == 3)
            total += of_parameter + sum(each + self._matrix(n, m) for n, m in matrices(shape))
        return total

    def _matrix(self, n: int, m: int) -> int:
        both = n * n + m * m
        short = both if self.square and n == m else min(n, m) ** 2
        sizes = {"nm": n * m, "(n+m)": n + m, "n": n, "(n²+m²)": both, "s²": short}
        terms = re.findall(r"(\d*)(\S+)(?: \+ |$)", self.numbers)
        bytes_of = {"nm": self.moment_bytes}
        return sum(int(count or 1) * sizes[size] * bytes_of.get(size, 4) for count, size in terms)


# The same for all; a decay of zero would spare some of them a pass.
_COMMON: Final = {"lr": 1e-3, "weight_decay": 0.1}


@dataclass(frozen=True)
class Subject:
    """An optimizer under test.

    Attributes:
        module: Where its class is; a subject is left out if that is not installed.
        optimizer: The name of the class.
        state: The formula of its state.
        options: What it is given besides rate, decay and the time between refreshes.
        compile: The backend of torch.compile by which one of ours computes its updates.
    """

    name: str
    module: str
    optimizer: str
    state: State
    options: Mapping[str, Any] = field(default_factory=dict)
    compile: str | None = None

    @property
    def kind(self) -> Literal["ours", "yardstick", "peer"]:
        """Whose it is."""
        if self.module == "deva_optim":
            return "ours"
        return "yardstick" if self.module == __name__ else "peer"

    @property
    def matrices_only(self) -> bool:
        """Whether it knows neither convolutions nor stacks, and is given their matrices."""
        return self.kind != "ours" and self.optimizer != "AdamW"

    @property
    def refreshes(self) -> bool:
        """Whether some of its steps do more than others."""
        return "²" in self.state.numbers

    @property
    def missing(self) -> str | None:
        """Why it cannot be measured here, or None if it can."""
        package = self.module.split(".")[0]
        if find_spec(self.module) is None:
            return f"{package} is not installed"
        if not hasattr(import_module(self.module), self.optimizer):
            return f"this version of {package} has no {self.optimizer}"
        return None

    def build(self, params: list[Tensor], refresh_every: int) -> Optimizer:
        """The optimizer for parameters, with so many steps between two refreshes of a basis."""
        make: Callable[..., Optimizer] = getattr(import_module(self.module), self.optimizer)
        period = "refresh_every" if self.kind == "ours" else "precondition_frequency"
        every = {period: refresh_every} if self.refreshes else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the parameters have no names
            optimizer = make(params, **_COMMON, **every, **self.options)
        if self.compile is not None:
            for group in optimizer.param_groups:
                group["compile"] = self.compile
        return optimizer


class PlainMuon(Optimizer):
    """The yardstick: Muon as torch.optim.Muon computes it, in the precision of its parameters.

    M ← β M + (1 − β) G, X ← (1 − ηλ) X − η · 0.2 √max(n, m) · msign(M), a matrix at a time.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-3, weight_decay: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step; the yardstick has no use for a closure."""
        for group in self.param_groups:
            for X in group["params"]:
                state = self.state[X]
                if not state:
                    state["exp_avg"] = torch.zeros_like(X)
                M = state["exp_avg"].lerp_(X.grad, 1 - group["momentum"])
                X.mul_(1 - group["lr"] * group["weight_decay"])
                X.add_(newton_schulz(M), alpha=-group["lr"] * 0.2 * max(X.shape) ** 0.5)


def newton_schulz(M: Tensor) -> Tensor:
    """Five of Jordan's X ← a X + (b K + c K²) X, K = X Xᵀ, from M / ‖M‖, on the short side."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = M.shape[0] > M.shape[1]
    X = M.mT if tall else M
    X = X / X.norm()
    for _ in range(5):
        K = X @ X.mT
        X = torch.addmm(X, torch.addmm(K, K, K, beta=b, alpha=c), X, beta=a)
    return X.mT if tall else X


def _ours(name: str, optimizer: str, state: State, **options: Any) -> Subject:
    return Subject(name, "deva_optim", optimizer, state, options)


def _basis(numbers: str, **more: Any) -> State:
    """L, R and what is made of them.

    Counted are the step, the clock and who waits for a basis; of a matrix its exponent, and in a
    stack how long it was idle.
    """
    return State(numbers, counters=(4 + 8 + 8, 8, 4), **more)


def _spectral(numbers: str) -> State:
    return State(numbers, counters=(4, 8, 0))


_ONE, _TWO = (State(numbers, counters=(4 + 8, 0, 0)) for numbers in ("nm", "2nm"))  # elementwise
_SHORT: Final = _basis("2nm + 2s²", square=True)
_BOTH: Final = _basis("2nm + 2(n²+m²)")
_BF16: Final = _basis("2nm + 2(n²+m²)", moment_bytes=2)
_SOAP: Final = State("2nm + 2(n²+m²)")
_TORCH: Final = State("2nm", counters=(4, 0, 0))
# As ours is measured: no Nesterov, and the scale that makes a rate of AdamW's right.
_MUON: Final = {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}
# Its own limit, 2048, would spare it the bases of long sides that ours compute.
_HEAVYBALL: Final = {"max_precond_dim": 10_000, "merge_dims": False, "betas": (0.95, 0.95)}

# fmt: off
_ROWS: Final = (
    _ours("deva",               "DeVA", _basis("nm + (n+m) + 2s²")),
    _ours("deva-soft",          "DeVA", _SHORT, variant="whitened", msign="soft"),
    _ours("deva-short",         "DeVASinf", _SHORT, sides="short"),
    _ours("deva-both",          "DeVASinf", _BOTH),
    _ours("deva-factored",      "DeVASinf", _basis("nm + (n+m) + 2(n²+m²)"), variant="factored"),
    _ours("deva-instantaneous", "DeVASinf", _BOTH, variant="instantaneous"),
    _ours("deva-whitened",      "DeVASinf", _BOTH, variant="whitened"),
    _ours("deva-both-bf16",     "DeVASinf", _BF16, state_dtype=torch.bfloat16),
    _ours("muon",               "Muon", _spectral("nm"), nesterov=False),
    _ours("muon-original",      "Muon", _spectral("nm"), adjust_lr_fn="original"),
    _ours("adamuon",            "AdaMuon", _spectral("2nm")),
    _ours("normuon",            "NorMuon", _spectral("nm + n")),
    _ours("soap",               "SOAP", _BOTH),
    _ours("soap-short",         "SOAP", _SHORT, sides="short"),
    _ours("shampoo",            "Shampoo", _BOTH),
    _ours("shampoo-ungrafted",  "Shampoo", _basis("nm + 2(n²+m²)"), graft="none"),
    _ours("splus",              "SPlus", _BOTH),
    _ours("adamw",              "AdamW", _TWO),
    _ours("deva-linf",          "DeVALinf", _TWO),
    _ours("signum",             "Signum", _ONE),
    _ours("lion",               "Lion", _ONE),
    Subject("plain-muon",       __name__, "PlainMuon", State("nm")),
    Subject("torch-adamw",      "torch.optim", "AdamW", _TORCH, {"foreach": True}),
    Subject("torch-muon",       "torch.optim", "Muon", State("nm"), _MUON),
    Subject("pytorch_optimizer-soap", "pytorch_optimizer", "SOAP", _SOAP),
    Subject("heavyball-soap",   "heavyball", "SOAP", _SOAP, _HEAVYBALL),
)
# fmt: on

SUBJECTS: Final[dict[str, Subject]] = {row.name: row for row in _ROWS}
"""Every subject by name, in the order of the table."""


def matching(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """The names of subjects that match any of the patterns, in the order of the names.

    >>> matching(["deva-*", "soap"], ["soap", "muon", "deva-both"])
    ['soap', 'deva-both']
    """
    known, patterns = list(names), list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise unknown("subject", pattern, known)
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
