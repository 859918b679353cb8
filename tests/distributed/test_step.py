"""A step over several ranks is the step of a single process."""

import math
import warnings
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.testing import assert_close

from deva_optim import clip_grad_norm_
from deva_optim.distributed import pipeline
from helpers import CLASSES, MATRIX, OPTIMIZERS, ROUNDING
from ranks import run

from .sharding import (
    SHAPES,
    STEPS,
    advance,
    agree,
    alone,
    build,
    gradients,
    mesh,
    packed,
    past,
    placed,
    shared,
    together,
    weights,
    whole,
)

SOME = ((7, 5), (3, 4), (3, 5, 4), (9,))  # where every shape would take too long
TWINS = ((7, 5), (7, 5), (7, 5), (6, 6), (6, 6), (5,), (5,))
PARALLEL = ("rows", "ddp", "hybrid", "columns")  # FSDP2, DDP, HSDP, tensor parallel
FEW = ("deva", "soap", "splus", "muon")
KINDS = tuple(name for name in CLASSES if name in MATRIX)  # every variant is tested on two ranks


# Trajectories ------------------------------------------------------------------------------------


@cache
def expected(name: str, shapes: Any = SHAPES) -> list[Tensor]:
    start = weights(shapes)
    return alone(name, start, past(start), foreach=False)


def trajectories(cases: list[tuple[str, str]], shapes: Any = SHAPES) -> list[list[Tensor]]:
    start = weights(shapes)
    return [together(name, start, past(start), layout, foreach=False) for name, layout in cases]


@pytest.mark.parametrize(
    ("size", "names", "layouts", "shapes"),
    [
        (1, KINDS, PARALLEL, SOME),
        (2, tuple(OPTIMIZERS), ("rows",), SHAPES),
        (2, MATRIX, ("ddp", "hybrid", "columns"), SOME),
        (2, FEW, ("ddp", "columns", "replicated"), SHAPES),
        pytest.param(2, FEW, ("packed", "packed-columns"), SHAPES, marks=packed),
        (4, tuple(OPTIMIZERS), ("hybrid",), SHAPES),
        (4, KINDS, ("rows", "ddp", "columns"), SOME),
        (4, FEW[:2], ("columns", "rows-columns", "columns-replicated", "rows-rows"), SHAPES),
        pytest.param(4, FEW[:2], ("packed", "rows-packed"), SHAPES, marks=packed),
    ],
    ids=["1", "2-rows", "2", "2-few", "2-packed", "4-hybrid", "4", "4-few", "4-packed"],
)
def test_ranks_together_take_the_step_of_one(
    size: int, names: tuple[str, ...], layouts: tuple[str, ...], shapes: Any
) -> None:
    """One parameter at a time the arithmetic is the same, and so is every bit of a matrix."""
    cases = [(name, layout) for name in names for layout in layouts]
    for found in run(size, trajectories, cases, shapes):
        for (name, layout), ours in zip(cases, found, strict=True):
            agree(ours, expected(name, shapes), f"{name}, {layout}")


def batched(names: tuple[str, ...], dtype: torch.dtype) -> list[list[Tensor]]:
    start = weights(TWINS, dtype)
    return [together(name, start, past(start), "rows") for name in names]


def test_matrices_of_one_shape_may_be_stacked_otherwise() -> None:
    """A batch of two rounds otherwise than one of three, and nothing hangs on it."""
    start = weights(TWINS, torch.float64)
    for found in run(2, batched, MATRIX, torch.float64):
        for name, ours in zip(MATRIX, found, strict=True):
            theirs = alone(name, start, past(start))
            # `ROUNDING` is that of nine such steps.
            atol = ROUNDING * STEPS / 9
            assert_close(ours, theirs, rtol=0, atol=atol, msg=f"{name}: {ours} {theirs}")


