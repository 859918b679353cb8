"""PyTorch's own description of an optimizer, `OptimizerInfo`, given for each of ours and tested.

PyTorch drives the tests of its optimizers from such descriptions. Those tests (test/test_optim.py)
are not part of the package, so these are written anew; each names the one that it stands for. Left
out is what needs another device (fused, capturable, multi-GPU, peak memory), what no optimizer here
claims (sparse gradients, complex parameters, differentiable; all are refused, see `test_errors`),
and checkpoints from before `step` was a tensor, of which there are none.
"""

import copy
import inspect
import io
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as lrs
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    optims,
)
from torch.testing._internal.common_utils import TestCase, parametrize

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
    "state_dtype": {"state_dtype": torch.float64},
    "nonfinite": {"nonfinite": "raise"},
}
BETAS: dict[str, Kwargs] = {"betas": {"betas": (0.8, 0.9)}}
EPS: dict[str, Kwargs] = {"eps": {"eps": 1e-6}}
NESTEROV: dict[str, Kwargs] = {"nesterov": {"nesterov": True}}
MOMENTUM: dict[str, Kwargs] = {"momentum": {"momentum": 0.8}}
MSIGN: dict[str, Kwargs] = {
    "msign": {"msign": "polar-express"},
    "exact msign": {"msign": "svd"},
    "soft msign": {"msign": "soft"},
    "msign_dtype": {"msign_dtype": torch.bfloat16},
}
REST: dict[str, Kwargs] = {"rest": {"rest": "signum", "rest_betas": (0.8, 0.9)}}
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
    "sign_stabilize": {"variant": "default", "sign_stabilize": True},
    "skip_first": {"skip_first": True},
}
OWN: dict[type[Optimizer], dict[str, Kwargs]] = {
    do.DeVA: DEVA,
    do.DeVASinf: DEVA,
    do.DeVALinf: {**BETAS, **EPS, **NESTEROV},
    do.AdamW: {**BETAS, **EPS},
    do.Signum: {**MOMENTUM, **NESTEROV},
    do.Lion: {**BETAS},
    do.Muon: {**MOMENTUM, **NESTEROV, **MSIGN, **REST, **EPS},
    do.AdaMuon: {
        **BETAS,
        **EPS,
        **NESTEROV,
        **MSIGN,
        **REST,
        "unsigned": {"sign_stabilize": False},
    },
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
    do.SPlus: {**BETAS, **NESTEROV, **SIDES, "ema_rate": {"ema_rate": 0.9}},
}


def inputs_of(cls: type[Optimizer]) -> Callable[..., list[OptimizerInput]]:
    def inputs(device: Any, dtype: Any = None) -> list[OptimizerInput]:
        table = {**COMMON, **OWN[cls]}  # copied: a scheduler changes a tensor lr in place
        return [OptimizerInput(None, copy.deepcopy(kw), desc) for desc, kw in table.items()]

    return inputs


# What each optimizer refuses ---------------------------------------------------------------------

BAD_VALUES: list[tuple[Kwargs, type[Exception], str]] = [
    ({"lr": -1e-3}, ValueError, r"lr must be at least 0 and finite, got -0\.001"),
    ({"lr": float("nan")}, ValueError, "lr must be at least 0 and finite"),
    ({"lr": torch.tensor([1e-3, 1e-3])}, ValueError, r"0-D .* got a tensor of shape \(2,\)"),
    ({"lr": torch.tensor(1)}, ValueError, "0-D floating-point tensor"),
    ({"weight_decay": -1}, ValueError, "weight_decay must be at least 0 and finite, got -1"),
    ({"betas": (1.0, 0.9)}, ValueError, r"betas\[0\] must be in \[0, 1\), got 1\.0"),
    ({"betas": (0.9, -0.1)}, ValueError, r"betas\[1\] must be in \[0, 1\), got -0\.1"),
    ({"betas": (0.9,)}, ValueError, "betas must be two or three numbers"),
    ({"momentum": 1.0}, ValueError, r"betas\[0\] must be in \[0, 1\), got 1\.0"),
    ({"rest_betas": (0.9, 2)}, ValueError, r"rest_betas\[1\] must be in \[0, 1\), got 2"),
    ({"eps": -1e-8}, ValueError, "eps must be at least 0 and finite"),
    ({"ema_rate": 1}, ValueError, r"ema_rate must be in \[0, 1\), got 1"),
    ({"stagger": 1}, TypeError, "stagger must be True or False, got 1"),
    ({"refresh_every": 0}, ValueError, "refresh_every must be a whole number of at least 1"),
    ({"max_dim": 0}, ValueError, "max_dim must be a whole number of at least 1"),
    ({"sides": "long"}, ValueError, "sides must be one of both, short, got 'long'"),
    ({"msign_dtype": torch.int8}, ValueError, "msign_dtype must be None or one of torch.float64"),
    ({"msign": "newton"}, ValueError, "did you mean 'newton-schulz'"),
    ({"rest": "adam"}, ValueError, "did you mean 'adamw'"),
    ({"variant": "factor"}, ValueError, "did you mean 'factored'"),
    ({"graft": "sgd"}, ValueError, "graft must be one of adam, none, got 'sgd'"),
    ({"nonfinite": "ignore"}, ValueError, "nonfinite must be one of skip, raise"),
    ({"state_dtype": torch.int32}, ValueError, "state_dtype must be None or one of"),
    ({"nesterov": 1}, TypeError, "nesterov must be True or False, got 1"),
    ({"maximize": None}, TypeError, "maximize must be True or False, got None"),
    ({"sign_stabilize": "yes"}, TypeError, "sign_stabilize must be True or False"),
    ({"skip_first": 0}, TypeError, "skip_first must be True or False"),
    ({"foreach": "yes"}, TypeError, "foreach must be None, True or False"),
]
UNSUPPORTED = ("fused", "capturable", "differentiable", "amsgrad")


