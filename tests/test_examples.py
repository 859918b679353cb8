"""The examples run as they are: the loss falls, and a run that was broken off goes on."""

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

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
    measurements = {"experts_without_tokens", "lora_rates"}
    others = {"finetune_lora_trl"} | measurements
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(NEEDS) | others


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


def test_fine_tuning_goes_on_from_the_checkpoint_that_is_left(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("trl")
    example: Any = runpy.run_path(str(EXAMPLES / "finetune_lora_trl.py"))
    small = "--rows 8 --epochs 3 --lr 2e-2 --batch 2 --accumulate 2 --length 16 --save-every 2"
    settings = example["settings_of"]([*small.split(), "--out", str(tmp_path)])
    whole = example["fine_tune"](settings)
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert len(losses) == 6
    assert max(losses[-2:]) < min(losses[:2]) - 0.05
    for checkpoint in ("checkpoint-4", "checkpoint-6"):  # as if it had been stopped at step 3
        shutil.rmtree(tmp_path / checkpoint)
    then = example["fine_tune"](settings)
    assert [e["loss"] for e in then.state.log_history if "loss" in e] == losses
    for ours, theirs in zip(then.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_measurement_of_lora_has_a_row_for_each_method(capsys) -> None:
    pytest.importorskip("peft")
    runpy.run_path(str(EXAMPLES / "lora_rates.py"))["main"](2, 2, [1e-2], 2)
    rows = capsys.readouterr().out.splitlines()
    methods = ["AdamW", "DeVA, A and B elementwise", "DeVA, A and B matrices"]
    assert [row[:28].strip() for row in rows[2:5]] == methods
    assert all(row.count("±") == 1 for row in rows[2:5])
    assert [row.split(":")[0] for row in rows[5:7]] == methods[1:]


def test_the_measurement_of_experts_says_what_each_answer_costs(capsys) -> None:
    runpy.run_path(str(EXAMPLES / "experts_without_tokens.py"))["main"](2, 1)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" loss")[0].split()[0] for row in rows] == 3 * ["Muon"] + 3 * ["DeVA"]
