"""Bad input gets an error at construction that names the argument, the value and the remedy."""

import pytest
import torch
from torch import nn

import deva_optim as do
from optimizers import OPTIMIZERS

nan, inf = float("nan"), float("inf")


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape or (4, 4)))


EVERYWHERE = [
    ({"lr": -1.0}, r"lr must be at least 0 and finite, got -1\.0"),
    ({"lr": nan}, "lr must be at least 0 and finite, got nan"),
    ({"lr": inf}, "lr must be at least 0 and finite, got inf"),
    ({"lr": torch.tensor([0.1, 0.2])}, r"lr must be a float or a 0-D .* shape \(2,\)"),
    ({"lr": torch.tensor(-0.1)}, "lr must be at least 0"),
    ({"lr": "fast"}, "lr must be at least 0 and finite, got 'fast'"),
    ({"weight_decay": -0.1}, r"weight_decay must be at least 0 and finite, got -0\.1"),
    ({"nonfinite": "skp"}, "nonfinite must be one of skip, raise, got 'skp'; did you mean 'skip'"),
    ({"state_dtype": torch.int8}, r"state_dtype must be None or one of .*, got torch\.int8"),
    ({"maximize": 1}, "maximize must be True or False, got 1"),
    ({"foreach": "yes"}, "foreach must be None, True or False, got 'yes'"),
]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("settings", "message"), EVERYWHERE, ids=lambda x: str(x)[:30])
def test_arguments_of_every_optimizer(name, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        OPTIMIZERS[name]([weight()], **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"betas": (0.9, 1.2)}, r"betas\[1\] must be in \[0, 1\), got 1\.2"),
        ({"betas": (0.9, 0.9, 1.0)}, r"betas\[2\] must be in \[0, 1\), got 1\.0"),
        ({"betas": (-0.1, 0.9)}, r"betas\[0\] must be in \[0, 1\), got -0\.1"),
        ({"betas": (0.9,)}, r"betas must be two or three numbers, got \(0\.9,\)"),
        ({"betas": 0.9}, r"betas must be two or three numbers, got 0\.9"),
        ({"rest_betas": (0.9, nan)}, r"rest_betas\[1\] must be in \[0, 1\), got nan"),
        ({"eps": -1e-8}, "eps must be at least 0 and finite, got -1e-08"),
        ({"refresh_every": 0}, "refresh_every must be a whole number of at least 1, got 0"),
        ({"refresh_every": 2.5}, r"refresh_every must be a whole number .*, got 2\.5"),
        ({"refresh_every": True}, "refresh_every must be a whole number .*, got True"),
        ({"max_dim": 0}, "max_dim must be a whole number of at least 1, got 0"),
        ({"variant": "factord"}, "got 'factord'; did you mean 'factored'"),
        ({"variant": "whitened", "sign_stabilize": True}, "sign_stabilize undoes variant"),
        ({"variant": "ungrafted"}, "variant 'ungrafted' is none of deva-sinf's"),
        ({"msign": "newton-shulz"}, "got 'newton-shulz'; did you mean 'newton-schulz'"),
        ({"sides": "shrot"}, "sides must be one of both, short, got 'shrot'; did you mean 'short'"),
        ({"rest": "adam"}, "got 'adam'; did you mean 'adamw'"),
        ({"nesterov": None}, "nesterov must be True or False, got None"),
        ({"skip_first": "no"}, "skip_first must be True or False, got 'no'"),
        ({"sign_stabilize": 0}, "sign_stabilize must be True or False, got 0"),
    ],
    ids=lambda x: str(x)[:30],
)
@pytest.mark.parametrize("optimizer", [do.DeVA, do.DeVASinf])
def test_arguments_of_deva(optimizer, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer([weight()], **settings)


def test_arguments_that_others_have():
    with pytest.raises(ValueError, match="ema_rate must be in"):
        do.SPlus([weight()], ema_rate=1.0)
    with pytest.raises(
        ValueError, match="graft must be one of adam, none, got 'adm'; did you mean"
    ):
        do.Shampoo([weight()], graft="adm")
    with pytest.raises(ValueError, match=r"betas\[0\] must be in \[0, 1\), got 1\.5"):
        do.Muon([weight()], momentum=1.5)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"role": "matrx"}, "role must be one of auto, matrix, vector, got 'matrx'; did you mean"),
        ({"layout": "convolution"}, "layout must be one of"),
        ({"split": 3}, r"w: split must divide dimension -2 of shape \(4, 4\), got 3 for 4"),
        ({"split": (1, 2)}, r"w: split must add up to dimension -2 of shape \(4, 4\)"),
        ({"split": 0}, "split must be a whole number of at least 1, got 0"),
        ({"split_dim": 0}, r"split_dim must be -2 \(rows\) or -1 \(columns\), got 0"),
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"skip_first": True, "method": "muon"}, "skip_first is for DeVA-S∞ and SOAP alone"),
    ],
    ids=str,
)
def test_groups(group, message):
    with pytest.raises(ValueError, match=message):
        do.DeVASinf([{"params": [("w", weight())], **group}])


def test_columns_of_a_convolution_cannot_be_split():
    with pytest.raises(ValueError, match="split_dim must be -2 for a convolution"):
        do.Muon([{"params": [weight(4, 4, 3, 3)], "split": 2, "split_dim": -1}])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters(name):
    make = OPTIMIZERS[name]
    p = weight()
    with pytest.raises(ValueError, match="b is given twice"):
        make([("a", p), ("b", p)])
    with pytest.raises(ValueError, match="given twice|some parameters appear"):
        make([{"params": [p]}, {"params": [p]}])
    with pytest.raises(ValueError, match=r"empty has no elements \(shape \(0, 3\)\)"):
        make([("empty", weight(0, 3))])
    with pytest.raises(TypeError, match=r"z is complex; optimize torch\.view_as_real"):
        make([("z", nn.Parameter(torch.ones(2, 2, dtype=torch.complex64)))])
    with pytest.raises(ValueError, match="empty parameter list|no parameters"):
        make([])
    with pytest.raises(TypeError, match="iterable"):
        make(p)


def test_a_vector_cannot_be_told_to_be_a_matrix():
    with pytest.raises(ValueError, match=r"b is not a matrix \(shape \(4,\)\)"):
        do.Muon([{"params": [("b", weight(4))], "role": "matrix"}])


def test_a_bad_group_leaves_the_optimizer_as_it_was():
    optimizer = do.DeVASinf([weight()])
    for bad in (
        {"params": [weight()], "lr": -1.0},
        {"params": optimizer.param_groups[0]["params"]},
    ):
        with pytest.raises(ValueError, match="lr|given twice"):
            optimizer.add_param_group(bad)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_gradients_are_refused_before_anything_has_changed(name):
    table, other = nn.Embedding(5, 3, sparse=True), weight()
    optimizer = OPTIMIZERS[name]([("other", other), ("table", table.weight)])
    table(torch.tensor([1, 2])).sum().backward()
    other.grad = torch.ones_like(other)
    before = other.detach().clone()
    with pytest.raises(RuntimeError, match="gradient of table is sparse .* sparse=False"):
        optimizer.step()
    assert torch.equal(other, before)
    assert not optimizer.state


def test_a_state_of_another_method_is_refused():
    muon, soap = do.Muon([weight()]), do.SOAP([weight()])
    with pytest.raises(ValueError, match="state is of method 'soap', this optimizer is 'muon'"):
        muon.load_state_dict(soap.state_dict())
