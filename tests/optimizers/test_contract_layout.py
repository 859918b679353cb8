"""How every optimizer reads a parameter: memory, convolutions, stacks, splits."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from helpers import (
    AS_MATRIX,
    CLASSES,
    MATRIX,
    History,
    Params,
    advance,
    build,
    clones,
    close,
    every_class,
    every_matrix_class,
    gradients,
    parameters,
    same,
    trained,
    trained_apart,
)


def strided(p: nn.Parameter) -> nn.Parameter:
    """The same numbers, every other one of a larger tensor."""
    return nn.Parameter(torch.stack([p.detach(), torch.zeros_like(p)], -1)[..., 0])


def transposed(p: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(p.detach().mT.contiguous().mT)


def channels_last(p: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(p.detach().contiguous(memory_format=torch.channels_last))


@every_class
@pytest.mark.parametrize(
    ("shape", "lay"),
    [
        ((5,), strided),
        ((4, 4), strided),
        ((3, 5), transposed),
        ((2, 3, 4), transposed),
        ((4, 2, 3, 3), channels_last),
    ],
)
def test_memory_format_is_of_no_account(name: str, shape: tuple[int, ...], lay: Any) -> None:
    start = parameters(shape, dtype=torch.float64)
    history = gradients(start, 5)
    expected = trained(name, start, history)
    params = [lay(p) for p in start]
    assert not params[0].is_contiguous()
    stride = params[0].stride()
    optimizer = build(name, params)
    for k, grads in enumerate(history):  # gradients laid out in the same way, or in the other
        laid_out = [lay(g).detach() for g in grads] if k % 2 else grads
        advance(optimizer, params, [laid_out])
    close(params, expected)
    assert params[0].stride() == stride


@every_class
def test_a_loaded_state_may_be_laid_out_otherwise(name: str) -> None:
    """A checkpoint that was made or edited elsewhere: a copy of a state is not the state."""
    params = parameters((4, 2, 3, 3))
    optimizer = build(name, params)
    history = gradients(params, 5)
    advance(optimizer, params, history[:3])
    others = clones(params)
    other = build(name, others)
    state = copy.deepcopy(optimizer.state_dict())
    for key, x in state["state"][0].items():
        if x.ndim == 4:
            state["state"][0][key] = x.contiguous(memory_format=torch.channels_last)
    other.load_state_dict(state)
    advance(optimizer, params, history[3:])
    advance(other, others, history[3:])
    same(others, params)


def read_as(read: Any, start: Params, history: History) -> tuple[Params, History]:
    """The same numbers as other parameters: `read` turns one tensor into a list of them."""
    params = [nn.Parameter(x.clone()) for p in start for x in read(p.detach())]
    return params, [[x for g in grads for x in read(g)] for grads in history]


@every_class
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 2, 3), "conv"),
        ((4, 2, 3, 3), "auto"),
        ((4, 2, 3, 3), "conv"),
        ((3, 2, 2, 2, 2), "auto"),
    ],
)
def test_a_convolution_is_one_matrix(name: str, shape: tuple[int, ...], layout: str) -> None:
    start = parameters(shape, dtype=torch.float64)
    history = gradients(start, 5)
    flat, flat_history = read_as(lambda x: [x.flatten(1)], start, history)
    (ours,) = trained(name, start, history, layout=layout, **AS_MATRIX)
    close([ours.flatten(1)], trained(name, flat, flat_history, **AS_MATRIX))


STACKS = (((3,), "stack"), ((2, 2), "stack"), ((1,), "stack"))


@pytest.mark.parametrize(
    ("name", "lead", "layout"),
    [
        *((n, (3,), "auto") for n in MATRIX),
        *((n, *how) for n in CLASSES if n in MATRIX for how in STACKS),
    ],
)
def test_a_stack_is_its_matrices(name: str, lead: tuple[int, ...], layout: str) -> None:
    start = parameters((*lead, 3, 4), dtype=torch.float64)
    history = gradients(start, 5)
    apart = read_as(lambda x: x.flatten(0, -3), start, history)
    (ours,) = trained(name, start, history, layout=layout, **AS_MATRIX)
    close(list(ours.flatten(0, -3)), trained_apart(name, *apart, **AS_MATRIX))


@every_matrix_class
@pytest.mark.parametrize(
    ("shape", "sizes", "options"),
    [
        ((9, 4), (3, 3, 3), {"split": 3}),
        ((9, 4), (2, 4, 3), {"split": (2, 4, 3)}),
        ((4, 6), (3, 3), {"split": 2, "split_dim": -1}),
        ((4, 6), (2, 4), {"split": (2, 4), "split_dim": -1}),
        ((2, 6, 4), (4, 2), {"split": (4, 2)}),
        ((2, 4, 6), (2, 2, 2), {"split": 3, "split_dim": -1}),
        ((6, 2, 3, 3), (2, 4), {"split": (2, 4)}),
    ],
    ids=str,
)
def test_a_split_weight_is_its_parts(
    name: str, shape: tuple[int, ...], sizes: tuple[int, ...], options: dict[str, Any]
) -> None:
    dim = 0 if len(shape) == 4 else options.get("split_dim", -2)
    start = parameters(shape, dtype=torch.float64)
    history = gradients(start, 5)
    apart = read_as(lambda x: x.split(sizes, dim), start, history)
    (ours,) = trained(name, start, history, **AS_MATRIX, **options)
    close(list(ours.split(sizes, dim)), trained_apart(name, *apart, **AS_MATRIX))


@every_class
@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (1, 4, 1), ()])
def test_what_has_one_side_is_a_vector(name: str, shape: tuple[int, ...]) -> None:
    start = parameters(shape)
    history = gradients(start, 5)
    flat = read_as(lambda x: [x.reshape(-1)], start, history)
    (ours,) = trained(name, start, history)
    same([ours.reshape(-1)], trained(name, *flat))
