"""A state that was saved elsewhere: what does not fit is refused, and nothing has changed."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from deva_optim.core.batch import item
from deva_optim.core.state import on_host
from helpers import advance, build, clones, gradients, parameters, same


@pytest.mark.parametrize(
    ("name", "what"), [("deva", "variance_long"), ("soap", "basis_left"), ("muon", "step")]
)
@pytest.mark.parametrize("how", ["lacks", "other shape"])
def test_a_state_that_does_not_fit_is_refused_whole(name: str, what: str, how: str) -> None:
    params = parameters((7, 5), (3, 5, 4), (9,))
    optimizer = build(name, [(str(i), p) for i, p in enumerate(params)], role="auto")
    advance(optimizer, params, gradients(params, 1))
    bad = copy.deepcopy(optimizer.state_dict())
    if how == "lacks":
        del bad["state"][0][what]
    else:
        bad["state"][0][what] = torch.zeros(2, 9)
    bad["param_groups"][0]["lr"] = 9.0
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=f"{what} of 0 must have shape|state of 0 has no {what}"):
        optimizer.load_state_dict(bad)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for i, values in before["state"].items():
        for key, x in values.items():
            assert torch.equal(after["state"][i][key], x)


def test_a_state_of_another_method_is_refused() -> None:
    muon, soap = (build(name, parameters((4, 4))) for name in ("muon", "soap"))
    with pytest.raises(ValueError, match="state is of method 'soap', this optimizer is 'muon'"):
        muon.load_state_dict(soap.state_dict())


def test_a_count_of_steps_may_be_a_number() -> None:
    """As in the states that torch.optim.AdamW saved before torch 1.12."""
    start = parameters((3,))
    ends = []
    for count in (torch.tensor(2.0), 2):
        params = clones(start)
        theirs = torch.optim.AdamW(params)
        advance(theirs, params, [[torch.ones(3)]])
        state = theirs.state_dict()
        state["state"][0]["step"] = count
        ours = build("adamw", params)
        ours.load_state_dict(state)
        advance(ours, params, [[torch.full((3,), -1.0)]])
        ends.append(params)
    same(*ends)


def test_loading_keeps_no_parameter_that_is_swapped_afterwards() -> None:
    """Accelerate loads a state before it shards the model, and the whole one must be freed then."""
    params = parameters((4, 4), (3,))
    optimizer = build("muon", params, role="auto")
    optimizer.load_state_dict(optimizer.state_dict())
    old = [weakref.ref(p) for p in params]
    for group in optimizer.param_groups:
        group["params"] = [nn.Parameter(p.detach().clone()) for p in group["params"]]
    params.clear()
    gc.collect()
    assert [p() for p in old] == [None, None]


@pytest.mark.parametrize("split", [None, (4, 2)])
def test_what_steers_the_host_comes_back_to_it(split: tuple[int, int] | None) -> None:
    """Lightning moves every state that it has loaded to the device of the model."""
    with FakeTensorMode():
        weight = nn.Parameter(torch.empty(6, 4, dtype=torch.bfloat16, device="cuda"))
        (reading,) = build("muon", [weight], split=split).readings()
        state: dict[str, torch.Tensor] = {}
        for _ in range(2):
            item(reading, weight, torch.empty_like(weight), state, reading.parts, 0)
            devices = {key: x.device.type for key, x in state.items()}
            assert devices == {key: "cpu" if on_host(key) else "cuda" for key in state}
            assert "cpu" in devices.values()
            state.update({key: x.to(weight.device) for key, x in state.items()})
