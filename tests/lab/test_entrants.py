"""Optimizers by name: what a text stands for, and what is wrong with one that stands for none."""

import pytest
import torch
from torch import nn

from deva_lab.errors import UsageError
from deva_lab.run.entrants import ENTRANTS, Entrant, entrants, options_of


def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7))


@pytest.mark.parametrize("name", ENTRANTS)
def test_every_entrant_builds_and_steps(name):
    network = model()
    optimizer = Entrant.parse(name).build(network, lr=0.01)
    before = [p.detach().clone() for p in network.parameters()]
    for _ in range(2):
        network(torch.tensor([1, 2, 3])).square().sum().backward()
        optimizer.step()
    assert any(not a.equal(b) for a, b in zip(before, network.parameters(), strict=True))


def test_label_is_read_back():
    text = (
        "deva:betas=0.9/0.99/0.95,eps=1.25e-07,nesterov=true,state_dtype=bfloat16,variant=factored"
    )
    entrant = Entrant.parse(text)
    assert entrant.label == text
    assert Entrant.parse(entrant.label) == entrant
    assert dict(entrant.options)["betas"] == (0.9, 0.99, 0.95)
    assert dict(entrant.options)["state_dtype"] is torch.bfloat16


def test_a_word_of_an_option_is_no_value_of_python():
    """ "none" is one of the ways to graft; of other options it is None."""
    entrant = Entrant.parse("shampoo:graft=none,state_dtype=none")
    assert dict(entrant.options) == {"graft": "none", "state_dtype": None}
    assert Entrant.parse(entrant.label) == entrant


def test_order_of_settings_does_not_matter_and_lr_is_not_in_the_label():
    a, b = (
        Entrant.parse("muon:nesterov=true,lr=3e-3,eps=1e-6"),
        Entrant.parse("MUON:eps=1e-6, nesterov=True"),
    )
    assert a.label == b.label == "muon:eps=1e-06,nesterov=true"
    assert a.lr == 0.003
    assert b.lr is None


def test_settings_reach_the_optimizer():
    optimizer = Entrant.parse("deva:sides=short,rest=adamw,rest_lr=0.5").build(model(), lr=0.25)
    by_role = {group["role"]: group for group in optimizer.param_groups}
    assert (by_role["matrix"]["lr"], by_role["vector"]["lr"]) == (0.25, 0.5)
    assert by_role["matrix"]["sides"] == "short"


def test_lists():
    labels = [e.label for e in entrants("deva, muon:nesterov=true,eps=1e-6 ,soap,deva")]
    assert labels == ["deva", "muon:eps=1e-06,nesterov=true", "soap"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("muno", "unknown optimizer 'muno', did you mean 'muon'?"),
        ("deva:side=short", "unknown option of deva 'side', did you mean 'sides'?"),
        ("deva:sides=shrt", "sides"),
        ("deva:nesterov", "key=value"),
        ("adamw:lr=-1", "lr"),
        ("adamw:lr=fast", "lr"),
        ("adamw:betas=0.9", "betas"),
        ("torch-adamw:rest_lr=0.1", "unknown option of torch-adamw 'rest_lr'"),
        (" , ", "no optimizer"),
    ],
)
def test_errors_name_the_remedy(text, message):
    with pytest.raises(UsageError, match=message):
        entrants(text)


def test_options_are_those_of_the_class():
    assert {"variant", "betas", "rest_lr"} <= set(options_of("deva"))
    assert "params" not in options_of("deva")
    assert options_of("deva")["sides"][:2] == ("both | short", "short")
    assert options_of("torch-adamw")["amsgrad"][:2] == ("bool", "false")


@pytest.mark.parametrize("name", ENTRANTS)
def test_every_option_is_explained(name):
    assert all(option.text.endswith(".") for option in options_of(name).values())
