"""A state that was saved elsewhere: what does not fit is refused, and nothing has changed."""

import copy

import pytest
import torch

from helpers import advance, build, gradients, parameters


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
