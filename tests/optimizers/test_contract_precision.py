"""Every optimizer in every precision."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers import (
    CLASSES,
    HALF,
    OPTIMIZERS,
    SHAPES,
    advance,
    build,
    descend,
    every,
    gradients,
    losses,
    parameters,
    same,
    trained,
    trained_apart,
)

# Every variant in one of the two, every class in both: a half is a half to all of them.
in_half = pytest.mark.parametrize(
    ("name", "dtype"),
    [*((n, torch.bfloat16) for n in OPTIMIZERS), *((n, torch.float16) for n in CLASSES)],
)


@in_half
def test_half_precision_trains(name: str, dtype: torch.dtype) -> None:
    # From zero, because SPlus moves a vector by less than the rounding of a weight of order one.
    params = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]
    targets = [torch.randn_like(p) for p in params]
    optimizer = build(name, params, lr=0.125, weight_decay=0.0)
    before = losses(params, targets)
    descend(optimizer, params, targets, steps=10)
    assert (losses(params, targets) < before).all()
    assert all(p.dtype == dtype for p in params)
    state = [x for values in optimizer.state.values() for x in values.values()]
    assert {x.dtype for x in state if x.is_floating_point()} == {torch.float32}


@in_half
def test_half_precision_rounds_the_weight_alone(name: str, dtype: torch.dtype) -> None:
    start = parameters(*SHAPES, dtype=dtype)
    history = gradients(start, 2)
    wide = [nn.Parameter(p.detach().float()) for p in start]
    ours, theirs = build(name, start, stochastic_rounding=False), build(name, wide)
    for grads in history:
        with torch.no_grad():
            torch._foreach_copy_(wide, start)
        advance(ours, start, [grads])
        advance(theirs, wide, [[g.float() for g in grads]])
        same([p.detach() for p in start], [p.detach().to(dtype) for p in wide])


@every
def test_float64_is_float64_throughout(name: str) -> None:
    params = parameters(*SHAPES, dtype=torch.float64)
    history = gradients(params, 5)
    single = [nn.Parameter(p.detach().float()) for p in params]
    optimizer = build(name, params)
    advance(optimizer, params, history)
    advance(build(name, single), single, [[g.float() for g in grads] for grads in history])
    assert all(not torch.equal(p, p.float().double()) for p in params)
    counts = ("step", "clock", "waiting", "idle", "exponent")  # whole numbers
    for values in optimizer.state.values():
        assert {x.dtype for k, x in values.items() if k not in counts} == {torch.float64}


@every
@pytest.mark.parametrize("narrow", [False, True])
def test_dtypes_may_be_mixed(name: str, narrow: bool) -> None:
    options = dict.fromkeys(("state_dtype", "msign_dtype"), torch.bfloat16) if narrow else {}
    options["stochastic_rounding"] = False  # its noise depends on the place in the optimizer
    dtypes = (torch.float32, torch.float64, *HALF)
    start = [p for dtype in dtypes for p in parameters((4, 4), (5,), dtype=dtype)]
    history = gradients(start, 5)
    ours = trained(name, start, history, **options)
    same(ours, trained_apart(name, start, history, **options))


@every
def test_state_dtype_is_for_the_averages(name: str) -> None:
    params = parameters(*SHAPES)
    targets = [torch.randn_like(p) for p in params]
    optimizer = build(name, params, lr=0.03, weight_decay=0.0, state_dtype=torch.bfloat16)
    before = losses(params, targets)
    descend(optimizer, params, targets, steps=10)
    assert (losses(params, targets) < before).all()
    for values in optimizer.state.values():
        small = {key for key, x in values.items() if x.dtype == torch.bfloat16}
        averages = {key for key in values if key.startswith("exp_avg")}
        assert small in (averages, averages - {"exp_avg"})  # SOAP keeps its momentum wide
        assert small


@every
def test_state_dtype_rounds_and_no_more(name: str) -> None:
    params = parameters((4, 4), (3, 5), (3, 5), (5,))
    history = gradients(params, 4)
    ours, theirs = build(name, params, state_dtype=torch.bfloat16), build(name, params)
    advance(ours, params, history)
    advance(theirs, params, history)
    for p in params:
        small, wide = ours.state[p]["exp_avg"].float(), theirs.state[p]["exp_avg"]
        # bfloat16 has eight bits: each of four steps rounds by 2⁻⁸ of the average at the most. The
        # errors before the last one have decayed, which is the margin.
        assert_close(small, wide, rtol=0, atol=4 * 2**-8 * wide.abs().max().item())


@every
def test_autocast_around_a_step_changes_nothing(name: str) -> None:
    start = parameters(*SHAPES)
    history = gradients(start, 3)
    expected = trained(name, start, history)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(trained(name, start, history), expected)


def test_autocast_around_a_step_reaches_its_closure() -> None:
    (p,) = parameters((3, 3))
    p.grad = torch.ones_like(p)
    products = []

    def closure() -> float:
        products.append(p @ p)
        return 0.0

    with torch.autocast("cpu", dtype=torch.bfloat16):
        build("muon", [p]).step(closure)
    assert products[0].dtype == torch.bfloat16
