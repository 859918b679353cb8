"""Options, parameter groups and schedules of every optimizer."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.testing import assert_close

from helpers import (
    OPTIMIZERS,
    OPTIONS,
    SHAPES,
    History,
    Params,
    advance,
    build,
    clones,
    close,
    descend,
    differ,
    every_class,
    every_matrix_class,
    gradients,
    losses,
    parameters,
    same,
    trained,
    zeros,
)


@every_class
@pytest.mark.parametrize("foreach", [True, False])
def test_tensor_lr_agrees_with_a_float(name: str, foreach: bool) -> None:
    start = parameters(*SHAPES, dtype=torch.float64)
    history = gradients(start, 5)
    lr = torch.tensor(0.01, dtype=torch.float64)
    ours, theirs = (trained(name, start, history, lr=x, foreach=foreach) for x in (lr, 0.01))
    # U times a tensor is rounded before it is subtracted, U times a number may not be: each of five
    # steps is off by an ulp of a weight, which is below 8. Nothing amplifies it: the gradients are
    # given. The margin is 16.
    close(ours, theirs, atol=16 * 5 * 8 * 2**-53)


@every_class
def test_tensor_lr_may_be_changed_in_place(name: str) -> None:
    start = parameters((4, 4), (5,), dtype=torch.float64)
    history = gradients(start, 6)
    params, lr = clones(start), torch.tensor(2**-6, dtype=torch.float64)
    optimizer = build(name, params, lr=lr)
    advance(optimizer, params, history[:3])
    before = clones(params)
    lr.zero_()
    advance(optimizer, params, history[3:4])
    same(params, before)
    lr.fill_(2**-5)
    advance(optimizer, params, history[4:])

    plain = clones(start)
    other = build(name, plain)
    for rate, grads in zip([2**-6] * 3 + [0.0] + [2**-5] * 2, history, strict=True):
        for group in other.param_groups:
            group["lr"] = rate
        advance(other, plain, [grads])
    close(params, plain)


@every_class
def test_groups_have_their_own_rate_and_decay(name: str) -> None:
    settings = [{"lr": lr, "weight_decay": wd} for lr in (0.0, 0.01, 0.02) for wd in (0.0, 0.3)]
    start = parameters(*(shape for _ in settings for shape in ((4, 4), (5,))))
    pairs = [slice(2 * i, 2 * i + 2) for i in range(len(settings))]
    history = gradients(start, 5)
    params = clones(start)
    groups = [
        {"params": params[pair], **OPTIONS, **setting}
        for pair, setting in zip(pairs, settings, strict=True)
    ]
    advance(OPTIMIZERS[name](groups), params, history)
    for pair, setting in zip(pairs, settings, strict=True):
        own = [grads[pair] for grads in history]
        same(params[pair], trained(name, start[pair], own, **setting))
    same(params[:4], start[:4])  # a rate of zero


@every_class
def test_decay_needs_no_gradient_but_zero(name: str) -> None:
    start = parameters((4, 4), (3, 5), (5,))
    ours = trained(name, start, zeros(start, 3), weight_decay=0.5)
    assert all((p.abs() < q.abs()).all() for p, q in zip(ours, start, strict=True))


@every_class
def test_a_group_may_be_added_later(name: str) -> None:
    start = parameters((4, 4), (3, 4), (5,))
    history = gradients(start, 8)
    params = clones(start)
    optimizer = build(name, params[:1])
    advance(optimizer, params[:1], [grads[:1] for grads in history[:4]])
    optimizer.add_param_group({"params": params[1:], **OPTIONS, "lr": 2**-5})
    advance(optimizer, params, history[4:])
    same(params[:1], trained(name, start[:1], [grads[:1] for grads in history]))
    same(params[1:], trained(name, start[1:], [grads[1:] for grads in history[4:]], lr=2**-5))


@every_class
def test_a_group_added_later_is_as_one_from_the_start(name: str) -> None:
    start = parameters((4, 4), (5,))
    history = gradients(start, 3)
    early, late = clones(start), clones(start)
    first = OPTIMIZERS[name]([{"params": early[:1]}, {"params": early[1:]}])
    second = OPTIMIZERS[name]([{"params": late[:1]}])
    second.add_param_group({"params": late[1:]})
    advance(first, early, history)
    advance(second, late, history)
    same(late, early)


@every_class
def test_names_change_nothing(name: str) -> None:
    start = parameters(*SHAPES)
    history = gradients(start, 5)
    params = clones(start)
    optimizer = build(name, [(f"part{i}", p) for i, p in enumerate(params)])
    advance(optimizer, params, history)
    same(params, trained(name, start, history))
    names = itertools.chain.from_iterable(group["param_names"] for group in optimizer.param_groups)
    assert set(names) == {f"part{i}" for i in range(len(SHAPES))}


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.8)], [3]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
}


def replayed(name: str, start: Params, history: History, settings: list[dict[str, Any]]) -> Params:
    params = clones(start)
    optimizer = build(name, params)
    for setting, grads in zip(settings, history, strict=True):
        optimizer.param_groups[0].update(setting)
        advance(optimizer, params, [grads])
    return params


@every_class
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_schedulers_are_obeyed(name: str, schedule: str) -> None:
    start = parameters((4, 4))
    history = gradients(start, 6)
    params = clones(start)
    optimizer = build(name, params)
    scheduler = SCHEDULERS[schedule](optimizer)
    seen = []
    for grads in history:
        group, keys = optimizer.param_groups[0], ("lr", "betas", "momentum")
        seen.append({key: group[key] for key in keys if key in group})
        advance(optimizer, params, [grads])
        scheduler.step(*([1.0] if schedule == "plateau" else []))
    same(params, replayed(name, start, history, seen))
    assert differ(params, trained(name, start, history))
    if schedule in ("one-cycle", "cyclic"):
        rates = [{"lr": setting["lr"]} for setting in seen]
        assert differ(params, replayed(name, start, history, rates))


@every_matrix_class
@pytest.mark.parametrize("schedule", ["one-cycle", "cyclic"])
def test_a_cycled_momentum_is_that_of_the_rest_too(name: str, schedule: str) -> None:
    """Of a matrix and a vector in one group, as if each had a group of its own."""
    start = parameters((4, 4), (5,))
    history = gradients(start, 6)
    ends = []
    for together in (True, False):
        matrix, vector = params = clones(start)
        groups: list[dict[str, Any]] = [{"params": params, "role": "auto"}]
        if not together:
            groups = [{"params": matrix, "role": "matrix"}, {"params": vector, "role": "vector"}]
        optimizer = OPTIMIZERS[name]([{**OPTIONS, **group} for group in groups])
        scheduler = SCHEDULERS[schedule](optimizer)
        for grads in history:
            advance(optimizer, params, [grads])
            scheduler.step()
        ends.append(params)
    same(*ends)


@every_class
def test_scheduler_moves_a_tensor_lr(name: str) -> None:
    start = parameters((4, 4), (5,), dtype=torch.float64)
    ends = []
    for lr in (torch.tensor(2**-6, dtype=torch.float64), 2**-6):
        params = clones(start)
        optimizer = build(name, params, lr=lr)
        scheduler = lr_scheduler.StepLR(optimizer, 2, 0.5)
        torch.manual_seed(1)
        for grads in gradients(params, 6):
            advance(optimizer, params, [grads])
            scheduler.step()
        ends.append(params)
    close(*ends)  # one rounding apart at every step, as above


@every_class
def test_gradient_scaler(name: str) -> None:
    start = parameters((4, 4), (3, 5), (5,))
    targets = [torch.zeros_like(p) for p in start]
    params, plain = clones(start), clones(start)
    optimizer = build(name, params)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for k in range(6):
        optimizer.zero_grad()
        scaler.scale(losses(params, targets).sum()).backward()
        if k == 3:  # an overflow: the scaler does not take this step
            params[0].grad[0, 0] = torch.inf
            before = clones(params)
        scaler.step(optimizer)
        scaler.update()
        if k == 3:
            same(params, before)
    descend(build(name, plain), plain, targets, steps=5)
    same(params, plain)  # scales are powers of two: they come off without rounding


# What is written into a group later --------------------------------------------------------------


def stepped(name: str, **options: Any) -> tuple[nn.Parameter, Optimizer, dict[str, Any]]:
    """A matrix after its first step, its optimizer and its group."""
    (p,) = parameters((5, 6))
    optimizer = build(name, [p], **options)
    advance(optimizer, [p], gradients([p], 1))
    return p, optimizer, optimizer.param_groups[0]


@pytest.mark.parametrize("name", ["muon", "signum"])
def test_betas_are_refused_where_the_name_is_momentum(name: str) -> None:
    p, optimizer, group = stepped(name)
    before = p.detach().clone()
    group["betas"] = (0.5, 0.9)
    with pytest.raises(ValueError, match=r"write group\['momentum'\]"):
        optimizer.step()
    same(p.detach(), before)


@pytest.mark.parametrize("role", ["matrix", "vector"])
def test_a_momentum_does_not_stand_above_betas_that_are_written_later(role: str) -> None:
    p, optimizer, group = stepped("deva", role=role)
    group["momentum"] = 0.5
    optimizer.step()
    assert "momentum" not in group
    assert group["betas"][0] == 0.5
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=10, base_momentum=0.0)
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    first = group["betas"][0]
    before = optimizer.state[p]["exp_avg"].clone()
    p.grad = torch.zeros_like(p)
    p.grad[0, 0] = 1.0
    optimizer.step()
    assert 0.0 < first < 0.5
    assert_close(optimizer.state[p]["exp_avg"][1:], first * before[1:], rtol=2**-22, atol=0)


def test_a_tensor_lr_with_a_scale_may_be_changed_in_place() -> None:
    whole, half = parameters((4, 4), (4, 4))
    lr = torch.tensor(0.5)
    groups = [{"params": [whole]}, {"params": [half], "lr_scale": 0.5}]
    optimizer = OPTIMIZERS["signum"](groups, lr=lr)
    for rate in (0.5, 0.25):
        lr.fill_(rate)
        before = clones([whole, half])
        advance(optimizer, [whole, half], [[torch.ones(4, 4), torch.ones(4, 4)]])
        assert_close(before[0] - whole, torch.full((4, 4), rate), rtol=0, atol=2**-21)
        assert_close(before[1] - half, torch.full((4, 4), rate / 2), rtol=0, atol=2**-21)
    again = OPTIMIZERS["signum"](groups, lr=0.0)
    again.load_state_dict(optimizer.state_dict())
    before = clones([half])
    advance(again, [half], [[torch.ones(4, 4)]])
    assert_close(before[0] - half, torch.full((4, 4), 0.125), rtol=0, atol=2**-21)


@pytest.mark.parametrize("scale", [-0.5, float("nan"), "half"])
def test_a_scale_that_is_no_amount_is_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match="lr_scale must be at least 0 and finite, got"):
        build("adamw", parameters((4, 4)), lr_scale=scale)


def test_a_scale_that_is_written_later_is_told_of() -> None:
    p, optimizer, group = stepped("adamw")
    group["lr_scale"] = 0.5
    with pytest.warns(UserWarning, match=r"'lr_scale', .* multiply group\['lr'\]"):
        optimizer.step()
    optimizer.step()
    theirs = torch.optim.AdamW([{"params": [p], "lr_scale": 0.5}])
    theirs.step()
    optimizer.load_state_dict(theirs.state_dict())  # it is part of the rate that was saved
    assert "lr_scale" not in optimizer.param_groups[0]


def test_parameters_of_one_name_are_told_apart() -> None:
    params = parameters((4, 4), (4, 4), (4, 4))
    optimizer = build("muon", [("weight", p) for p in params[:2]])
    optimizer.add_param_group({"params": [("weight", params[2])]})
    advance(optimizer, params, gradients(params, 1))
    nan = torch.full((4, 4), torch.nan)
    with pytest.warns(RuntimeWarning, match=r"the gradient of weight \(2\) was not finite"):
        advance(optimizer, params, [[torch.eye(4), nan, torch.eye(4)]])
    rows = optimizer.telemetry()
    assert list(rows) == ["weight", "weight (2)", "weight (3)"]
    assert [row["skipped"] for row in rows.values()] == [0.0, 1.0, 0.0]
    assert optimizer.param_groups[0]["param_names"] == ["weight", "weight"]


@pytest.mark.parametrize("key", ["adjust_lr_fn", "graft", "rest_lr", "weight_decy"])
def test_a_key_that_means_nothing_is_told_of_once(key: str) -> None:
    _, optimizer, group = stepped("muon")
    group[key] = 0.1
    with pytest.warns(UserWarning, match=f"the key '{key}', which means nothing here"):
        optimizer.step()
    group["swa_lr"] = group["initial_lr"] = 0.1  # as schedulers of torch do
    optimizer.step()


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("deva-sinf", "variant", "factored", "has no exp_avg_rows"),
        ("muon", "role", "vector", "has no exp_avg_sq"),
        ("soap", "role", "vector", "has covariance_left, which .* leave out"),
        ("muon", "split", (2, 3), "has exponent, which .* leave out"),
        ("deva-sinf", "sides", "short", "has covariance_right, which .* leave out"),
        ("deva-sinf-short", "sides", "both", "has no covariance_right"),
        ("deva-sinf", "max_dim", 5, "has covariance_right, which .* leave out"),
    ],
)
def test_what_decides_the_state_is_set_before_the_first_step(
    name: str, key: str, value: Any, message: str
) -> None:
    _, optimizer, group = stepped(name)
    old, group[key] = group[key], value
    with pytest.raises(ValueError, match=f"{message}.*before the first step"):
        optimizer.step()
    group[key] = old
    optimizer.step()


def test_a_parameter_that_is_appended_to_named_ones_is_called_by_its_place() -> None:
    old, new = parameters((4, 4), (4, 4))
    optimizer = build("muon", [("old", old)])
    optimizer.param_groups[0]["params"].append(new)
    advance(optimizer, [old, new], gradients([old, new], 1))
    assert list(optimizer.telemetry()) == ["old", "param_groups[0]['params'][1]"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("variant", "orignal", "variant must be one of .*, got 'orignal'; did you mean 'original'"),
        ("variant", "lean", "variant 'lean' is none of muon's"),
        ("role", "vektor", "role must be one of .*, got 'vektor'; did you mean 'vector'"),
        ("layout", "cnov", "layout must be one of .*, got 'cnov'; did you mean 'conv'"),
        ("split_dim", 0, "split_dim must be .*, got 0"),
        ("state_dtype", "int4", "state_dtype must be .*, got 'int4'"),
    ],
)
def test_what_decides_the_state_is_checked_when_it_changes(
    key: str, value: Any, message: str
) -> None:
    p, optimizer, group = stepped("muon")
    before = p.detach().clone()
    group[key] = value
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    same(p.detach(), before)


def test_an_emptied_state_starts_as_the_options_are_then() -> None:
    p, optimizer, group = stepped("adamw", lr=0.0)
    optimizer.state.clear()
    group["ema_rate"] = 0.5
    optimizer.step()
    before = p.detach().clone()
    with optimizer.averaged():
        same(p.detach(), before)


def test_a_weight_in_another_precision_is_read_anew() -> None:
    p, optimizer, _ = stepped("adamw")
    p.data = p.data.bfloat16()
    p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.step()
    assert optimizer.state[p]["rounding"] == 2
    p.data = p.data.double()
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert [r.dtype for r in optimizer.readings()] == [torch.float64]