def options_of(cls: type[Optimizer]) -> set[str]:
    return set(inspect.signature(cls).parameters) - {"params"}


def errors_of(cls: type[Optimizer]) -> Callable[..., list[ErrorOptimizerInput]]:
    def errors(device: Any, dtype: Any) -> list[ErrorOptimizerInput]:
        weight = nn.Parameter(torch.randn(3, 4, device=device, dtype=dtype))
        sparse, imaginary = weight.detach().clone(), weight.detach().cfloat()
        sparse.grad = torch.ones_like(sparse).to_sparse()
        imaginary.grad = torch.ones_like(imaginary)  # frozen when it is given, and so not refused
        bad = [x for x in BAD_VALUES if options_of(cls).issuperset(x[0])]
        bad += [({x: True}, TypeError, f"unexpected keyword argument '{x}'") for x in UNSUPPORTED]
        return [
            *(_refused([weight], error, regex, kwargs) for kwargs, error, regex in bad),
            *(_refused(params, error, regex) for params, error, regex in _bad_params(weight)),
            _refused([sparse], RuntimeError, "is sparse .* which is not supported", at_step=True),
            _refused([imaginary], RuntimeError, "is complex, which is not supp", at_step=True),
        ]

    return errors


# DeVA routes a list before the engine sees it, so that some of its messages are its own.
BAD_LIST = (ValueError, TypeError)


