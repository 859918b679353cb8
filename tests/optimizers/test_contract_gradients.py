"""How every optimizer takes gradients that are absent or zero; `OPTIMIZERS` is the one table."""

from typing import Any

import pytest
import torch
from torch import nn

from helpers import (
    AS_MATRIX,
    SHAPES,
    advance,
    build,
    clones,
    close,
    descend,
    differ,
    every,
    every_class,
    gradients,
    of_deva,
    parameters,
    same,
    tensors,
    trained,
    trained_apart,
    with_bases,
    with_matrices,
    zeros,
)


@every_class
def test_without_gradients_nothing_changes(name: str) -> None:
    start = parameters(*SHAPES)
    params = clones(start)
    optimizer = build(name, params)
    assert optimizer.step() is None
    assert optimizer.step(lambda: 1.5) == 1.5
    same(params, start)
    assert not optimizer.state


@every
def test_a_parameter_without_gradient_sits_out(name: str) -> None:
    start = parameters((4, 4), (4, 4), (4, 4), (5,), (5,), (), dtype=torch.float64)
    history = [
        [g if (k + i) % 3 else None for i, g in enumerate(grads)]
        for k, grads in enumerate(gradients(start, 9))
    ]
    close(trained(name, start, history), trained_apart(name, start, history))


@every_class
def test_frozen_parameters_are_left_alone(name: str) -> None:
    start = parameters((4, 4), (3, 4), (5,))
    params, alone = clones(start), clones(start)[:1]
    for p in params[1:]:
        p.requires_grad_(False)
    optimizer = build(name, params)
    descend(optimizer, params, [torch.zeros_like(p) for p in params], steps=4)
    descend(build(name, alone), alone, [torch.zeros_like(p) for p in alone], steps=4)
    same(params, [*alone, *start[1:]])
    assert set(optimizer.state) == {params[0]}


@every
@pytest.mark.parametrize("foreach", [None, False])
def test_zero_gradients_do_nothing_and_leave_nothing_behind(
    name: str, foreach: bool | None
) -> None:
    start = parameters(*SHAPES, (32, 32))
    params = clones(start)
    optimizer = build(name, params, weight_decay=0.0, foreach=foreach)
    advance(optimizer, params, zeros(params, 4))
    same(params, start)
    assert all(x.isfinite().all() for state in tensors(optimizer).values() for x in state.values())
    advance(optimizer, params, gradients(params, 3) + zeros(params, 2))
    assert all(p.isfinite().all() for p in params)
    assert differ(params, start)
    assert all(x.isfinite().all() for state in tensors(optimizer).values() for x in state.values())


@every
def test_zeros_in_a_gradient_are_harmless_without_eps(name: str) -> None:
    start = parameters((4, 4), (3, 5), (5,))
    history = gradients(start, 5)
    for grads in history:
        for g in grads:
            g[0] = 0
    assert all(p.isfinite().all() for p in trained(name, start, history, eps=0.0))


@of_deva
def test_leading_zeros_do_not_count(name: str) -> None:
    start = parameters((4, 4), (3, 5), (2, 3, 4))
    if name != "deva":  # its rest is AdamW, which counts them
        start += parameters((5,), ())
    history = gradients(start, 5)
    late = zeros(start, 3) + history
    same(
        trained(name, start, late, weight_decay=0.0),
        trained(name, start, history, weight_decay=0.0),
    )


@with_bases
def test_the_first_gradient_that_is_not_zero_chooses_the_basis(name: str) -> None:
    params = parameters((4, 4), (3, 5), (2, 3, 4))
    history = gradients(params, 1)
    prompt, late = build(name, params), build(name, params)
    advance(prompt, params, history)
    advance(late, params, zeros(params, 3) + history)
    for ours, theirs in zip(tensors(late).values(), tensors(prompt).values(), strict=True):
        # Shampoo's roots depend on the count of steps too, and that includes the zeros.
        for key in (key for key in ours if key.startswith(("covariance", "basis"))):
            same(ours[key], theirs[key])
            assert key.startswith("basis") or ours[key].count_nonzero()


@with_matrices
@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        pytest.param([(4, 4)] * 3, {}, id="stack"),
        pytest.param([(4, 4)] * 3, {"split": 3}, id="split"),
        pytest.param([(3, 4), (4, 4), (4, 4)], {"split": (3, 4, 4)}, id="unequal"),
    ],
)
def test_every_matrix_of_a_batch_starts_on_its_own(
    name: str, shapes: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    apart = parameters(*shapes, dtype=torch.float64)
    history = gradients(apart, 7)
    for grads in history[:3]:
        grads[1] = torch.zeros_like(apart[1])
    join = torch.cat if options else torch.stack
    whole = [nn.Parameter(join([p.detach() for p in apart]))]
    joined = [[join(grads)] for grads in history]
    # A parameter has one clock, so it is only at every step that all of them coincide.
    shared = {**AS_MATRIX, "refresh_every": 1, "covariance_every": 1}
    ours = trained(name, whole, joined, **shared, **options)
    close(ours, [join(trained_apart(name, apart, history, **shared))])
