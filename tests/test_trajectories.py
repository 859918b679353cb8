"""Every optimizer takes the trajectories that the repository has a recording of, to rounding.

A change that is meant to alter numbers says so in the CHANGELOG and records them anew:
`python -m trajectories reduce`. The checkpoints stay as they are.
"""

import json

import pytest
from torch import Tensor

from trajectories.cases import CASES, SHARED, Case
from trajectories.record import REDUCED, of_ranks, reduced, same_to_rounding, trajectory

RECORDED: dict[str, dict[str, float]] = json.loads(REDUCED.read_text("utf-8"))
HELD = [name for name, case in CASES.items() if case.held]
OF_RANKS = [name for name, case in SHARED.items() if case.held]


def hold(case: Case, found: dict[str, Tensor]) -> None:
    assert reduced(found) == same_to_rounding(case, RECORDED[str(case)])


@pytest.mark.parametrize("name", [name for name in HELD if not CASES[name].loaded])
def test_a_trajectory_is_the_recorded_one(name: str) -> None:
    hold(CASES[name], trajectory(CASES[name]))


@pytest.mark.parametrize("name", [name for name in HELD if CASES[name].loaded])
def test_a_checkpoint_of_an_earlier_version_goes_on(name: str) -> None:
    """It was saved after five steps, when the recording was made; five more follow."""
    hold(CASES[name], trajectory(CASES[name]))


@pytest.mark.slow
def test_two_ranks_take_the_recorded_trajectories() -> None:
    for name, found in of_ranks(OF_RANKS).items():
        hold(SHARED[name], found)


def test_nothing_is_recorded_that_is_not_run() -> None:
    assert set(RECORDED) == {*HELD, *OF_RANKS}
