"""From a seed to a case: what is drawn, how often, and which combinations make no sense."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import torch
from torch import nn

from fuzz.case import Case, Event, Grad, Group, Param, Step
from helpers import OPTIMIZERS

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16

SHAPES = (
    (), (1,), (5,), (1, 4), (4, 1), (2, 2), (3, 3), (4, 4), (2, 5), (5, 2), (3, 7), (4, 6), (6, 4),
    (2, 2, 3), (3, 4, 4), (1, 3, 3), (4, 2, 2, 2), (2, 2, 2, 2, 2),
)  # fmt: skip
SCALES = (1e-45, 1e-40, 1.2e-38, 1e-30, 1e-22, 1e-19, 1e-10, 1e10, 1e15, 1e19, 1e25, 1e30, 3e38)
BEYOND = (1e-310, 1e-200, 1e-160, 1e100, 1e154, 1e300)  # of float64 alone
# β₁² < β₂, and every β₁² of a run below every β₂: a momentum that outlives the variance it is
# divided by would make an update of any size, by the formulas and not by a fault.
BETAS = ((0.0, 0.9), (0.1, 0.5), (0.5, 0.5), (0.5, 0.9), (0.5, 0.99))
SLOW_BETAS = ((0.8, 0.95), (0.9, 0.9), (0.9, 0.99), (0.9, 0.999), (0.95, 0.95))
KIND_WEIGHTS = {
    "normal": 40, "none": 5, "zero": 12, "nan": 4, "inf": 2, "-inf": 2, "rank-one": 6,
    "constant": 5, "zero-rows": 5, "zero-columns": 3, "zero-matrix": 6, "one-entry": 4, "spread": 3,
}  # fmt: skip


def case_of(seed: int) -> Case:
    """The case of a seed, always the same one."""
    rng = Random(seed)
    calm = rng.random() < 0.25
    name = rng.choice(list(OPTIMIZERS))
    groups = tuple(_group(rng, name, calm) for _ in range(rng.choice((1, 1, 2))))
    params = _params(rng, groups, calm)
    steps = _steps(rng, name, params, groups, calm)
    twin = rng.choice(("one-by-one", "other-path") if calm else ("mirror", "spared", "", ""))
    return Case(
        optimizer=name,
        params=params,
        groups=groups,
        steps=steps,
        path=rng.choice(("host", "device")),
        small=rng.random() < 0.15,
        twins=(twin,) if twin else (),
    )


# Groups and their options -----------------------------------------------------------------------


def _group(rng: Random, name: str, calm: bool) -> Group:
    options: dict[str, Any] = {"lr": rng.choice((1e-4, 1e-3, 1e-2))}
    options["betas"] = rng.choice(BETAS if rng.random() < 0.5 else SLOW_BETAS)
    if rng.random() < 0.5:
        options["betas"] = (*options["betas"], rng.choice((0.95, 0.99)))
    for key, choices in _choices(calm).items():
        if rng.random() < 0.2 and accepts(name, key):
            options[key] = rng.choice(choices)
    if rng.random() < 0.05:
        options["lr"] = 0.0
    if rng.random() < 0.2:
        options |= rng.choice(_READINGS)
    if calm:
        options["sides"] = "short"
    if rng.random() < 0.1:  # torch's name for the first of the betas
        options["momentum"] = options["betas"][0]
    return Group(options, tensor_lr=rng.random() < 0.1)


def _choices(calm: bool) -> dict[str, tuple[Any, ...]]:
    """The options that are given now and then, and their values."""
    always: dict[str, tuple[Any, ...]] = {
        "weight_decay": (0.0, 0.1),
        "refresh_every": (1, 2, 3),
        "covariance_every": (1, 2, 3),
        "stagger": (True, False),
        "nesterov": (True, False),
        "maximize": (True,),
        "foreach": (True, False),
        "msign": ("newton-schulz", "polar-express", "svd", "soft", "firm"),
        "sign_stabilize": (True,),
        "skip_first": (True, False),
        "max_dim": (2, 3, 4),
        "rest": ("adamw", "deva-linf", "signum", "lion"),
        "rest_betas": (*BETAS, *SLOW_BETAS),
        "nonfinite": ("skip", "skip", "raise"),
        "ema_rate": (0.0, 0.9),
        "stochastic_rounding": (False,),
    }
    if calm:
        return always | {"rest_betas": SLOW_BETAS, "eps": (1e-8, 1e-3)}
    return always | {
        "eps": (0.0, 1e-30, 1e-12, 1e-8, 1e-3),
        "sides": ("both", "short"),
        "state_dtype": (torch.bfloat16, torch.float32, "int8"),
        "msign_dtype": (torch.bfloat16, torch.float16, torch.float32, torch.float64),
    }


# How a group reads its parameters: with a split, all of them have to fit.
_READINGS: tuple[dict[str, Any], ...] = (
    {"role": "vector"},
    {"role": "matrix"},
    {"layout": "stack", "role": "matrix"},
    {"layout": "conv", "role": "matrix"},
    {"split": 2, "role": "matrix"},
    {"split": (2, 4), "role": "matrix"},
    {"split": (2, 2, 3), "split_dim": -1, "role": "matrix"},
)
_FITTING: dict[Any, tuple[tuple[int, ...], ...]] = {
    2: ((4, 3), (6, 4), (4, 2, 2, 2), (2, 4, 3)),
    (2, 4): ((6, 4), (6, 3), (6, 2, 2, 1), (2, 6, 3)),
    (2, 2, 3): ((3, 7), (2, 7), (2, 3, 7)),
}
_MATRICES = tuple(shape for shape in SHAPES if len(shape) > 1 and min(shape) > 1)


@cache
def accepts(name: str, key: str) -> bool:
    """Whether an optimizer takes an option that only some of them take."""
    if key not in ("skip_first", "sign_stabilize", "covariance_every"):
        return True
    try:
        value = 2 if key == "covariance_every" else True
        OPTIMIZERS[name]([{"params": [nn.Parameter(torch.ones(2, 2))], key: value}])
    except ValueError:
        return False
    return True


# Parameters -------------------------------------------------------------------------------------


def _params(rng: Random, groups: tuple[Group, ...], calm: bool) -> tuple[Param, ...]:
    found: list[Param] = []
    for g, group in enumerate(groups):
        for _ in range(rng.choice((1, 1, 2, 3))):
            if found and found[-1].group == g and rng.random() < 0.5:  # of one shape: a batch
                like = found[-1]
                found.append(Param(like.shape, like.dtype, g, seed=rng.randrange(10**6)))
                continue
            found.append(
                Param(
                    shape=rng.choice(_shapes(group)),
                    dtype=F64 if calm else rng.choice((F32, F32, F32, F64, BF16, F16)),
                    group=g,
                    layout=rng.choice(("plain",) * 8 + ("transposed", "sliced")),
                    zero=rng.random() < 0.1,
                    seed=rng.randrange(10**6),
                )
            )
    return tuple(found)


def _shapes(group: Group) -> tuple[tuple[int, ...], ...]:
    if "split" in group.options:
        return _FITTING[group.options["split"]]
    return _MATRICES if group.options.get("role") == "matrix" else SHAPES


# Steps, gradients and events --------------------------------------------------------------------


def _steps(
    rng: Random, name: str, params: tuple[Param, ...], groups: tuple[Group, ...], calm: bool
) -> tuple[Step, ...]:
    late = len(groups) > 1 and rng.random() < 0.4
    count = rng.choice((2, 3, 3, 4))
    joins = rng.randrange(1, count)
    size = 1.0 if rng.random() < 0.4 else rng.choice(SCALES)  # of most gradients of a run
    steps = []
    for i in range(count):
        events: list[Event] = [("add", 1)] if late and i == joins else []
        if rng.random() < 0.4:
            events.append(_event(rng, name, params, groups, calm))
        grads = tuple(
            _calm_grad(rng) if calm else _grad(rng, p, groups[p.group], size) for p in params
        )
        # a momentum that decays through many zero gradients: with β₁ = 0.5 it loses a digit in
        # three steps, and beside a small gradient soon falls out of the range of float32
        repeat = 25 if not calm and rng.random() < 0.01 else 1
        steps.append(Step(grads, tuple(events), repeat, seed=rng.randrange(10**6)))
    return tuple(steps)


def _calm_grad(rng: Random) -> Grad:
    roll = rng.random()
    return Grad("none") if roll < 0.04 else Grad("nan") if roll < 0.07 else Grad()


def _grad(rng: Random, param: Param, group: Group, size: float) -> Grad:
    (kind,) = rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))
    if kind in ("none", "zero"):
        return Grad(kind)
    dtype = None
    if rng.random() < 0.1:
        dtype = rng.choice((F64, F32, BF16, F16))
    scale = size if rng.random() < 0.7 else rng.choice((1.0, *SCALES))
    wide = param.dtype == F64 and not group.options.get("state_dtype")  # a state that can hold it
    if wide and rng.random() < 0.1:
        scale = rng.choice(BEYOND)
    layout = rng.choice(("plain",) * 6 + ("transposed", "sliced"))
    return Grad(kind, scale, "expanded" if kind == "constant" else layout, dtype)


def _event(
    rng: Random, name: str, params: tuple[Param, ...], groups: tuple[Group, ...], calm: bool
) -> Event:
    what = rng.choice(("save", "deepcopy", "telemetry", "set", "set", "freeze", "thaw"))
    if rng.random() < (0.2 if name == "splus" else 0.03):
        return ("averaged",)
    if what in ("freeze", "thaw"):
        return (what, rng.randrange(len(params)))
    if what != "set":
        return (what,)
    g = rng.randrange(len(groups))
    beta1, beta2 = groups[g].options["betas"][:2]
    choices: list[Event] = [("lr", 0.0), ("lr", 3e-3), ("weight_decay", 0.2), ("foreach", False)]
    choices += [("betas", (0.5 * beta1, beta2)), ("nesterov", True), ("eps", 1e-6)]
    return ("set", g, *rng.choice(choices))
