"""Bad groups and states get an error at once that names the argument, the value and the remedy.

What the constructors refuse is in `descriptions`, and tested by `test_optimizer_info`.
"""

import pytest
import torch
from torch import nn

import deva_optim as do


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape or (4, 4)))


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