def _bad_params(weight: nn.Parameter) -> list[tuple[Any, Any, str]]:
    other = nn.Parameter(weight.detach().clone())
    twice = [{"params": [weight]}, {"params": [other, weight]}]
    half_named = [{"params": [weight]}, {"params": [("other", other)]}]
    return [
        (weight, TypeError, "iterable of Tensors or dicts"),
        ([], ValueError, "empty parameter list|at least one parameter"),
        ([weight, weight], ValueError, "parameter 1 of group 0 is given twice"),
        (twice, ValueError, "is given twice; every parameter belongs to one group"),
        ([("weight", weight), other], BAD_LIST, "with/without names|names for all .* or for none"),
        (half_named, ValueError, "with/without names"),
        ([{"params": {weight, other}}], TypeError, "ordered collections"),
        ([weight, 1.0], TypeError, "can only optimize Tensors|must yield parameters"),
        ([weight * 2], ValueError, "non-leaf"),
        ([nn.Parameter(weight.detach().cfloat())], TypeError, "is complex.*view_as_real"),
        ([nn.Parameter(weight.detach()[:0])], ValueError, r"has no elements \(shape \(0, 4\)\)"),
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

SCHEDULES: tuple[list[Callable[[Optimizer], Any]], ...] = (
    [lambda o: lrs.LinearLR(o, 0.4, total_iters=4), lambda o: lrs.ReduceLROnPlateau(o)],
    [lambda o: lrs.StepLR(o, 10, 0.9), lambda o: lrs.CosineAnnealingLR(o, 200)],
    [lambda o: lrs.OneCycleLR(o, [2 * float(g["lr"]) for g in o.param_groups], total_steps=200)],
)
OPTIM_DB = [
    OptimizerInfo(
        cls,
        optim_inputs_func=inputs_of(cls),
        optim_error_inputs_func=errors_of(cls),
        scheduler_inputs=SCHEDULES,
        supported_impls=("foreach",),
        not_og_supported_flags=("foreach", "maximize", "nonfinite", "state_dtype"),
        supports_sparse=False,
        supports_complex=False,
        has_capturable_arg=False,
    )
    for cls in OWN
]


def configurations(info: OptimizerInfo, device: Any) -> Iterator[tuple[str, Kwargs]]:
    """Every input with every implementation; torch's own helper leaves foreach out on the CPU."""
    for x in info.optim_inputs_func(device=device):
        for impl, on in itertools.product(info.supported_impls, (True, False)):
            yield f"{x.desc}, {impl}={on}", {**copy.deepcopy(x.kwargs), impl: on}


def each_input(info: OptimizerInfo, device: Any) -> Iterator[tuple[str, Kwargs]]:
    """Every input, the implementation left to the optimizer."""
    for x in info.optim_inputs_func(device=device):
        yield x.desc, x.kwargs


def affine(
    device: Any, dtype: torch.dtype, *, contiguous: bool = True
) -> tuple[list[nn.Parameter], Callable[[], Tensor]]:
    """A weight and a bias, and a loss of them that is not yet at its minimum."""
    tail = () if contiguous else (2,)
    start = [torch.randn(*shape, *tail, device=device, dtype=dtype) for shape in ((8, 5), (8,))]
    params = [nn.Parameter(x if contiguous else x[..., 0]) for x in start]
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


def named(params: list[nn.Parameter], with_names: bool) -> list[Any]:
    return [(f"part{i}", p) for i, p in enumerate(params)] if with_names else params


class TestOptimizerInfo(TestCase):
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

    # The descriptions ----------------------------------------------------------------------------

    @optims(OPTIM_DB)
    def test_inputs_cover_every_option(self, device, dtype, optim_info):
        """test_optim_infos_do_not_specify_global_cliquey_kwargs, and nothing else is left out."""
        inputs = optim_info.optim_inputs_func(device=device)
        given = {key for x in inputs for key in x.kwargs}
        # What concerns several ranks takes processes: see test_distributed.py.
        ranks = {"process_group", "wire_dtype"}
        assert given == options_of(optim_info.optim_cls) - {"foreach"} - ranks

    def test_every_optimizer_is_described(self, device):
        public = (getattr(do, name) for name in do.__all__)
        classes = {x for x in public if isinstance(x, type) and issubclass(x, Optimizer)}
        assert {info.optim_cls for info in OPTIM_DB} == classes

    @optims(OPTIM_DB)
    def test_errors(self, device, dtype, optim_info):
        """test_errors."""
        for error in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            given = error.optimizer_error_input
            with self.subTest(f"{given.desc} {given.kwargs}"):
                if error.error_on is OptimizerErrorEnum.STEP_ERROR:
                    optimizer = optim_info.optim_cls(given.params, **given.kwargs)
                    before = [p.detach().clone() for p in given.params]
                    with pytest.raises(error.error_type, match=error.error_regex):
                        optimizer.step()
                    self.assert_same([p.detach() for p in given.params], before)
                    assert not optimizer.state
                else:
                    with pytest.raises(error.error_type, match=error.error_regex):
                        optim_info.optim_cls(given.params, **given.kwargs)

    # Where it goes -------------------------------------------------------------------------------

    @parametrize("contiguous", [True, False])
    @optims(OPTIM_DB)
    def test_goes_the_right_direction(self, device, dtype, optim_info, contiguous):
        """test_forloop_goes_right_direction, for both implementations."""
        for desc, kwargs in configurations(optim_info, device):
            with self.subTest(desc):
                params, loss = affine(device, dtype, contiguous=contiguous)
                before = loss()
                take(optim_info.optim_cls(params, **kwargs), loss, steps=6)
                self.assert_moved(kwargs, before, loss())

    @parametrize("contiguous", [True, False])
    @optims(OPTIM_DB)
    def test_goes_far_with_schedulers(self, device, dtype, optim_info, contiguous):
        """test_forloop_goes_right_direction with_lrsched, over enough steps to arrive."""
        for i, schedule in enumerate(optim_info.scheduler_inputs):
            with self.subTest(i):
                params, loss = affine(device, dtype, contiguous=contiguous)
                # SPlus takes a rate a hundred times as large; the bias of its model hardly moves.
                lr = 1.0 if optim_info.optim_cls is do.SPlus else 0.05
                optimizer = optim_info.optim_cls(params, lr=lr, weight_decay=0.0)
                before = loss()
                take(optimizer, loss, 120, [make(optimizer) for make in schedule])
                assert loss().item() < 0.5 * before.item()

    @optims(OPTIM_DB)
    def test_inputs_with_schedulers(self, device, dtype, optim_info):
        """test_forloop_goes_right_direction with_lrsched, for every input."""
        for schedule in optim_info.scheduler_inputs:
            for desc, kwargs in each_input(optim_info, device):
                with self.subTest(desc):
                    params, loss = affine(device, dtype)
                    optimizer = optim_info.optim_cls(params, **kwargs)
                    before = loss()
                    take(optimizer, loss, 5, [make(optimizer) for make in schedule])
                    self.assert_moved(kwargs, before, loss())

    @optims(OPTIM_DB)
    def test_groups_with_schedulers(self, device, dtype, optim_info):
        """test_param_group_with_lrscheduler_goes_right_direction."""
        for i, schedule in enumerate(optim_info.scheduler_inputs):
            with self.subTest(i):
                (weight, bias), loss = affine(device, dtype)
                groups = [{"params": [weight]}, {"params": [bias], "lr": 0.01}]
                optimizer = optim_info.optim_cls(groups)
                ratio = optimizer.param_groups[1]["lr"] / optimizer.param_groups[0]["lr"]
                before = loss()
                take(optimizer, loss, 20, [make(optimizer) for make in schedule])
                self.assert_moved({}, before, loss())
                rates = [group["lr"] for group in optimizer.param_groups]
                assert rates[1] / rates[0] == pytest.approx(ratio)

    @optims(OPTIM_DB)
    def test_groups_have_their_own_weight_decay(self, device, dtype, optim_info):
        """test_param_groups_weight_decay."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                (weight, bias), _ = affine(device, dtype)
                start = twins([weight, bias])
                settings = [{**kwargs, "weight_decay": wd} for wd in (0.5, 0.0)]
                groups = [
                    {"params": [p], **setting}
                    for p, setting in zip((weight, bias), settings, strict=True)
                ]
                optimizer = optim_info.optim_cls(groups, **kwargs)
                for _ in range(3):
                    for p in (weight, bias):
                        p.grad = torch.zeros_like(p)
                    optimizer.step()
                self.assert_same(bias, start[1])
                assert (weight.abs() < start[0].abs()).all()

    @optims(OPTIM_DB)
    def test_groups_have_their_own_lr(self, device, dtype, optim_info):
        """test_param_groups_lr."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params, loss = affine(device, dtype)
                still = nn.Parameter(torch.randn(4, 3, device=device, dtype=dtype))
                start, before = still.detach().clone(), loss()
                groups = [{"params": params, **kwargs, "lr": 0.01}, {"params": [still]}]
                optimizer = optim_info.optim_cls(groups, **{**kwargs, "lr": 0.0})
                take(optimizer, lambda f=loss, p=still: f() + p.sum(), steps=5)
                self.assert_moved(kwargs, before, loss())
                self.assert_same(still.detach(), start)

    @optims(OPTIM_DB, dtypes=[torch.float64])
    def test_tensor_lr(self, device, dtype, optim_info):
        """test_tensor_lr."""
        for desc, kwargs in configurations(optim_info, device):
            with self.subTest(desc):
                params, _ = affine(device, dtype)
                others = twins(params)
                lr = torch.tensor(0.01, dtype=dtype)
                push(optim_info.optim_cls(params, **{**kwargs, "lr": lr}), params, 1, steps=4)
                push(optim_info.optim_cls(others, **{**kwargs, "lr": 0.01}), others, 1, steps=4)
                # One rounding apart: U times a tensor is rounded before it is subtracted.
                self.assert_same(params, others, atol=1e-12)

    @parametrize("shape", [(1,), (1, 1)])
    @optims(OPTIM_DB)
    def test_tensor_lr_of_one_element(self, device, dtype, optim_info, shape):
        """test_tensor_lr_num_dim: taken for what it holds, or refused when it is given."""
        params = [nn.Parameter(torch.randn(s, device=device)) for s in ((), (5,), (3, 4))]
        others = twins(params)
        try:
            optimizer = optim_info.optim_cls(params, lr=torch.full(shape, 0.01))
        except ValueError:
            return
        push(optimizer, params, 1, steps=3)
        push(optim_info.optim_cls(others, lr=torch.tensor(0.01)), others, 1, steps=3)
        self.assert_same(params, others)

    # One implementation and the other ------------------------------------------------------------

    @optims(OPTIM_DB, dtypes=[torch.float64])
    def test_foreach_matches_forloop(self, device, dtype, optim_info):
        """test_foreach_matches_forloop: one layer frozen for a while, and a step without grads."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(device, dtype)
                model.register_parameter("scale", nn.Parameter(torch.ones((), dtype=dtype)))
                # Squares, because on the long side of a rectangle rounding alone picks a basis.
                data = torch.randn(8, 4, device=device, dtype=dtype)
                models, optimizers = [model, copy.deepcopy(model)], []
                for m, foreach in zip(models, (True, False), strict=True):
                    own = {**copy.deepcopy(kwargs), "foreach": foreach}
                    optimizers.append(optim_info.optim_cls(m.parameters(), **own))
                for k, (m, optimizer) in itertools.product(
                    range(6), zip(models, optimizers, strict=True)
                ):
                    m[2].requires_grad_(k not in (2, 3))
                    optimizer.zero_grad()
                    if k != 4:
                        (m(data) * m.scale).square().sum().backward()
                    optimizer.step()
                # Rounding, as the two batch their products in their own ways.
                ours, theirs = (list(m.parameters()) for m in models)
                self.assert_same(ours, theirs, atol=1e-10)
                for p, q in zip(ours, theirs, strict=True):
                    mine, its = (o.state[r] for o, r in zip(optimizers, (p, q), strict=True))
                    assert mine.keys() == its.keys()
                    self.assert_same(mine["exp_avg"], its["exp_avg"], atol=1e-10)

    @optims(OPTIM_DB)
    def test_mixed_dtypes(self, device, dtype, optim_info):
        """test_mixed_device_dtype, for the dtypes of one device."""
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                start = [
                    nn.Parameter(torch.randn(shape, device=device).to(dt))
                    for dt in dtypes
                    for shape in ((4, 4), (3,))
                ]
                params, apart = twins(start), twins(start)
                together = optim_info.optim_cls(params, **copy.deepcopy(kwargs))
                single = [optim_info.optim_cls([p], **copy.deepcopy(kwargs)) for p in apart]
                for _ in range(3):
                    for i, p in enumerate(params):
                        p.grad = torch.randn(p.shape, device=device).to(p)
                        apart[i].grad = p.grad.clone()
                    together.step()
                    for optimizer in single:
                        optimizer.step()
                self.assert_same(params, apart)

    @optims(OPTIM_DB)
    def test_default_dtype_is_of_no_account(self, device, dtype, optim_info):
        """test_set_default_dtype_works_with_foreach."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                start = [nn.Parameter(torch.randn(s, device=device)) for s in ((4, 4), (5,))]
                history = [[torch.randn_like(p) for p in start] for _ in range(4)]
                ends = []
                for default in (torch.float32, torch.float64):
                    params = twins(start)
                    torch.set_default_dtype(default)
                    try:
                        optimizer = optim_info.optim_cls(params, **copy.deepcopy(kwargs))
                        for grads in history:
                            for p, g in zip(params, grads, strict=True):
                                p.grad = g.clone()
                            optimizer.step()
                    finally:
                        torch.set_default_dtype(torch.float32)
                    ends.append([params, list(optimizer.state.values())])
                self.assert_same(*ends)

    # Steps that do nothing, and gradients of all sorts ------------------------------------------

    @optims(OPTIM_DB)
    def test_no_gradients(self, device, dtype, optim_info):
        """test_step_is_noop_when_params_have_no_grad; and no state is made before there is one."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params = [torch.randn(2, 3, device=device, dtype=dtype) for _ in range(2)]
                before = copy.deepcopy(params)
                optimizer = optim_info.optim_cls(params, **kwargs)
                assert optimizer.step(lambda: 1.5) == 1.5
                self.assert_same(params, before)
                assert not optimizer.state

    @optims(OPTIM_DB)
    def test_zero_gradients(self, device, dtype, optim_info):
        """test_step_is_noop_for_zero_grads."""
        for desc, kwargs in configurations(optim_info, device):
            with self.subTest(desc):
                shapes = ((5, 1), (3, 4), (32, 32), (), (5,))
                params = [nn.Parameter(torch.randn(s, device=device, dtype=dtype)) for s in shapes]
                start = twins(params)
                optimizer = optim_info.optim_cls(params, **{**kwargs, "weight_decay": 0.0})
                for _ in range(2):
                    for p in params:
                        p.grad = torch.zeros_like(p)
                    optimizer.step()
                self.assert_same(params, start)

    @optims(OPTIM_DB)
    def test_empty_gradients(self, device, dtype, optim_info):
        """test_step_is_noop_for_empty_grads: sparse is refused even if there is nothing in it."""
        weight = nn.Parameter(torch.randn(5, 2, device=device, dtype=dtype))
        before = weight.detach().clone()
        optimizer = optim_info.optim_cls([weight])
        weight.grad = torch.zeros_like(weight).to_sparse()
        with pytest.raises(RuntimeError, match=r"param_groups\[0\]\['params'\]\[0\] is sparse"):
            optimizer.step()
        self.assert_same(weight.detach(), before)

    @parametrize("shape", [(0,), (0, 3)])
    @optims(OPTIM_DB)
    def test_empty_parameters(self, device, dtype, optim_info, shape):
        """test_step_is_noop_for_empty_grads: a frozen placeholder may be empty when it thaws."""
        params = [torch.zeros(s, device=device, dtype=dtype) for s in (shape, (3, 3), (4,))]
        alone = [p.clone() for p in params[1:]]
        optimizer = optim_info.optim_cls(params)
        params[0].requires_grad_(True)
        push(optimizer, params, 1, steps=2)
        push(optim_info.optim_cls(alone), alone, 1, steps=2)
        self.assert_same(params[1:], alone)

    @optims(OPTIM_DB)
    def test_peculiar_shapes(self, device, dtype, optim_info):
        """test_foreach_matches_forloop's last parameter, of no dimension, and more of the kind."""
        shapes = [
            (),
            (1,),
            (1, 1),
            (1, 1, 1),
            (2, 1, 3),
            (1, 7),
            (2, 2),
            (1, 3, 3),
            (2, 1, 1, 1, 2),
        ]
        for desc, kwargs in configurations(optim_info, device):
            with self.subTest(desc):
                params = [nn.Parameter(torch.randn(s, device=device, dtype=dtype)) for s in shapes]
                start = twins(params)
                push(optim_info.optim_cls(params, **{**kwargs, "lr": 0.1}), params, 1, steps=3)
                for p, q in zip(params, start, strict=True):
                    assert p.isfinite().all()
                    assert not torch.equal(p, q), p.shape

    @optims(OPTIM_DB)
    def test_closure(self, device, dtype, optim_info):
        """test_second_order_optims_return_consistent_types: step returns what the closure does."""
        params, loss = affine(device, dtype)
        optimizer = optim_info.optim_cls(params, weight_decay=0.0)

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        first = optimizer.step(closure)
        for _ in range(4):
            last = optimizer.step(closure)
        assert isinstance(first, Tensor)
        self.assert_moved({}, first, last)
        assert optimizer.step() is None

    # State ---------------------------------------------------------------------------------------

    @optims(OPTIM_DB)
    def test_state_is_made_by_the_first_step(self, device, dtype, optim_info):
        """test_non_empty_state, and none of it before."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params, loss = affine(device, dtype)
                optimizer = optim_info.optim_cls(params, **kwargs)
                assert not optimizer.state
                take(optimizer, loss, steps=1)
                assert set(optimizer.state) == set(params)
                for state in optimizer.state.values():
                    assert "step" in state
                    assert all(isinstance(x, Tensor) for x in state.values())

    @optims(OPTIM_DB)
    def test_defaults_are_not_those_of_a_group(self, device, dtype, optim_info):
        """`defaults` holds what the constructor was given, whatever a group or a step does."""
        (weight, bias), loss = affine(device, dtype)
        optimizer = optim_info.optim_cls([{"params": [weight], "lr": 0.5}], lr=0.25)
        before = copy.deepcopy(optimizer.defaults)
        optimizer.add_param_group({"params": [bias], "weight_decay": 0.75})
        take(optimizer, loss, steps=2)
        assert optimizer.defaults == before
        assert optimizer.defaults["lr"] == 0.25
        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
        assert optimizer.param_groups[1]["weight_decay"] == 0.75

    @optims(OPTIM_DB)
    def test_printing(self, device, dtype, optim_info):
        """test_optimizer_can_be_printed."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                text = repr(optim_info.optim_cls(affine(device, dtype)[0], **kwargs))
                assert text.startswith(f"{optim_info.name} (")
                assert "refresh_every: " in text

    @parametrize("names", [True, False])
    @parametrize("other_names", [True, False])
    @optims(OPTIM_DB)
    def test_state_dict_goes_on_as_the_original(
        self, device, dtype, optim_info, names, other_names
    ):
        """test_state_dict_deterministic and test_can_load_from_to_named_state_dict."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params, _ = affine(device, dtype)
                optimizer = optim_info.optim_cls(named(params, names), **kwargs)
                push(optimizer, params, 1, steps=2)
                copies = twins(params)
                other = optim_info.optim_cls(named(copies, other_names), **copy.deepcopy(kwargs))
                other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                push(optimizer, params, 2, steps=2)
                push(other, copies, 2, steps=2)
                self.assert_same(params, copies)
                self.assert_same_state(other, optimizer)
                if names or other_names:
                    kept = [n for group in other.param_groups for n in group["param_names"]]
                    assert sorted(kept) == ["part0", "part1"]

    @optims(OPTIM_DB)
    def test_older_state_dict(self, device, dtype, optim_info):
        """test_can_load_older_state_dict: from before an option existed."""
        params, loss = affine(device, dtype)
        optimizer = optim_info.optim_cls(params)
        take(optimizer, loss, steps=2)
        old = copy.deepcopy(optimizer.state_dict())
        for group in old["param_groups"]:
            for flag in optim_info.not_og_supported_flags:
                del group[flag]
        copies = twins(params)
        other = optim_info.optim_cls(copies)
        other.load_state_dict(old)
        push(optimizer, params, 1, steps=2)
        push(other, copies, 1, steps=2)
        self.assert_same(params, copies)

    @parametrize("names", [True, False])
    @optims(OPTIM_DB)
    def test_save_and_load(self, device, dtype, optim_info, names):
        """test_save_load_equality_with_weights_only."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params, loss = affine(device, dtype)
                optimizer = optim_info.optim_cls(named(params, names), **kwargs)
                take(optimizer, loss, steps=2)
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                self.assert_same(torch.load(file, weights_only=True), optimizer.state_dict())

    @optims(OPTIM_DB)
    def test_a_state_of_other_groups_is_refused(self, device, dtype, optim_info):
        """test_load_state_dict's two errors: other groups, or groups of other sizes."""
        params, loss = affine(device, dtype)
        more = [nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(8))]
        optimizer = optim_info.optim_cls([{"params": [p]} for p in params])
        take(optimizer, loss, steps=1)
        before = copy.deepcopy(optimizer.state_dict())
        larger = [{"params": [p, q]} for p, q in zip(twins(params), more, strict=True)]
        for groups, message in (
            ([{"params": [more[0]]}], "different number of parameter groups"),
            (larger, "doesn't match the size"),
        ):
            with pytest.raises(ValueError, match=message):
                optimizer.load_state_dict(optim_info.optim_cls(groups).state_dict())
        self.assert_same(optimizer.state_dict(), before)
        take(optimizer, loss, steps=1)  # and nothing of the attempt is left behind

    @optims(OPTIM_DB)
    def test_copies(self, device, dtype, optim_info):
        """test_deepcopy_copies_all_public_attrs, and a copy goes on as the original."""
        for desc, kwargs in each_input(optim_info, device):
            for copied in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
                with self.subTest(f"{desc}, {copied.__name__}"):
                    params, loss = affine(device, dtype)
                    optimizer = optim_info.optim_cls(params, **copy.deepcopy(kwargs))
                    take(optimizer, loss, steps=2)
                    copies, other = copied((params, optimizer))
                    public = [{k for k in vars(o) if k[0] != "_"} for o in (optimizer, other)]
                    assert public[0] == public[1]
                    push(optimizer, params, 1, steps=2)
                    push(other, copies, 1, steps=2)
                    self.assert_same(params, copies)
                    self.assert_same_state(other, optimizer)

    # Hooks ---------------------------------------------------------------------------------------

    def stepped(self, info: OptimizerInfo, device: Any) -> tuple[list[nn.Parameter], Optimizer]:
        params, loss = affine(device, torch.float32)
        optimizer = info.optim_cls(params)
        take(optimizer, loss, steps=2)
        return params, optimizer

    @optims(OPTIM_DB)
    def test_state_dict_hooks(self, device, dtype, optim_info):
        """test_state_dict_pre_hook, test_state_dict_post_hook, test_state_dict_pre_post_hook."""
        _, optimizer = self.stepped(optim_info, device)
        calls = []

        def before(optimizer: Optimizer) -> None:
            calls.append("before")
            optimizer.param_groups[0]["note"] = "from the hook"

        def after(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            calls.append("after")
            return {**state_dict, "extra": state_dict["param_groups"][0]["note"]}

        handles = [
            optimizer.register_state_dict_pre_hook(before),
            optimizer.register_state_dict_post_hook(after),
        ]
        assert optimizer.state_dict()["extra"] == "from the hook"
        for handle in handles:
            handle.remove()
        assert "extra" not in optimizer.state_dict()
        assert calls == ["before", "after"]

    @optims(OPTIM_DB)
    def test_state_of_a_hook_is_kept(self, device, dtype, optim_info):
        """test_state_dict_pre_hook: what is filed under no parameter goes through a checkpoint."""
        _, optimizer = self.stepped(optim_info, device)
        optimizer.register_state_dict_pre_hook(lambda o: o.state.update(note=1))
        saved = optimizer.state_dict()
        assert saved["state"]["note"] == 1
        params, other = self.stepped(optim_info, device)
        other.load_state_dict(saved)
        assert other.state["note"] == 1
        push(other, params, 1)

    @optims(OPTIM_DB)
    def test_load_state_dict_pre_hooks(self, device, dtype, optim_info):
        """test_load_state_dict_pre_hook_and_prepend: hooks may edit and replace what is loaded."""
        _, source = self.stepped(optim_info, device)
        params, optimizer = self.stepped(optim_info, device)
        saved = source.state_dict()
        first = next(iter(saved["state"]))

        def edit(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            state_dict["param_groups"][0]["lr"] = 0.002

        def replace(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            mine = copy.deepcopy(state_dict)
            mine["param_groups"][0]["lr"] = 0.003
            assert isinstance(mine["state"][first]["exp_avg"], Tensor)
            mine["state"][first]["exp_avg"].fill_(7)
            return mine

        optimizer.register_load_state_dict_pre_hook(edit)
        handle = optimizer.register_load_state_dict_pre_hook(replace)
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["lr"] == 0.003
        assert (optimizer.state_dict()["state"][first]["exp_avg"] == 7).all()
        handle.remove()
        optimizer.register_load_state_dict_pre_hook(replace, prepend=True)
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["lr"] == 0.002  # edit had the last word
        assert (optimizer.state_dict()["state"][first]["exp_avg"] == 7).all()
        assert not (saved["state"][first]["exp_avg"] == 7).any()
        push(optimizer, params, 1)

    @optims(OPTIM_DB)
    def test_load_state_dict_post_hooks(self, device, dtype, optim_info):
        """test_load_state_dict_post_hook, test_load_state_dict_pre_post_hook."""
        _, source = self.stepped(optim_info, device)
        params, optimizer = self.stepped(optim_info, device)
        calls = []

        def before(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            calls.append("before")

        def after(optimizer: Optimizer) -> None:
            calls.append("after")
            optimizer.state[params[0]]["exp_avg"].fill_(7)  # the loaded tensors, ready for use

        for prepend in (False, True):
            calls.clear()
            handles = [
                optimizer.register_load_state_dict_pre_hook(before, prepend=prepend),
                optimizer.register_load_state_dict_post_hook(after, prepend=prepend),
            ]
            optimizer.load_state_dict(source.state_dict())
            assert calls == ["before", "after"]
            assert (optimizer.state[params[0]]["exp_avg"] == 7).all()
            for handle in handles:
                handle.remove()
        push(optimizer, params, 1)

    @optims(OPTIM_DB)
    def test_step_hooks(self, device, dtype, optim_info):
        """test_step_pre_hook, test_step_post_hook, test_step_all_hooks."""
        params, optimizer = self.stepped(optim_info, device)
        other, calls = SGD(params, lr=0.0), []

        def call(what: str) -> Callable[..., None]:
            return lambda optimizer, args, kwargs: calls.append(what)

        handles = [
            register_optimizer_step_pre_hook(call("all, before")),
            register_optimizer_step_post_hook(call("all, after")),
            optimizer.register_step_pre_hook(call("before")),
            optimizer.register_step_post_hook(call("after")),
        ]
        try:
            push(optimizer, params, 1)
            assert calls == ["all, before", "before", "after", "all, after"]
            push(other, params, 2)
            assert calls[4:] == ["all, before", "all, after"]
        finally:
            for handle in handles:
                handle.remove()
        push(optimizer, params, 3)
        assert len(calls) == 6


instantiate_device_type_tests(TestOptimizerInfo, globals(), only_for="cpu")
