"""PyTorch's own description of an optimizer, `OptimizerInfo`, given for each of ours.

It says what an optimizer takes, every option at least once, what it refuses and with which words,
and which schedulers go with it; `test_info` and `test_state` hold each of ours to its
description.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import hypothesis
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import lr_scheduler as lrs
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
)
from torch.testing._internal.common_utils import TestCase

import deva_optim as do

hypothesis.settings.load_profile("deva")  # the import of torch's common_utils loads its own

Kwargs = dict[str, Any]

# What each optimizer takes -----------------------------------------------------------------------

COMMON: dict[str, Kwargs] = {
    "default": {},
    "lr": {"lr": 0.01},
    "tensor lr": {"lr": torch.tensor(0.01)},
    "weight_decay": {"weight_decay": 0.25},
    "maximize": {"maximize": True, "weight_decay": 0.0},
    "wide state": {"state_dtype": torch.float64},
    "narrow state": {"state_dtype": torch.bfloat16},
    "state in codes": {"state_dtype": "int8"},
    "nonfinite": {"nonfinite": "raise"},
    "to the nearest": {"stochastic_rounding": False},
    "averaged": {"ema_rate": 0.9},
}
BETAS: dict[str, Kwargs] = {"betas": {"betas": (0.8, 0.9)}}
EPS: dict[str, Kwargs] = {"eps": {"eps": 1e-6}}
NESTEROV: dict[str, Kwargs] = {"nesterov": {"nesterov": True}}
MOMENTUM: dict[str, Kwargs] = {"momentum": {"momentum": 0.8}}
TORCHS: dict[str, Kwargs] = {
    "ns_steps": {"ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5)},
    "original": {"adjust_lr_fn": "original"},
    "as torch's": {"adjust_lr_fn": None},
}
MSIGN: dict[str, Kwargs] = {
    "msign": {"msign": "polar-express"},
    "exact msign": {"msign": "svd"},
    "soft msign": {"msign": "soft"},
    "firm msign": {"msign": "firm"},
    "msign_dtype": {"msign_dtype": torch.bfloat16},
}
REST: dict[str, Kwargs] = {
    "rest": {"rest": "signum", "rest_betas": (0.8, 0.9)},
    "rest of DeVA": {"rest": "deva-linf"},
}
SIDES: dict[str, Kwargs] = {
    "refresh_every": {"refresh_every": 3, "stagger": False},
    "sides": {"sides": "short"},
    "max_dim": {"max_dim": 4},
}
COVARIANCES: dict[str, Kwargs] = {"three betas": {"betas": (0.8, 0.9, 0.7)}}
DEVA: dict[str, Kwargs] = {
    **BETAS,
    **EPS,
    **NESTEROV,
    **MSIGN,
    **REST,
    **SIDES,
    **COVARIANCES,
    "factored": {"variant": "factored"},
    "instantaneous": {"variant": "instantaneous"},
    "whitened": {"variant": "whitened"},
    "whitened, nesterov": {"variant": "whitened", "nesterov": True},
    "lean": {"variant": "lean", "msign": "firm"},
    "lean, covariance_every": {"variant": "lean", "covariance_every": 3},
    "sign_stabilize": {"variant": "default", "sign_stabilize": True},
    "skip_first": {"skip_first": True},
}
OWN: dict[type[Optimizer], dict[str, Kwargs]] = {
    do.DeVA: DEVA,
    do.DeVASinf: DEVA,
    do.DeVALinf: {**BETAS, **EPS, **NESTEROV},
    do.AdamW: {**BETAS, **EPS, "fused": {"fused": True}},
    do.Signum: {**MOMENTUM, **NESTEROV},
    do.Lion: {**BETAS},
    do.Muon: {**MOMENTUM, **NESTEROV, **MSIGN, **REST, **EPS, **TORCHS},
    do.AdaMuon: {
        **BETAS,
        **EPS,
        **NESTEROV,
        **MSIGN,
        **REST,
        "unsigned": {"sign_stabilize": False},
    },
    do.NorMuon: {**BETAS, **EPS, **NESTEROV, **MSIGN, **REST},
    do.SOAP: {**BETAS, **EPS, **REST, **SIDES, **COVARIANCES, "first": {"skip_first": False}},
    do.Shampoo: {
        **BETAS,
        **EPS,
        **NESTEROV,
        **REST,
        **SIDES,
        **COVARIANCES,
        "ungrafted": {"graft": "none"},
    },
    do.SPlus: {**BETAS, **NESTEROV, **SIDES},
}


def inputs_of(cls: type[Optimizer]) -> Callable[..., list[OptimizerInput]]:
    def inputs(device: Any, dtype: Any = None) -> list[OptimizerInput]:
        table = {**COMMON, **OWN[cls]}  # copied: a scheduler changes a tensor lr in place
        return [OptimizerInput(None, copy.deepcopy(kw), desc) for desc, kw in table.items()]

    return inputs


# What each optimizer refuses ---------------------------------------------------------------------

nan, inf = float("nan"), float("inf")
BAD_VALUES: list[tuple[Kwargs, type[Exception], str]] = [
    ({"lr": -1e-3}, ValueError, r"lr must be at least 0 and finite, got -0\.001"),
    ({"lr": nan}, ValueError, "lr must be at least 0 and finite, got nan"),
    ({"lr": inf}, ValueError, "lr must be at least 0 and finite, got inf"),
    ({"lr": "fast"}, ValueError, "lr must be at least 0 and finite, got 'fast'"),
    ({"lr": torch.tensor([1e-3, 1e-3])}, ValueError, r"lr must be a float or a 0-D .* \(2,\)"),
    ({"lr": torch.tensor(1)}, ValueError, "0-D floating-point tensor"),
    ({"lr": torch.tensor(-0.1)}, ValueError, "lr must be at least 0"),
    ({"weight_decay": -0.1}, ValueError, r"weight_decay must be at least 0 and .*, got -0\.1"),
    ({"betas": (1.0, 0.9)}, ValueError, r"betas\[0\] must be in \[0, 1\), got 1\.0"),
    ({"betas": (-0.1, 0.9)}, ValueError, r"betas\[0\] must be in \[0, 1\), got -0\.1"),
    ({"betas": (0.9, 1.2)}, ValueError, r"betas\[1\] must be in \[0, 1\), got 1\.2"),
    ({"betas": (0.9, 0.9, 1.0)}, ValueError, r"betas\[2\] must be in \[0, 1\), got 1\.0"),
    ({"betas": (0.9,)}, ValueError, r"betas must be two or three numbers, got \(0\.9,\)"),
    ({"betas": 0.9}, ValueError, r"betas must be two or three numbers, got 0\.9"),
    ({"amsgrad": True}, ValueError, "amsgrad is not supported, and must be False, got True"),
    (
        {"adjust_lr_fn": "half"},
        ValueError,
        "adjust_lr_fn must be 'match_rms_adamw', .*, got 'half'",
    ),
    ({"ns_steps": 0}, ValueError, "ns_steps must be a whole number of at least 1, got 0"),
    ({"ns_coefficients": (1.0, 2.0)}, ValueError, "ns_coefficients must be three numbers, got"),
    ({"rest_lr": -1.0}, ValueError, "rest_lr must be at least 0 and finite, got -1.0"),
    ({"momentum": 1.5}, ValueError, r"momentum must be in \[0, 1\), got 1\.5"),
    ({"rest_betas": (0.9, nan)}, ValueError, r"rest_betas\[1\] must be in \[0, 1\), got nan"),
    ({"eps": -1e-8}, ValueError, "eps must be at least 0 and finite, got -1e-08"),
    ({"ema_rate": 1.0}, ValueError, r"ema_rate must be in \[0, 1\), got 1"),
    ({"stagger": 1}, TypeError, "stagger must be True or False, got 1"),
    ({"refresh_every": 0}, ValueError, "refresh_every must be a whole number .* 1, got 0"),
    ({"refresh_every": 2.5}, ValueError, r"refresh_every must be a whole number .*, got 2\.5"),
    ({"refresh_every": True}, ValueError, "refresh_every must be a whole number .*, got True"),
    ({"covariance_every": 0}, ValueError, "covariance_every must be a whole number of .*, got 0"),
    ({"max_dim": 0}, ValueError, "max_dim must be a whole number of at least 1, got 0"),
    ({"sides": "shrot"}, ValueError, "one of both, short, got 'shrot'; did you mean 'short'"),
    ({"msign_dtype": torch.int8}, ValueError, "msign_dtype must be None or one of torch.float64"),
    ({"msign": "newton-shulz"}, ValueError, "'newton-shulz'; did you mean 'newton-schulz'"),
    ({"rest": "adam"}, ValueError, "got 'adam'; did you mean 'adamw'"),
    ({"variant": "factord"}, ValueError, "got 'factord'; did you mean 'factored'"),
    ({"variant": "whitened", "sign_stabilize": True}, ValueError, "sign_stabilize undoes variant"),
    ({"variant": "ungrafted"}, ValueError, "variant 'ungrafted' is none of deva-sinf's"),
    ({"graft": "adm"}, ValueError, "graft must be one of adam, none, got 'adm'; did you mean"),
    ({"nonfinite": "skp"}, ValueError, "one of skip, raise, got 'skp'; did you mean 'skip'"),
    (
        {"state_dtype": torch.int8},
        ValueError,
        r"state_dtype must be None, 'int8' or .* got torch\.int8",
    ),
    ({"state_dtype": "int4"}, ValueError, r"state_dtype must be None, 'int8' or .* got 'int4'"),
    ({"stochastic_rounding": 1}, TypeError, "stochastic_rounding must be True or False, got 1"),
    ({"nesterov": 1}, TypeError, "nesterov must be True or False, got 1"),
    ({"maximize": None}, TypeError, "maximize must be True or False, got None"),
    ({"sign_stabilize": "yes"}, TypeError, "sign_stabilize must be True or False, got 'yes'"),
    ({"skip_first": 0}, TypeError, "skip_first must be True or False, got 0"),
    ({"foreach": "yes"}, TypeError, "foreach must be None, True or False, got 'yes'"),
    ({"compile": "indctor"}, ValueError, "or the name of a backend of torch.compile, got 'indct"),
]
UNSUPPORTED = ("fused", "capturable", "differentiable", "amsgrad")


def options_of(cls: type[Optimizer]) -> set[str]:
    return set(inspect.signature(cls).parameters) - {"params"}


def errors_of(cls: type[Optimizer]) -> Callable[..., list[ErrorOptimizerInput]]:
    def errors(device: Any, dtype: Any) -> list[ErrorOptimizerInput]:
        weight = nn.Parameter(torch.randn(3, 4, device=device, dtype=dtype))
        imaginary = weight.detach().cfloat()
        imaginary.grad = torch.ones_like(imaginary)  # frozen when it is given, and so not refused
        bad = [x for x in BAD_VALUES if options_of(cls).issuperset(x[0])]
        refused = set(UNSUPPORTED) - options_of(cls)
        bad += [({x: True}, TypeError, f"unexpected keyword argument '{x}'") for x in refused]
        return [
            *(_refused([weight], error, regex, kwargs) for kwargs, error, regex in bad),
            *(_refused(params, error, regex) for params, error, regex in _bad_params(weight)),
            _refused([imaginary], RuntimeError, "is complex, which is not supp", at_step=True),
        ]

    return errors


# DeVA makes groups of a list before anything else sees it: some messages are those of routing.
BAD_LIST = (ValueError, TypeError)


def _bad_params(weight: nn.Parameter) -> list[tuple[Any, Any, str]]:
    other = nn.Parameter(weight.detach().clone())
    imaginary, empty = nn.Parameter(weight.detach().cfloat()), nn.Parameter(weight.detach()[:0])
    twice = [{"params": [weight]}, {"params": [other, weight]}]
    half_named = [{"params": [weight]}, {"params": [("other", other)]}]
    return [
        (weight, TypeError, "iterable of Tensors or dicts"),
        ([], ValueError, "empty parameter list|at least one parameter"),
        ([weight, weight], ValueError, r"param_groups\[0\]\['params'\]\[1\] is given twice"),
        ([("a", weight), ("b", weight)], ValueError, "b is given twice"),
        (twice, ValueError, "is given twice; every parameter belongs to one group"),
        ([("weight", weight), other], BAD_LIST, "with/without names|names for all .* or for none"),
        (half_named, ValueError, "with/without names"),
        ([{"params": {weight, other}}], TypeError, "ordered collections"),
        ([weight, 1.0], TypeError, "can only optimize Tensors|must yield parameters"),
        ([weight * 2], ValueError, "non-leaf"),
        ([("z", imaginary)], TypeError, r"z is complex; optimize torch\.view_as_real"),
        ([("empty", empty)], ValueError, r"empty has no elements \(shape \(0, 4\)\)"),
        ([{"params": [weight], "lr": -1}], ValueError, "lr must be at least 0 and finite, got -1"),
        ([{"params": [weight], "betas": (0.9, 1.2)}], ValueError, r"betas\[1\] .* got 1\.2"),
    ]


def _refused(
    params: Any, error: Any, regex: str, kwargs: Kwargs | None = None, *, at_step=False
) -> ErrorOptimizerInput:
    when = OptimizerErrorEnum.STEP_ERROR if at_step else OptimizerErrorEnum.CONSTRUCTION_ERROR
    optim_input = OptimizerInput(params, kwargs or {}, regex)
    return ErrorOptimizerInput(optim_input, error_on=when, error_type=error, error_regex=regex)


# The table ---------------------------------------------------------------------------------------


def one_cycle(optimizer: Optimizer) -> lrs.OneCycleLR:
    """A rate that doubles and falls, and a momentum that falls and rises."""
    rates = [2 * float(group["lr"]) for group in optimizer.param_groups]
    return lrs.OneCycleLR(optimizer, rates, total_steps=200)


SCHEDULES: tuple[list[Callable[[Optimizer], Any]], ...] = (
    [lambda o: lrs.LinearLR(o, 0.4, total_iters=4), lambda o: lrs.ReduceLROnPlateau(o)],
    [lambda o: lrs.StepLR(o, 10, 0.9), lambda o: lrs.CosineAnnealingLR(o, 200)],
    [one_cycle],
)
OPTIM_DB = [
    OptimizerInfo(
        cls,
        optim_inputs_func=inputs_of(cls),
        optim_error_inputs_func=errors_of(cls),
        scheduler_inputs=SCHEDULES,
        supported_impls=("foreach",),
        not_og_supported_flags=(
            "foreach",
            "maximize",
            "nonfinite",
            "state_dtype",
            "stochastic_rounding",
        ),
        supports_sparse=False,
        supports_complex=False,
        has_capturable_arg=False,
    )
    for cls in OWN
]


def each_input(info: OptimizerInfo, device: Any) -> Iterator[tuple[str, Kwargs]]:
    """Every input by its name."""
    for x in info.optim_inputs_func(device=device):
        yield x.desc, x.kwargs


# How they are tested -----------------------------------------------------------------------------


def affine(device: Any, dtype: torch.dtype) -> tuple[list[nn.Parameter], Callable[[], Tensor]]:
    """A weight and a bias, and a loss of them that is not yet at its minimum."""
    params = [nn.Parameter(torch.randn(s, device=device, dtype=dtype)) for s in ((8, 5), (8,))]
    x = torch.randn(5, device=device, dtype=dtype)
    return params, lambda: (params[0].mv(x) + params[1]).square().sum()


def take(
    optimizer: Optimizer, loss: Callable[[], Tensor], steps: int, schedulers: Iterable[Any] = ()
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        for scheduler in schedulers:
            plateau = isinstance(scheduler, lrs.ReduceLROnPlateau)
            scheduler.step(*([value.item()] if plateau else []))


def twins(params: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().clone()) for p in params]


def push(optimizer: Optimizer, params: Iterable[Tensor], seed: int, steps: int = 1) -> None:
    """Steps with gradients that the seed determines."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p)
        optimizer.step()


class DescribedTestCase(TestCase):
    """A test of torch's kind, with what ours assert."""

    def assert_same(self, ours: Any, theirs: Any, atol: float = 0.0) -> None:
        """Of tensors and containers of them, which no plain assert compares."""
        self.assertEqual(ours, theirs, rtol=0, atol=atol, exact_dtype=True)  # noqa: PT009

    def assert_moved(self, kwargs: Kwargs, before: Tensor, after: Tensor) -> None:
        """Down, or up for `maximize`."""
        assert after.isfinite()
        sign = -1 if kwargs.get("maximize") else 1
        assert sign * after.item() < sign * before.item()

    def assert_same_state(self, ours: Optimizer, theirs: Optimizer) -> None:
        """Of equal parameters in equal groups; names are no part of the state."""
        a, b = ours.state_dict(), theirs.state_dict()
        self.assert_same(a["state"], b["state"])
        for group, other in zip(a["param_groups"], b["param_groups"], strict=True):
            keys = (group.keys() | other.keys()) - {"param_names"}
            self.assert_same({k: group[k] for k in keys}, {k: other[k] for k in keys})
