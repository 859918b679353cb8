"""`deva init-task` and `deva tune`: files to start from, and rates to start with."""

import argparse
import ast
import shlex
import time
from pathlib import Path

import pytest

from deva_lab.cli import main
from deva_lab.commands.options import OPTIONS, output_folder
from deva_lab.results import read_results
from deva_lab.usage import STARTERS


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def deva(words: str) -> int:
    return main(shlex.split(words))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "hf")) for kind in STARTERS],
)
@pytest.mark.filterwarnings("ignore")  # what transformers warns about is its own
def test_every_starter_runs_as_it_is_written(kind, folder, capsys):
    if kind == "hf":
        pytest.importorskip("transformers")
    assert deva(f"init-task {kind} own.py") == 0
    assert "deva compare --task own.py" in capsys.readouterr().out
    assert "--task own.py" in (folder / "own.py").read_text()
    few = "--steps 3 --evaluate-every 3 --optimizers adamw --jobs 1"
    assert deva(f"compare --task own.py {few} --out out") == 0
    (result,) = read_results(folder / "out" / "results.jsonl")
    assert result["status"] == "finished"
    assert result["curve"]["loss"][-1] < result["curve"]["loss"][0]
    assert result["unit"] == {"tensors": "samples", "images": "images", "hf": "tokens"}[kind]


def test_a_file_is_not_written_over(folder, capsys):
    assert deva("init-task") == 0
    text = (folder / "my_task.py").read_text()
    assert deva("init-task images") == 2
    assert "my_task.py is there already" in capsys.readouterr().err
    assert (folder / "my_task.py").read_text() == text
    assert deva("init-task images my_task") == 2
    assert "must be a file that ends in .py" in capsys.readouterr().err
    assert deva("init-task image") == 2
    assert "did you mean 'images'" in capsys.readouterr().err


def test_a_file_alone_and_one_with_spaces_in_its_name(folder, capsys):
    assert deva("init-task own.py") == 0
    assert (folder / "own.py").read_text().startswith('"""What `deva compare` trains here: a small')
    assert main(["init-task", "images", "our own.py"]) == 0
    assert 'deva compare --task "our own.py"' in capsys.readouterr().out
    assert '--task "our own.py"' in (folder / "our own.py").read_text()
    ast.parse((folder / "our own.py").read_text())


def test_tune_follows_the_rule_of_the_race_and_names_the_next_command(folder, capsys):
    deva("init-task")
    words = "--task my_task.py --steps 8 --optimizers deva,adamw:lr=0.001"
    assert deva(f"tune {words} --budget 9 --jobs 1 --out out") == 0
    said = capsys.readouterr().out
    results = read_results(folder / "out" / "results.jsonl")
    rates = {
        label: sorted(x["settings"]["lr"] for x in results if x["label"] == label)
        for label in ("deva", "adamw")
    }
    assert {label: len(some) for label, some in rates.items()} == {"deva": 4, "adamw": 4}
    assert rates["adamw"] == [0.0005, 0.001, 0.002, 0.004]  # more is better in so few steps
    assert "0.004*" in said
    assert "Raise --budget" in said
    command = next(line for line in said.splitlines() if line.startswith("  deva compare"))
    best = min(
        (x["curve"]["loss"][-1], x["settings"]["lr"]) for x in results if x["label"] == "deva"
    )
    assert f"deva:lr={best[1]:g}" in command
    assert "--task my_task.py --steps 8 --seeds 101,102,103" in command
    assert deva("tune --resume out --budget 10 --jobs 1") == 0
    assert len(read_results(folder / "out" / "results.jsonl")) == 10


def test_the_command_that_tune_names_can_be_given(folder, capsys):
    words = "--task mlp --size tiny --steps 4 --batch 8 --no-compile"
    assert deva(f"tune {words} --optimizers muon:nesterov=true --budget 3 --jobs 1") == 0
    said = capsys.readouterr().out
    command = next(line for line in said.splitlines() if line.startswith("  deva compare"))
    assert "--task mlp --size tiny --steps 4 --batch 8 --no-compile" in command
    assert deva(command.removeprefix("  deva ") + " --jobs 1 --out next") == 0
    results = read_results(folder / "next" / "results.jsonl")
    assert [x["settings"]["seed"] for x in results] == [101, 102, 103]


def test_a_run_that_fails_while_tuning_is_a_rate_that_is_lost(folder, capsys):
    deva("init-task")
    path = folder / "my_task.py"
    trap = "    if model[0].weight.abs().max() > 0.3:\n        raise ValueError('too far')\n"
    path.write_text(path.read_text().replace("    x, y = batch\n", f"{trap}    x, y = batch\n"))
    words = "--task my_task.py --steps 8 --optimizers adamw:lr=0.05 --budget 5 --jobs 1 --out out"
    assert deva(f"tune {words}") == 1
    said = capsys.readouterr().out
    assert "0.1: lost" in said
    assert "adamw:lr=" in said  # it went down until a rate did not fail


def test_the_seeds_to_compare_on_are_none_that_tuned(folder, capsys):
    words = "--task mlp --size tiny --steps 2 --batch 8 --optimizers adamw --seeds 102, --jobs 1"
    assert deva(f"tune {words} --budget 3") == 0
    assert "--seeds 101,103,104" in capsys.readouterr().out
    assert deva("tune --task mlp --optimizers adamw:lr=0.01,adamw:lr=0.1 --budget 8") == 2
    assert "--optimizers has adamw twice" in capsys.readouterr().err


def test_two_commands_of_the_same_second_have_a_folder_each(folder, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form, *moment: "tune-1")
    for name in ("tune-1", "tune-1-2", "tune-1-3"):
        found = output_folder(argparse.Namespace(resume=None, out=None), "tune")
        assert found == Path("runs") / name
        found.mkdir(parents=True)
        (found / OPTIONS).touch()


def test_a_budget_must_do_for_three_rates_each(capsys):
    assert deva("tune --task mlp --optimizers deva,adamw --seeds 2 --budget 11") == 2
    assert "--budget 11 is too small: 3 rates for each of 2 optimizers on 2 seeds take 12 runs" in (
        capsys.readouterr().err
    )
