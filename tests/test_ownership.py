"""The work is shared out evenly: on the shapes of real models, for every matrix method."""

from typing import Any

import pytest

import deva_optim as do
from deva_optim.core.balance import share_out, step_cost
from deva_optim.core.matrices import parts
from deva_optim.options import DEFAULTS

Shape = tuple[int, ...]


def gpt2() -> list[Shape]:
    """The hidden matrices of GPT-2 small."""
    return 12 * [(768, 2304), (768, 768), (768, 3072), (3072, 768)]


def llama() -> list[Shape]:
    """Llama 3 8B: grouped queries, a gated MLP."""
    attention = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)]
    return 32 * [*attention, (14336, 4096), (14336, 4096), (4096, 14336)]


def mixtral() -> list[Shape]:
    """Mixtral 8x7B: eight experts a layer, as stacks; a router."""
    attention = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)]
    return 32 * [*attention, (8, 4096), (8, 28672, 4096), (8, 4096, 14336)]


def costs(shapes: list[Shape], method: str, options: dict[str, Any]) -> list[int]:
    group = {**DEFAULTS, **options}
    read = {shape: parts(shape, "auto", None, -2) for shape in shapes}
    return [step_cost(read[shape], do.METHODS[method], group) for shape in shapes]


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("model", [gpt2, llama, mixtral])
@pytest.mark.parametrize("method", [name for name, row in do.METHODS.items() if row.vector])
@pytest.mark.parametrize("options", [{}, {"sides": "short"}], ids=["both", "short"])
def test_no_rank_has_much_more_than_its_share(
    size: int, model: Any, method: str, options: dict[str, Any]
) -> None:
    load = [0] * size
    cost = costs(model(), method, options)
    found = share_out(cost, load)
    assert load == [sum(c for c, o in zip(cost, found, strict=True) if o == r) for r in range(size)]
    assert max(load) * size <= 1.15 * sum(cost)


def test_what_comes_later_goes_on_top() -> None:
    load = [0, 0]
    assert share_out([5], load) == [0]
    assert share_out([1, 3], load) == [1, 1]
    assert load == [5, 4]


def test_a_dearer_matrix_costs_more() -> None:
    small, large, wide = costs([(64, 64), (128, 128), (64, 256)], "deva-sinf", {})
    assert small < wide < large * 4
    assert costs([(64, 64)], "muon", {})[0] < small
    (stack,) = costs([(3, 64, 64)], "deva-sinf", {})
    assert stack == 3 * small
