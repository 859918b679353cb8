"""Every optimizer held to its description, and to what PyTorch tests of its own, option by option.

PyTorch drives the tests of its optimizers from descriptions such as those in `descriptions`. Those
tests (test/test_optim.py) are not part of the package, so these are written anew; each names the
one that it stands for. Here is what an option could break; what no option has a part in is in
`test_contract_*`. Left out is what needs another device (fused, capturable, multi-GPU, peak
memory), what no optimizer here claims (complex parameters, differentiable; both are refused, see
`test_errors`), and checkpoints from before `step` was a tensor, of which there are none.
"""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optims
from torch.testing._internal.common_utils import parametrize

import deva_optim as do
from helpers import ROUNDING

from .descriptions import (
    OPTIM_DB,
    DescribedTestCase,
    affine,
    each_input,
    one_cycle,
    options_of,
    push,
    take,
    twins,
)


class TestOptimizerInfo(DescribedTestCase):
    # The descriptions ----------------------------------------------------------------------------

    @optims(OPTIM_DB)
    def test_inputs_cover_every_option(self, device, dtype, optim_info):
        """test_optim_infos_do_not_specify_global_cliquey_kwargs, and nothing else is left out."""
        inputs = optim_info.optim_inputs_func(device=device)
        given = {key for x in inputs for key in x.kwargs}
        # What concerns several ranks takes processes: see tests/distributed; graphs: see
        # tests/test_compile.py; rates of their own and what is refused: see tests/test_loops.py.
        elsewhere = {
            *("process_group", "wire_dtype", "foreach", "amsgrad", "capturable", "differentiable"),
            *("rest_lr", "rest_weight_decay", "embedding_lr", "head_lr", "compile"),
        }
        assert given == options_of(optim_info.optim_cls) - elsewhere

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

    @optims(OPTIM_DB)
    def test_goes_the_right_direction(self, device, dtype, optim_info):
        """test_forloop_goes_right_direction. Of strides and foreach other tests know every bit."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params, loss = affine(device, dtype)
                before = loss()
                take(optim_info.optim_cls(params, **kwargs), loss, steps=6)
                self.assert_moved(kwargs, before, loss())

    @optims(OPTIM_DB)
    def test_goes_far_with_schedulers(self, device, dtype, optim_info):
        """test_forloop_goes_right_direction with_lrsched, over enough steps to arrive."""
        for i, schedule in enumerate(optim_info.scheduler_inputs):
            with self.subTest(i):
                params, loss = affine(device, dtype)
                # SPlus takes a rate a hundred times as large; the bias of its model hardly moves.
                lr = 1.0 if optim_info.optim_cls is do.SPlus else 0.05
                optimizer = optim_info.optim_cls(params, lr=lr, weight_decay=0.0)
                before = loss()
                take(optimizer, loss, 60, [make(optimizer) for make in schedule])
                assert loss().item() < 0.5 * before.item()

    @optims(OPTIM_DB)
    def test_inputs_with_a_scheduler(self, device, dtype, optim_info):
        """test_forloop_goes_right_direction with_lrsched, for every input.

        With the one that moves momenta too: a rate is the same to every option.
        """
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params, loss = affine(device, dtype)
                optimizer = optim_info.optim_cls(params, **kwargs)
                before = loss()
                take(optimizer, loss, 5, [one_cycle(optimizer)])
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
                # The two batch their products in their own ways. These are six steps of at most
                # the length that `ROUNDING` counts nine of.
                ours, theirs = (list(m.parameters()) for m in models)
                self.assert_same(ours, theirs, atol=ROUNDING)
                for p, q in zip(ours, theirs, strict=True):
                    mine, its = (o.state[r] for o, r in zip(optimizers, (p, q), strict=True))
                    assert mine.keys() == its.keys()
                    self.assert_same(mine["exp_avg"], its["exp_avg"], atol=ROUNDING)

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
    def test_zero_gradients(self, device, dtype, optim_info):
        """test_step_is_noop_for_zero_grads."""
        for desc, kwargs in each_input(optim_info, device):
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

    @parametrize("tokens", [[1, 2], []])
    @optims(OPTIM_DB)
    def test_sparse_gradients(self, device, dtype, optim_info, tokens):
        """test_step_is_noop_for_empty_grads: sparse is refused, even if there is nothing in it."""
        table = nn.Embedding(5, 3, sparse=True, device=device, dtype=dtype)
        other = nn.Parameter(torch.ones(4, 4, device=device, dtype=dtype))
        optimizer = optim_info.optim_cls([("other", other), ("table", table.weight)])
        table(torch.tensor(tokens, dtype=torch.long, device=device)).sum().backward()
        other.grad = torch.ones_like(other)
        start = twins([other, table.weight])
        with pytest.raises(RuntimeError, match="gradient of table is sparse .* sparse=False"):
            optimizer.step()
        self.assert_same([other, table.weight], start)  # nothing has changed
        assert not optimizer.state

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
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params = [nn.Parameter(torch.randn(s, device=device, dtype=dtype)) for s in shapes]
                start = twins(params)
                push(optim_info.optim_cls(params, **{**kwargs, "lr": 0.1}), params, 1, steps=3)
                for p, q in zip(params, start, strict=True):
                    assert p.isfinite().all()
                    assert not torch.equal(p, q), p.shape


instantiate_device_type_tests(TestOptimizerInfo, globals(), only_for="cpu")
