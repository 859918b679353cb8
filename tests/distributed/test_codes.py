"""States in codes over ranks: the codes of a single process, or an error that says what to do."""

import pytest
import torch
from torch import Tensor

from ranks import run

from .sharding import agree, alone, packed, past, together, weights

SHAPES = ((7, 5), (3, 5, 4), (9, 300), (5, 2), (9,))
NAMES = ("deva-sinf", "muon", "soap", "adamw")


def trained(layout: str) -> list[list[Tensor]]:
    start = weights(SHAPES)
    options = {"state_dtype": "int8", "foreach": False}
    names = [name for name in NAMES if layout != "ddp" or name != "adamw"]
    return [together(name, start, past(start, 9), layout, **options) for name in names]


@pytest.mark.parametrize("layout", ["rows", "hybrid", "ddp", pytest.param("packed", marks=packed)])
def test_ranks_keep_the_codes_of_one_process(layout: str) -> None:
    """Blocks do not cross rows, so that a shard of rows has those of the whole."""
    start = weights(SHAPES)
    for found in run(4, trained, layout):
        for name, ours in zip(NAMES, found, strict=False):
            theirs = alone(name, start, past(start, 9), foreach=False, state_dtype="int8")
            agree(ours, theirs, f"{name}, {layout}")


def cut_columns() -> str:
    start = weights(((4, 6),))
    with pytest.raises(ValueError, match="state_dtype must not be 'int8'") as error:
        together("adamw", start, past(start, 1), "columns", state_dtype="int8")
    return str(error.value)


def test_columns_of_what_is_updated_entry_by_entry_are_refused() -> None:
    for message in run(2, cut_columns):
        assert "param_groups[0]['params'][0]" in message
        assert message.endswith("use torch.bfloat16, or shard its rows")


def columns_of_matrices() -> list[Tensor]:
    start = weights(((4, 6),))
    return together("muon", start, past(start, 3), "columns", state_dtype="int8")


def test_columns_of_matrices_are_not() -> None:
    start = weights(((4, 6),))
    theirs = alone("muon", start, past(start, 3), state_dtype="int8")
    for ours in run(2, columns_of_matrices):
        assert torch.equal(ours[0], theirs[0])
