"""The table of options: what classes, groups and docstrings are made of."""

import doctest
import inspect
import re

import pytest
import torch

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
    assert do.DeVA.arguments["eps"] == OPTIONS["eps"].text


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
    assert group.keys() == DEFAULTS.keys() | {"params"}
    for name in DEFAULTS.keys() & signature.keys():
        assert group[name] == signature[name].default
    for name in DEFAULTS.keys() - signature.keys() - {"method", "betas", "rest", "rest_betas"}:
        assert group[name] == DEFAULTS[name]


def test_arguments_that_stand_for_others():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    assert do.Muon([weight], momentum=0.7).defaults["betas"] == (0.7, 0.0)
    assert do.Signum([weight], momentum=0.7).defaults["betas"] == (0.7, 0.0)
    assert do.Shampoo([weight]).defaults["variant"] == "default"
    assert do.Shampoo([weight], graft="none").defaults["variant"] == "ungrafted"
    splus = do.SPlus([weight], betas=(0.8, 0.9)).defaults
    assert (splus["rest"], splus["rest_betas"]) == ("splus-vector", (0.8, 0.9))
    groups = [{"params": [weight], "momentum": 0.6}]
    assert do.AdamW(groups).param_groups[0]["betas"] == (0.6, 0.999)