def large_eps(layouts: tuple[str, ...]) -> list[list[Tensor]]:
    start = weights()
    return [
        together("deva-rest-linf", start, past(start), layout, eps=0.25, foreach=False)
        for layout in layouts
    ]


def test_eps_is_relative_to_the_mean_of_the_whole() -> None:
    """A mean over a shard would differ by much, and ε = 1/4 shows it."""
    start, layouts = weights(), ("rows", "hybrid", "rows-rows")
    theirs = alone("deva-rest-linf", start, past(start), eps=0.25, foreach=False)
    for found in run(4, large_eps, layouts):
        for ours in found:
            # A quarter of a mean of nine numbers, which rounds by 9 · 2⁻²⁴, is under the root that
            # a step of lr = 1/64 is divided by: less than the unit in the last place of a weight.
            agree(ours, theirs)


def in_rounds(names: tuple[str, ...]) -> list[list[Tensor]]:
    pipeline.BUCKET = 80  # one or two matrices a round
    return trajectories([(name, layout) for name in names for layout in ("rows", "ddp")])


def test_rounds_do_not_matter() -> None:
    for found in run(2, in_rounds, FEW):
        theirs = [expected(name) for name in FEW for _ in ("rows", "ddp")]
        for one, other in zip(found, theirs, strict=True):
            agree(one, other)


FUSED: dict[str, Any] = {"split": (4, 2, 2), "foreach": False}


def resting(cases: list[tuple[str, str]]) -> list[list[Tensor]]:
    start = weights(((8, 4),))
    return [together(name, start, with_zeros(start), layout, **FUSED) for name, layout in cases]


def with_zeros(start: list[Tensor]) -> list[list[Tensor | None]]:
    """Every other gradient is zero, the first one included."""
    return [[g * (k % 2) for g in grads if g is not None] for k, grads in enumerate(past(start, 5))]


@pytest.mark.parametrize(
    "layouts", [("rows", "columns", "ddp"), pytest.param(("packed",), marks=packed)], ids=str
)
def test_a_fused_weight_rests_in_shards(layouts: tuple[str, ...]) -> None:
    """SPlus decays each part at a rate of its own."""
    start = weights(((8, 4),))
    cases = [(name, layout) for name in ("splus", "muon") for layout in layouts]
    for size in (2, 4):
        for found in run(size, resting, cases):
            for (name, layout), ours in zip(cases, found, strict=True):
                theirs = alone(name, start, with_zeros(start), **FUSED)
                agree(ours, theirs, f"{name}, {layout}")


# Gradients that are absent or not finite ---------------------------------------------------------


def with_gaps(start: list[Tensor]) -> list[list[Tensor | None]]:
    """Parameters that sit out a step now and then, and one that is frozen."""
    history = past(start, 9)
    return [
        [g if (k + i) % 3 and i else None for i, g in enumerate(grads)]
        for k, grads in enumerate(history)
    ]


def gaps(layout: str) -> tuple[list[Tensor], int]:
    start = weights()
    params, optimizer, lay = shared("deva", start, layout, foreach=False)
    advance(params, optimizer, lay, with_gaps(start))
    return whole(params), len(optimizer.state.get(params[0], ()))


@pytest.mark.parametrize("layout", ["rows", "ddp"])
def test_parameters_may_sit_out(layout: str) -> None:
    start = weights()
    theirs = alone("deva", start, with_gaps(start), foreach=False)
    for ours, kept in run(2, gaps, layout):
        agree(ours, theirs)
        assert kept == 0


def on_some_ranks() -> list[Tensor]:
    """Rank 0 has no gradients: its rows count as zero."""
    start = weights()
    params, optimizer, lay = shared("deva", start, "rows", foreach=False)
    for step in range(6):
        for p, g in zip(params, gradients(start, step), strict=True):
            p.grad = lay(g) if dist.get_rank() else None
        optimizer.step()
    return whole(params)


