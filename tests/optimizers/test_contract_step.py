"""One step of every optimizer: what it returns, what it leaves alone, what it agrees with."""

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

import deva_optim as do
from deva_optim.core import codes, directions
from deva_optim.core.batch import Batch
from deva_optim.core.step import advance_
from helpers import (
    OPTIMIZERS,
    SHAPES,
    advance,
    build,
    clones,
    close,
    descend,
    every,
    every_class,
    gradients,
    losses,
    parameters,
    same,
    trained,
    trained_apart,
    zeros,
)


def test_every_method_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()

    def spy(batch: Batch) -> None:
        used.add(batch.method.name)
        advance_(batch)

    monkeypatch.setattr("deva_optim.optimizer.advance_", spy)
    start = parameters((3, 4), (5,))
    for name in OPTIMIZERS:
        trained(name, start, gradients(start, 1))
    assert used == set(do.METHODS)


def test_every_class_is_here() -> None:
    public = {x for x in vars(do).values() if isinstance(x, type) and issubclass(x, Optimizer)}
    assert {type(build(name, parameters((2, 2)))) for name in OPTIMIZERS} == public


@every_class
def test_closure_runs_once_with_gradients_and_its_loss_is_returned(name: str) -> None:
    start = parameters((4, 4), (5,))
    targets = [torch.zeros_like(p) for p in start]
    params, plain = clones(start), clones(start)
    optimizer, calls = build(name, params), []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = losses(params, targets).sum()
        loss.backward()
        calls.append(loss)
        return loss

    for _ in range(3):
        with torch.no_grad():
            assert optimizer.step(closure) is calls[-1]
    descend(build(name, plain), plain, targets, steps=3)
    assert len(calls) == 3
    same(params, plain)


@every
@pytest.mark.parametrize("maximize", [False, True])
def test_gradient_is_untouched(name: str, maximize: bool) -> None:
    params = parameters(*SHAPES)
    optimizer = build(name, params, maximize=maximize)
    for grads in gradients(params, 4):
        given = [g.clone() for g in grads]
        for p, g in zip(params, given, strict=True):
            p.grad = g
        optimizer.step()
        assert all(p.grad is g for p, g in zip(params, given, strict=True))
        same(given, grads)


@every
def test_gradients_accumulate_in_place(name: str) -> None:
    """The tensors of the gradients live on from step to step: no state may be a view of them."""
    start = parameters((4, 4), (2, 3, 4), (5,))
    history = gradients(start, 6)
    params = clones(start)
    optimizer = build(name, params)
    advance(optimizer, params, zeros(params, 1))
    for first, second in zip(history[::2], history[1::2], strict=True):
        optimizer.zero_grad(set_to_none=False)
        for p, g, h in zip(params, first, second, strict=True):
            p.grad.add_(g).add_(h)
        optimizer.step()
    sums = [
        [g + h for g, h in zip(first, second, strict=True)]
        for first, second in zip(history[::2], history[1::2], strict=True)
    ]
    same(params, trained(name, start, zeros(start, 1) + sums))


@every
def test_maximize_is_the_negated_gradient(name: str) -> None:
    start = parameters(*SHAPES)
    history = gradients(start, 5)
    negated = [[-g for g in grads] for grads in history]
    same(trained(name, start, history, maximize=True), trained(name, start, negated))


@every
def test_foreach_agrees_with_one_at_a_time(name: str) -> None:
    shapes = [(4, 4), (3, 5), (5, 3), (2, 3, 4), (5,), ()]
    start = parameters(*shapes, *shapes, dtype=torch.float64)
    history = gradients(start, 5)
    default = trained(name, start, history)
    close(trained(name, start, history, foreach=False), default)
    close(trained_apart(name, start, history), default)


@every
def test_step_decreases_a_quadratic(name: str) -> None:
    params = parameters(*SHAPES)
    targets = [torch.randn_like(p) for p in params]
    optimizer = build(name, params, lr=0.03, weight_decay=0.0)
    before = losses(params, targets)
    descend(optimizer, params, targets, steps=12)
    assert (losses(params, targets) < before).all()


@every_class
def test_zero_grad(name: str) -> None:
    params = parameters((4, 4), (5,))
    optimizer = build(name, params)
    advance(optimizer, params, gradients(params, 1))
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad.count_nonzero() for p in params)
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


@every_class
def test_requires_grad_may_be_toggled(name: str) -> None:
    """A parameter that is frozen for a while goes on where it stopped."""
    start = parameters((4, 4), (5,))
    targets = [torch.zeros_like(p) for p in start]
    params = clones(start)
    optimizer = build(name, params)
    descend(optimizer, params, targets, steps=4)
    params[0].requires_grad_(False)
    before = params[0].detach().clone()
    descend(optimizer, params, targets, steps=2)
    same(params[0].detach(), before)
    params[0].requires_grad_(True)
    descend(optimizer, params, targets, steps=4)
    for p, target, steps in zip(clones(start), targets, (8, 10), strict=True):
        descend(build(name, [p]), [p], [target], steps)
        same(p, params[0 if steps == 8 else 1])


@every
@pytest.mark.parametrize("state_dtype", [None, "int8"])
def test_another_default_device_changes_nothing(name: str, state_dtype: str | None) -> None:
    # Numbers that are not said to be on the CPU would be on the meta device, without values.
    start = [*parameters(*SHAPES), *parameters((4, 4), dtype=torch.bfloat16)]
    history = gradients(start, 3)
    expected = trained(name, start, history, state_dtype=state_dtype)
    codes._tables.cache_clear()
    directions._fewest_quintics.cache_clear()
    with torch.device("meta"):
        found = trained(name, start, history, state_dtype=state_dtype)
    same(found, expected)
