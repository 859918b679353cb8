"""The table of options: what classes, groups and docstrings are made of, and what is refused.

What the constructors refuse is in `optimizers/descriptions.py`, and tested by `test_info.py` there.
"""

import doctest
import inspect
import re
from collections import UserList
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import deva_optim as do
from deva_optim.optimizer import BaseOptimizer
from deva_optim.options import DEFAULTS, OPTIONS, checked_group, documented

CLASSES = [
    x for x in vars(do).values() if isinstance(x, type) and issubclass(x, torch.optim.Optimizer)
]


def sections(cls: type) -> dict[str, str]:
    """The arguments in a docstring, each as one line."""
    _, _, section = (cls.__doc__ or "").partition("\nArgs:\n")
    entries = re.split(r"^ {4}(?=\w)", section.partition("\n\n")[0], flags=re.MULTILINE)
    pairs = (" ".join(entry.split()).split(": ", 1) for entry in entries if entry)
    return dict(pairs)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_argument_is_documented_in_the_order_of_the_signature(cls):
    signature, found = inspect.signature(cls).parameters, sections(cls)
    assert list(found) == list(signature)
    for name, parameter in signature.items():
        assert found[name].startswith(cls.arguments[name])
        if parameter.default is not inspect.Parameter.empty:
            value = parameter.default
            shown = f'"{value}"' if isinstance(value, str) else repr(value)
            assert found[name].endswith(f" Default: {shown}.")


@pytest.mark.parametrize("cls", CLASSES)
def test_docstrings_keep_what_the_source_has(cls):
    first, rule, *_ = cls.__doc__.split("\n\n")
    assert first.endswith(".")
    assert "←" in rule
    assert doctest.DocTestFinder(recurse=False).find(cls)[0].examples
    assert "\nReferences:\n" in cls.__doc__
    assert max(map(len, cls.__doc__.splitlines())) <= 96  # 100 where help() indents it


def test_a_sentence_of_a_class_stands_above_that_of_the_table():
    assert do.Shampoo.arguments["eps"] == "ε, added to the eigenvalues of L and R."
    assert do.DeVASinf.arguments["eps"] == OPTIONS["eps"].text


def test_a_sentence_on_an_argument_that_there_is_not():
    with pytest.raises(TypeError, match="Misspelt has no argument bets"):

        @documented
        class Misspelt(BaseOptimizer):
            """One.

            Args:
                bets: Decay of M.
            """

            def __init__(self, params, betas=(0.9, 0.99)):
                super().__init__(params, "adamw", locals())


def test_rows_are_whole():
    checked_group(DEFAULTS, {})  # every default passes its own check
    for name, option in OPTIONS.items():
        assert option.text.endswith("."), name


@pytest.mark.parametrize("cls", CLASSES)
def test_what_a_class_is_given_is_what_its_groups_hold(cls):
    signature = inspect.signature(cls).parameters
    weight = torch.nn.Parameter(torch.ones(2, 2))
    (group,) = cls([{"params": [weight], "role": "auto"}]).param_groups
    missing = {"betas"} if "momentum" in signature else set()
    assert group.keys() - {"momentum"} == DEFAULTS.keys() - missing | {"params"}
    for name in group.keys() & signature.keys() - {"params"}:
        assert group[name] == signature[name].default
    for name in DEFAULTS.keys() - signature.keys() - {"method", "betas", "rest", "rest_betas"}:
        assert group[name] == DEFAULTS[name]


def test_arguments_that_stand_for_others():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    assert do.Muon([weight]).defaults["variant"] == "default"
    assert do.Muon([weight], adjust_lr_fn=None).defaults["variant"] == "original"
    assert do.Shampoo([weight]).defaults["variant"] == "default"
    assert do.Shampoo([weight], graft="none").defaults["variant"] == "ungrafted"
    splus = do.SPlus([weight], betas=(0.8, 0.9)).defaults
    assert (splus["rest"], splus["rest_betas"]) == ("splus-vector", (0.8, 0.9))
    groups = [{"params": [weight], "momentum": 0.6}]
    assert do.AdamW(groups).param_groups[0]["betas"] == (0.6, 0.999)


# Bad groups get an error at once that names the argument, the value and the remedy --------------


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
    with pytest.raises(ValueError, match=r"b of shape \(4,\) cannot have the role 'matrix'"):
        do.Muon([{"params": [("b", weight(4))], "role": "matrix"}])


def test_sequences_of_any_class_are_kept_as_tuples():
    # Hydra, for one, hands the lists of a file over as OmegaConf's ListConfig.
    fused = nn.Sequential(nn.Linear(4, 12), nn.Linear(12, 4), nn.Linear(4, 2))
    groups = do.param_groups(
        fused, split={"0": UserList([4, 8])}, overrides=[("1", {"split": UserList([2, 2])})]
    )
    optimizer = do.DeVA(groups, betas=UserList([0.5, 0.75]), rest_betas=UserList([0.25, 0.5]))
    first, second, *vectors = optimizer.param_groups
    assert (first["split"], second["split"]) == ((4, 8), (2, 2))
    assert first["betas"] == (0.5, 0.75)
    assert {group["betas"] for group in vectors} == {(0.25, 0.5)}
    assert do.Muon([weight()], ns_coefficients=UserList([2.0, -1.5, 0.5]))


def test_a_program_without_a_name_is_warned_like_any_other():
    program = "import torch, deva_optim\nA = torch.nn.Parameter(torch.eye(2))\n"
    program += "deva_optim.Muon([{'params': [A], 'weight_decy': 0.1}])"
    with pytest.warns(UserWarning, match="did you mean 'weight_decay'"):
        exec(program, {})


def test_a_bad_group_leaves_the_optimizer_as_it_was(monkeypatch: pytest.MonkeyPatch):
    optimizer = do.DeVASinf([weight()])
    for bad in (
        {"params": [weight()], "lr": -1.0},
        {"params": optimizer.param_groups[0]["params"]},
    ):
        with pytest.raises(ValueError, match="lr|given twice"):
            optimizer.add_param_group(bad)
    assert len(optimizer.param_groups) == 1
    lost = Mock(side_effect=RuntimeError("no process group"))
    monkeypatch.setattr(do.DeVASinf, "_find_shared", lost)
    with pytest.raises(RuntimeError, match="no process group"):
        optimizer.add_param_group({"params": [weight()]})
    assert len(optimizer.param_groups) == 1


def test_a_parameter_in_float8_is_refused_unless_it_is_frozen():
    p = torch.ones(4, 4).to(torch.float8_e4m3fn)
    do.Muon([p])
    with pytest.raises(TypeError, match=r"torch.float16, got torch.float8_e4m3fn"):
        do.Muon([p.requires_grad_()])