def test_shards_without_gradient_count_as_zero() -> None:
    start = weights()
    history = past(start, 6)
    for grads in history:
        for g in grads:
            g[: -(-len(g) // 2)] = 0  # the rows of rank 0
    theirs = alone("deva", start, history, foreach=False)
    for ours in run(2, on_some_ranks):
        agree(ours, theirs)


def replica_without_gradient() -> str:
    params, optimizer, lay = shared("muon", weights(), "ddp")
    for p, g in zip(params, gradients(params, 0), strict=True):
        p.grad = lay(g)
    if dist.get_rank() == 1:
        params[1].grad = None
    with pytest.raises(RuntimeError) as error:
        optimizer.step()
    return str(error.value)


def test_replicas_must_agree_on_who_has_a_gradient() -> None:
    first, second = run(2, replica_without_gradient)
    assert first == second
    assert "has a gradient on 1 of the 2 ranks that hold it" in first


def one_bad_rank(layout: str, nonfinite: str) -> tuple[list[Tensor], int, str]:
    """One rank alone sees a NaN, in a matrix and in a vector."""
    start = weights()
    params, optimizer, lay = shared("deva", start, layout, nonfinite=nonfinite, foreach=False)
    advance(params, optimizer, lay, past(start, 3))
    for p, g in zip(params, gradients(start, 3), strict=True):
        p.grad = lay(g)
    if dist.get_rank() == dist.get_world_size() - 1:
        for i in (0, 5):
            grad = params[i].grad
            (grad.to_local() if isinstance(grad, DTensor) else grad)[-1] = float("nan")
    message = ""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            optimizer.step()
        except FloatingPointError as error:
            message = str(error)
    return whole(params), optimizer.skipped, message


@pytest.mark.parametrize("layout", ["rows", "ddp"])
def test_a_bad_gradient_on_one_rank_is_skipped_by_all(layout: str) -> None:
    start = weights()
    history = past(start, 4)
    history[3] = [None if i in (0, 5) else g for i, g in enumerate(history[3])]
    theirs = alone("deva", start, history, foreach=False)
    for ours, skipped, message in run(2, one_bad_rank, layout, "skip"):
        agree(ours, theirs)
        assert (skipped, message) == (2, "")


@pytest.mark.parametrize("layout", ["rows", "ddp"])
def test_a_bad_gradient_on_one_rank_stops_all(layout: str) -> None:
    start = weights()
    theirs = alone("deva", start, past(start, 3), foreach=False)
    messages = set()
    for ours, _, message in run(2, one_bad_rank, layout, "raise"):
        agree(ours, theirs)  # nothing has been changed
        messages.add(message)
    assert len(messages) == 1
    assert "is not finite; nothing has been changed" in messages.pop()


def beside_a_plain_one() -> tuple[list[list[Tensor]], list[Any]]:
    """A parameter of this rank alone and one that ranks share; one gradient or both are NaN."""
    start = weights(((4,), (4, 4)))
    on, ends, states = mesh("rows"), [], []
    for bad in ((0,), (1,), (0, 1)):
        params = [nn.Parameter(start[0].clone()), nn.Parameter(placed(start[1], on, "rows"))]
        optimizer = build("deva", params, nonfinite="raise")
        for i, p in enumerate(params):
            p.grad = torch.full_like(p, float("nan") if i in bad else 1.0)
        with pytest.raises(FloatingPointError, match="nothing has been changed"):
            optimizer.step()
        ends.append(whole(params))
        states += [x["step"] for x in optimizer.state.values()]
    return ends, states


def test_a_bad_gradient_stops_plain_and_shared_parameters_alike() -> None:
    for ends, states in run(2, beside_a_plain_one):
        for ours in ends:
            assert_close(ours, weights(((4,), (4, 4))), rtol=0, atol=0)
        assert not any(states)  # no step was counted


# State -------------------------------------------------------------------------------------------


def owned(name: str, layout: str) -> tuple[list[int], list[Tensor], list[Tensor], str]:
    """Which matrices have state here; the averaged weights; and what copying says."""
    start = weights()
    params, optimizer, lay = shared(name, start, layout, foreach=False, ema_rate=0.9)
    advance(params, optimizer, lay, past(start, 6))
    held = [
        i
        for i, p in enumerate(params[:5])
        if not any(x.is_meta for x in optimizer.state[p].values())
    ]
    before = whole(params)
    with optimizer.averaged():
        averages = whole(params)
    assert_close(whole(params), before, rtol=0, atol=0)
    with pytest.raises(TypeError, match="cannot be copied or pickled") as error:
        optimizer.__getstate__()
    return held, before, averages, str(error.value)


@pytest.mark.parametrize("name", ["splus", "deva"])
@pytest.mark.parametrize("layout", ["rows", "ddp"])
def test_state_lives_with_its_owner_alone(name: str, layout: str) -> None:
    start = weights()
    params = [nn.Parameter(x.clone()) for x in start]
    optimizer = build(name, params, foreach=False, ema_rate=0.9)
    advance(params, optimizer, Tensor.clone, past(start, 6))
    with optimizer.averaged():
        theirs = whole(params)
    (first, *_), (second, *_) = found = run(2, owned, name, layout)
    assert sorted(first + second) == list(range(5))
    for _, before, averages, _ in found:
        assert_close(before, whole(params), rtol=0, atol=0)
        assert_close(averages, theirs, rtol=0, atol=0)


def swap(optimizer: Optimizer, params: list[nn.Parameter]) -> None:
    """What Accelerate does when it shards the model after the optimizer was made."""
    new = iter(params)
    for group in optimizer.param_groups:
        group["params"] = [next(new) for _ in group["params"]]


def swapped() -> list[list[Tensor]]:
    """Swapped parameters whose first use is a step, clipping, or the state of a single process."""
    start, history, on = weights(), past(weights(), 6), mesh("rows")
    before = [nn.Parameter(x.clone()) for x in start]
    single = build("deva", before, foreach=False)
    advance(before, single, Tensor.clone, history[:3])
    ends = []
    for first in ("step", "clip", "load"):
        optimizer = build("deva", [nn.Parameter(x.clone()) for x in start], foreach=False)
        weights_now = whole(before) if first == "load" else start
        params = [nn.Parameter(placed(x, on, "rows")) for x in weights_now]
        swap(optimizer, params)
        if first == "load":
            optimizer.load_state_dict(single.state_dict())
        for grads in history[3 if first == "load" else 0 :]:
            for p, g in zip(params, grads, strict=True):
                p.grad = placed(g, on, "rows")
            if first == "clip":
                found = math.hypot(*clip_grad_norm_(optimizer, 1e3))  # which is above them
                assert found == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()))
            optimizer.step()
        ends.append(whole(params))
    return ends


def test_parameters_may_be_sharded_after_the_optimizer_was_made() -> None:
    start = weights()
    theirs = alone("deva", start, past(start, 6), foreach=False)
    for ends in run(2, swapped):
        for ours in ends:
            agree(ours, theirs)


def clipped_on_one_rank() -> tuple[list[float], Tensor | None]:
    params, optimizer, lay = shared("deva", weights(((8, 8),)), "rows")
    params[0].grad = lay(torch.ones(8, 8)) if dist.get_rank() else None
    found = clip_grad_norm_(optimizer, 0.1)
    grad = params[0].grad
    return found, None if grad is None else grad.to_local()


def test_a_rank_without_gradients_may_clip() -> None:
    (norms, nothing), (same, clipped) = run(2, clipped_on_one_rank)
    assert norms == same == pytest.approx([32**0.5])  # of the four rows of the second rank
    assert nothing is None
    assert_close(clipped, torch.full((4, 8), 0.1 / 32**0.5))
