"""What tests share: the table of optimizers, parameters, gradients, and what the project says.

Two runs whose arithmetic is the same agree bit for bit (`same`). Where it is batched or laid out in
another way they agree to the rounding of float64 (`close`).
"""

import copy
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.testing import assert_close

import deva_optim as do
from deva_optim.core.methods import method_of

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it
    import tomli as tomllib

# The project and the system that it is tested on -------------------------------------------------

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
_LAB: dict[str, Any] = tomllib.loads((ROOT / "lab/pyproject.toml").read_text("utf-8"))
LAB: dict[str, Any] = {  # what the hook adds included, but for the library itself
    **_LAB["project"],
    "dependencies": _LAB["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"],
}

POSIX = os.name == "posix"
needs_posix = pytest.mark.skipif(
    not POSIX, reason="needs POSIX: signals to other processes, SIGKILL, ps"
)

# The table that drives the shared tests ----------------------------------------------------------

# Every optimizer and variant, by name. A new row of `METHODS` appears here the day it is added:
# `test_every_method_is_here` sees to it.
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "deva": do.DeVA,
    "deva-rest-linf": partial(do.DeVA, nesterov=False, rest="deva-linf"),
    "deva-sinf": do.DeVASinf,
    "deva-sinf-factored": partial(do.DeVASinf, variant="factored"),
    "deva-sinf-instantaneous": partial(do.DeVASinf, variant="instantaneous"),
    "deva-sinf-whitened": partial(do.DeVASinf, variant="whitened", nesterov=True),
    "deva-sinf-lean": partial(do.DeVASinf, variant="lean", msign="soft", nesterov=True),
    "deva-sinf-signed": partial(do.DeVASinf, sign_stabilize=True),
    "deva-sinf-nesterov": partial(do.DeVASinf, nesterov=True),
    "deva-sinf-short": partial(do.DeVASinf, sides="short"),
    "deva-linf": do.DeVALinf,
    "deva-linf-nesterov": partial(do.DeVALinf, nesterov=True),
    "adamw": do.AdamW,
    "signum": do.Signum,
    "lion": do.Lion,
    "muon": partial(do.Muon, nesterov=False),
    "muon-original": partial(do.Muon, adjust_lr_fn="original"),
    "muon-polar-express": partial(do.Muon, nesterov=False, msign="polar-express"),
    "muon-soft": partial(do.Muon, nesterov=False, msign="soft"),
    "adamuon": do.AdaMuon,
    "normuon": do.NorMuon,
    "soap": do.SOAP,
    "shampoo": do.Shampoo,
    "shampoo-ungrafted": partial(do.Shampoo, graft="none"),
    "splus": do.SPlus,
}

MATRIX = tuple(
    name for name in OPTIMIZERS if not name.startswith(("deva-linf", "adamw", "signum", "lion"))
)

# Parameters, gradients, and optimizers trained on them ------------------------------------------

Params = list[nn.Parameter]
History = list[list[Tensor | None]]  # the gradients of each step

# Without staggering, a parameter moves as it would in an optimizer of its own.
OPTIONS: dict[str, Any] = {
    "lr": 2**-6, "weight_decay": 0.125, "refresh_every": 2, "stagger": False,
}  # fmt: skip
SHAPES = ((), (5,), (4, 4), (3, 5), (5, 3), (1, 4), (4, 1), (2, 3, 4), (4, 2, 3, 3))
AS_MATRIX = {"role": "matrix"}
HALF = (torch.bfloat16, torch.float16)


def build(name: str, params: Any, **options: Any) -> Optimizer:
    """An optimizer of one group, which takes options that its constructor does not have."""
    return OPTIMIZERS[name]([{"params": list(params), **OPTIONS, **options}])


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Params:
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def clones(params: Params) -> Params:
    return [nn.Parameter(p.detach().clone()) for p in params]


def gradients(params: Params, steps: int) -> History:
    return [[torch.randn_like(p) for p in params] for _ in range(steps)]


def zeros(params: Params, steps: int) -> History:
    return [[torch.zeros_like(p) for p in params] for _ in range(steps)]


def advance(optimizer: Optimizer, params: Params, history: History) -> None:
    for grads in history:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()


def trained(name: str, start: Params, history: History, **options: Any) -> Params:
    params = clones(start)
    advance(build(name, params, **options), params, history)
    return params


def trained_apart(name: str, start: Params, history: History, **options: Any) -> Params:
    """Every parameter in an optimizer of its own, which never hears of a gradient that is None."""
    own = [[[grads[i]] for grads in history if grads[i] is not None] for i in range(len(start))]
    return [trained(name, [p], h, **options)[0] for p, h in zip(start, own, strict=True)]


def tensors(optimizer: Optimizer) -> dict[int, dict[str, Tensor]]:
    """A copy of the state, by number of parameter."""
    return copy.deepcopy(optimizer.state_dict()["state"])


def same(ours: Any, theirs: Any) -> None:
    assert_close(ours, theirs, rtol=0, atol=0)


# A step in float64 rounds by 2⁻⁵³ of numbers of order one. The quintics of msign magnify that up to
# 3.4⁵ ≈ 500 times, and the gaps of a covariance, above a thousandth of its norm, up to 1000 times.
# Nine steps at the most follow, each of the length of the rate; 16 is the margin.
ROUNDING = 16 * 9 * OPTIONS["lr"] * 500 * 1000 * 2**-53


def close(ours: Any, theirs: Any, atol: float = ROUNDING) -> None:
    """Equal to the rounding of a few steps in float64, on numbers of order one."""
    assert_close(ours, theirs, rtol=0, atol=atol)


def differ(ours: Params, theirs: Params) -> bool:
    """Whether every parameter differs."""
    return not any(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def off_diagonal(L: Tensor, Q: Tensor) -> float:
    """The share of Qᵀ L Q that is off the diagonal: how far Q is from the eigenvectors of L."""
    D = Q.mT @ L @ Q
    return float((D - torch.diag(D.diagonal())).norm() / L.norm())


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Numbers in float64 that the seed alone determines."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(n: int, seed: int) -> Tensor:
    return torch.linalg.qr(randn(n, n, seed=seed)).Q


def losses(params: Params, targets: list[Tensor]) -> Tensor:
    pairs = zip(params, targets, strict=True)
    return torch.stack([0.5 * (p.double() - t.double()).square().sum() for p, t in pairs])


def descend(optimizer: Optimizer, params: Params, targets: list[Tensor], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        losses(params, targets).sum().backward()
        optimizer.step()


def keeps_basis(name: str) -> bool:
    group = build(name, parameters((2, 2))).param_groups[0]
    return method_of(group).basis is not None


# One name of each class, for what the variants of a class have no part in: groups, schedules …
CLASSES = tuple({type(build(n, parameters((2, 2)))): n for n in reversed(OPTIMIZERS)}.values())

every = pytest.mark.parametrize("name", OPTIMIZERS)
every_class = pytest.mark.parametrize("name", CLASSES)
every_matrix_class = pytest.mark.parametrize("name", [n for n in CLASSES if n in MATRIX])
with_matrices = pytest.mark.parametrize("name", MATRIX)
with_bases = pytest.mark.parametrize("name", [n for n in MATRIX if keeps_basis(n)])
of_deva = pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n.startswith("deva")])
