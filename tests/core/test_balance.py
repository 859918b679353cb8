"""The work is shared out evenly: matrices among ranks, refreshes among steps."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import deva_optim as do
from deva_optim.core.balance import share_out, step_cost
from deva_optim.core.matrices import parts
from deva_optim.options import DEFAULTS

# Owners: on the shapes of real models, for every matrix method ----------------------------------

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


# Refreshes: each parameter at its own pace, no step with all of them ----------------------------

COSTS = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


@given(COSTS, st.integers(1, 12))
def test_no_step_has_more_than_its_share_and_one_refresh(costs, period):
    found = share_out(costs, [0] * period)
    load = [sum(c for c, p in zip(costs, found, strict=True) if p == i) for i in range(period)]
    assert sum(load) == sum(costs)
    assert max(load) <= sum(costs) / period + max(costs)
    assert found[costs.index(max(costs))] == 0


def renewals(optimizer, params: list[nn.Parameter], steps: int) -> list[list[int]]:
    """For each parameter the steps after which its basis was another one."""
    seen: list[list[Tensor]] = [[] for _ in params]
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
        for p, bases in zip(params, seen, strict=True):
            bases.append(optimizer.state[p]["basis_left"].clone())
    return [
        [t for t, (a, b) in enumerate(pairwise(bases), start=2) if not torch.equal(a, b)]
        for bases in seen
    ]


def matrices(count: int) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(4, 4, dtype=torch.float64)) for _ in range(count)]


@pytest.mark.parametrize("kind", [do.DeVASinf, do.SOAP])
def test_every_parameter_is_refreshed_at_its_own_steps(kind):
    params = matrices(8)
    found = renewals(kind(params, refresh_every=4, skip_first=False), params, 24)
    for steps in found:
        assert all(b - a == 4 for a, b in pairwise(steps))
        assert steps[0] - 1 <= 4  # the first basis is of step 1
    assert sorted(steps[-1] % 4 for steps in found) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_frozen_matrices_take_no_part_in_the_phases():
    """With LoRA they would leave one phase for all adapters, which are small beside them."""
    frozen = [nn.Parameter(torch.randn(64, 64), requires_grad=False) for _ in range(4)]
    params = matrices(4)
    found = renewals(do.DeVASinf(frozen + params, refresh_every=4), params, 9)
    assert sorted(steps[-1] % 4 for steps in found) == [0, 1, 2, 3]


def test_without_staggering_all_come_at_once():
    params = matrices(3)
    found = renewals(do.DeVASinf(params, refresh_every=4, stagger=False), params, 9)
    assert found == [[4, 8]] * 3


def test_a_parameter_alone_keeps_the_time_of_the_specification():
    params = matrices(1)
    assert renewals(do.DeVASinf(params, refresh_every=4), params, 9) == [[4, 8]]


def test_phases_survive_a_checkpoint():
    params = matrices(5)
    whole = do.DeVASinf(params, refresh_every=4)
    renewals(whole, params, 6)
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = do.DeVASinf(twins, refresh_every=4)
    resumed.load_state_dict(whole.state_dict())
    torch.manual_seed(1)
    expected = renewals(whole, params, 9)
    torch.manual_seed(1)
    assert renewals(resumed, twins, 9) == expected


def test_a_group_of_another_period_has_phases_of_its_own():
    params = matrices(6)
    groups = [{"params": params[:3], "refresh_every": 3}, {"params": params[3:]}]
    found = renewals(do.DeVASinf(groups, refresh_every=5), params, 31)
    for steps, period in zip(found, [3] * 3 + [5] * 3, strict=True):
        assert all(b - a == period for a, b in pairwise(steps))
    assert len({steps[-1] % 3 for steps in found[:3]}) == 3
    assert len({steps[-1] % 5 for steps in found[3:]}) == 3
