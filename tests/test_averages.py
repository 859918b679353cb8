"""The average of the weights: what it is, where it is kept, and what is said where it is not."""

import copy

import numpy as np
import pytest
import torch

from helpers import OPTIMIZERS

RATE = 0.75  # whose powers are exact for a while, so that the average is right to a few roundings


def weights():
    generator = torch.Generator().manual_seed(0)
    sizes = ((6, 4), (5,))
    return [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]


def trained(optimizer, params, steps=4):
    """The weights after each step."""
    generator = torch.Generator().manual_seed(1)
    path = []
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
        path.append([p.detach().clone() for p in params])
    return path


def average(path, i):
    """What the average is by its definition, in float64."""
    total = np.zeros(path[0][i].shape)
    for now in path:
        total = RATE * total + (1 - RATE) * now[i].double().numpy()
    return total / (1 - RATE ** len(path))


@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_shows_the_average_and_takes_it_back(name, share):
    params, without = weights(), weights()
    settings = {"skip_first": False} if name == "soap" else {}  # a step that does not count
    optimizer = OPTIMIZERS[name](params, ema_rate=RATE, **settings)
    path = trained(optimizer, params)
    trained(OPTIMIZERS[name](without, **settings), without)
    with optimizer.averaged(share):
        for i, p in enumerate(params):
            expected = (1 - share) * path[-1][i].double().numpy() + share * average(path, i)
            # of each of four steps three roundings of a number below four, and a few at the end
            np.testing.assert_allclose(p.detach().numpy(), expected, rtol=0, atol=16 * 4 * 2**-24)
    assert all(map(torch.equal, params, path[-1]))
    assert all(map(torch.equal, params, without))  # an average changes no step


def test_an_average_goes_on_after_a_checkpoint():
    params = weights()
    optimizer = OPTIMIZERS["deva"](params, ema_rate=RATE)
    trained(optimizer, params)
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = OPTIMIZERS["deva"](again, ema_rate=RATE)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with optimizer.averaged(), other.averaged():
        assert all(map(torch.equal, params, again))
    trained(optimizer, params)
    trained(other, again)
    with optimizer.averaged(), other.averaged():
        assert all(map(torch.equal, params, again))


@pytest.mark.parametrize("name", ["adamw", "deva"])
def test_a_rate_that_changes_leaves_an_average_of_the_weights(name):
    params = weights()
    optimizer = OPTIMIZERS[name](params, ema_rate=0.0)
    expected = [np.zeros(p.shape) for p in params]
    generator = torch.Generator().manual_seed(1)
    for t in range(1, 9):
        for group in optimizer.param_groups:
            group["ema_rate"] = rate = min(0.9, t / (10 + t))  # a warm-up
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
        weight = (1 - rate) / (1 - rate**t)
        for A, p in zip(expected, params, strict=True):
            A += weight * (p.detach().double().numpy() - A)
    for group in optimizer.param_groups:
        group["ema_rate"] = 0.999
    with optimizer.averaged():
        for A, p in zip(expected, params, strict=True):
            # of each of eight steps three roundings of a number below four
            np.testing.assert_allclose(p.detach().numpy(), A, rtol=0, atol=16 * 8 * 2**-24)


def test_an_average_of_a_checkpoint_that_lacks_its_bias_correction_is_given_it():
    params = weights()
    optimizer = OPTIMIZERS["muon"](params, ema_rate=RATE)
    trained(optimizer, params)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["iterate_avg"] = state.pop("weight_avg") * (1 - RATE**4)  # as it was kept once
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = OPTIMIZERS["muon"](again, ema_rate=RATE)
    other.load_state_dict(saved)
    with optimizer.averaged(), other.averaged():
        torch.testing.assert_close(again, params, rtol=2**-22, atol=0)  # a product, a quotient
    assert all("iterate_avg" not in state for state in other.state.values())


def test_matrices_of_a_stack_that_rest_are_averaged_as_the_others_are():
    p = torch.nn.Parameter(torch.ones(2, 3, 3))
    optimizer = OPTIMIZERS["muon"]([{"params": [p], "layout": "stack"}], ema_rate=RATE, lr=0.1)
    path = []
    for _ in range(4):
        p.grad = torch.stack([torch.eye(3), torch.zeros(3, 3)])
        optimizer.step()
        path.append([p.detach().clone()])
    with optimizer.averaged():
        # as above
        np.testing.assert_allclose(
            p.detach().numpy(), average(path, 0), rtol=0, atol=16 * 4 * 2**-24
        )


def test_a_weight_in_half_precision_has_an_average_in_full():
    p = torch.nn.Parameter(torch.ones(3, 3, dtype=torch.bfloat16))
    optimizer = OPTIMIZERS["muon"]([p], ema_rate=RATE)
    p.grad = torch.eye(3, dtype=torch.bfloat16)
    optimizer.step()
    assert optimizer.state[p]["weight_avg"].dtype == torch.float32
    last = p.detach().clone()
    with optimizer.averaged():
        assert torch.equal(p, last)  # of a single step, it is what that has made
    assert torch.equal(p, last)


def test_where_there_is_no_average_it_is_said():
    params = weights()
    optimizer = OPTIMIZERS["deva"](params)
    with pytest.raises(ValueError, match="ema_rate is None, .*: construct DeVA with ema_rate=0.99"):
        optimizer.averaged()
    trained(optimizer, params)
    assert all("weight_avg" not in state for state in optimizer.state.values())
    for group in optimizer.param_groups:
        group["ema_rate"] = RATE
    with pytest.raises(ValueError, match=r"a parameter of shape \(6, 4\) has taken steps without"):
        optimizer.averaged()
    trained(optimizer, params)  # and it goes on without


def test_a_rate_that_was_never_used_is_not_taken_from_a_checkpoint():
    params = weights()
    optimizer = OPTIMIZERS["deva"](params)
    trained(optimizer, params)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        group["ema_rate"] = 0.999  # as every group had it
    optimizer.load_state_dict(saved)
    assert all(group["ema_rate"] is None for group in optimizer.param_groups)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_that_makes_no_sense_is_refused(share):
    optimizer = OPTIMIZERS["adamw"](weights(), ema_rate=RATE)
    with pytest.raises(ValueError, match="share must be a number from 0 to 1"):
        optimizer.averaged(share)
