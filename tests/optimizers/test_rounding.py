"""Weights in half precision without a copy in float32: small updates are not lost."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import CLASSES, HALF, advance, build, clones, gradients, parameters, same, trained

STEPS, RATE = 100, 2e-5  # of fine-tuning
SIDE = 192


def path(name: str, start: Tensor, history: list[list[Tensor]], **options: Any) -> list[Tensor]:
    """A weight before the first step and after each, in float64."""
    param = nn.Parameter(start.clone())
    param.grad_dtype = None
    optimizer = build(name, [param], **options)
    found = [start.double()]
    for grads in history:
        advance(optimizer, [param], [grads])
        found.append(param.detach().double())
    return found


@pytest.mark.parametrize("name", ["deva", "adamw", "muon"])
def test_bfloat16_goes_the_way_of_float32(name: str) -> None:
    start = (0.02 * torch.randn(SIDE, SIDE)).bfloat16()
    drift = torch.randn(SIDE, SIDE)
    history = [[drift + torch.randn(SIDE, SIDE)] for _ in range(STEPS)]
    options = {"lr": RATE, "weight_decay": 0.0, "refresh_every": 20}
    wide = path(name, start.float(), history, **options)
    move = wide[-1] - wide[0]

    def share(of: list[Tensor]) -> float:
        """How far it is gone in the direction of float32."""
        return float(((of[-1] - of[0]) * move).sum() / move.square().sum())

    # A step that moves a weight by p of the spacing of bfloat16 there is rounded with a variance of
    # p (1 − p) spacings², which is less than its length times the spacing. In the sum over steps
    # and weights, that is the variance of the share. Five standard deviations are the margin.
    length = sum((b - a).abs() for a, b in pairwise(wide))
    spacing = 2 ** (wide[0].abs().clamp_min(2**-20).log2().floor() - 7)
    sigma = float((move.square() * length * spacing).sum().sqrt() / move.square().sum())
    assert 5 * sigma < 0.03
    assert abs(share(path(name, start, history, **options)) - 1) < 5 * sigma
    nearest = path(name, start, history, stochastic_rounding=False, **options)
    assert share(nearest) < 0.6  # what this is for


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", CLASSES)
def test_a_weight_is_one_of_the_two_numbers_beside_it(name: str, dtype: torch.dtype) -> None:
    start = parameters((4, 4), (3, 5), (3, 5), (5,), (), dtype=dtype)
    history = gradients(start, 1)
    wide = [nn.Parameter(p.detach().float()) for p in start]
    advance(build(name, wide), wide, [[g.float() for g in grads] for grads in history])
    info = torch.finfo(dtype)
    for ours, theirs in zip(trained(name, start, history), wide, strict=True):
        spacing = info.eps * torch.maximum(theirs.abs(), ours.abs().float()).clamp_min(info.tiny)
        assert ((ours.float() - theirs).abs() < spacing).all()


@pytest.mark.parametrize("dtype", HALF)
def test_a_step_is_the_same_however_it_is_taken(dtype: torch.dtype) -> None:
    start = parameters((4, 4), (4, 4), (5,), (5,), dtype=dtype)
    history = gradients(start, 9)
    random = torch.get_rng_state()
    one, other = (trained("adamw", start, history, foreach=x) for x in (None, False))
    same(one, other)
    assert torch.equal(torch.get_rng_state(), random)
    assert not torch.equal(one[0], trained("adamw", start, history, stochastic_rounding=False)[0])


def test_equal_weights_have_noise_of_their_own() -> None:
    first = parameters((40, 40), dtype=torch.bfloat16)[0]
    start = [first, *clones([first])]
    grads = torch.randn(40, 40, dtype=torch.bfloat16)
    ours = trained("adamw", start, [[grads, grads]])
    assert not torch.equal(*ours)


@pytest.mark.parametrize("name", CLASSES)
def test_a_checkpoint_from_before_there_was_noise_is_loaded(name: str) -> None:
    params = parameters((4, 4), (5,), dtype=torch.bfloat16)
    optimizer = build(name, params)
    advance(optimizer, params, gradients(params, 3))
    assert all(int(state["rounding"]) == 3 for state in optimizer.state.values())
    old = copy.deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        del group["stochastic_rounding"]
    for state in old["state"].values():
        del state["rounding"]
    optimizer.load_state_dict(old)
    assert all(int(state["rounding"]) == 0 for state in optimizer.state.values())
    assert all(group["stochastic_rounding"] for group in optimizer.param_groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_weights_are_left_alone(dtype: torch.dtype) -> None:
    start = parameters((4, 4), (5,), dtype=dtype)
    history = gradients(start, 3)
    params = clones(start)
    optimizer = build("deva", params)
    advance(optimizer, params, history)
    assert not any("rounding" in state for state in optimizer.state.values())
    same(params, trained("deva", start, history, stochastic_rounding=False))


def test_a_weight_that_rests_decays_on_average() -> None:
    weight = nn.Parameter(torch.ones(100, 100, dtype=torch.bfloat16))
    optimizer = build("muon", [weight], lr=2**-4, weight_decay=2**-8)  # a 2⁻⁴ of the spacing
    advance(optimizer, [weight], [[torch.zeros(100, 100, dtype=torch.bfloat16)] for _ in range(32)])
    # Below one the spacing is 2⁻⁸, so that a weight moves by a spacing with p = 2⁻⁴ at each step:
    # of 10⁴ weights over 32 steps the mean is off by √(32 p / 10⁴) · 2⁻⁸ = 5.5e-5, 5 of them here.
    expected = (1 - 2**-12) ** 32
    assert abs(weight.detach().double().mean() - expected) < 5 * 5.5e-5
