"""The examples run as they are: the loss falls, and a run that was broken off goes on."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import ROOT

EXAMPLES = ROOT / "examples"
NEEDS = {"accelerate_loop": "accelerate", "hf_trainer": "accelerate", "lightning_fit": "lightning"}

pytestmark = pytest.mark.filterwarnings("ignore")  # what other projects warn about is theirs
Train = Callable[[Path, int], list[float]]


def train_of(name: str) -> Train:
    pytest.importorskip(NEEDS[name])
    train: Any = runpy.run_path(str(EXAMPLES / f"{name}.py"))["train"]
    return train


def test_every_example_is_here() -> None:
    measurements = {"experts_without_tokens"}
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(NEEDS) | measurements


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_learns_and_goes_on_where_it_stopped(name: str, tmp_path: Path) -> None:
    train = train_of(name)
    whole = train(tmp_path / "whole", 3)  # of four steps each
    assert len(whole) == 12
    assert whole[-1] < 0.7 * whole[0]
    first = train(tmp_path / "parts", 2)
    then = train(tmp_path / "parts", 3)
    # The Trainer remembers its losses, rounded; the others tell of the steps that they have taken.
    assert [*first, *then][-12:] == whole if name != "hf_trainer" else then == whole


def test_the_measurement_of_experts_says_what_each_answer_costs(capsys) -> None:
    runpy.run_path(str(EXAMPLES / "experts_without_tokens.py"))["main"](2, 1)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" loss")[0].split()[0] for row in rows] == 3 * ["Muon"] + 3 * ["DeVA"]
