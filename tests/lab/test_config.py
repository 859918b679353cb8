"""`--config FILE`: the options of a file, under those that are typed."""

import json
from pathlib import Path

import pytest

from deva_lab.cli import main
from deva_lab.results import read_results

QUICK = ["--task", "mlp", "--size", "tiny", "--steps", "12", "--batch", "16"]


def deva(*words: str | Path) -> int:
    return main([str(word) for word in words])


def curves_of(folder: Path):
    """Settings and losses of the runs, to the bit."""
    results = read_results(folder / "results.jsonl")
    return {
        result["id"]: (result["settings"], result["curve"]["loss"], result["curve"]["train_loss"])
        for result in results
    }


def written(path: Path, **options) -> Path:
    path.write_text(json.dumps(options))
    return path


def test_a_comparison_is_repeated_to_the_bit_from_its_options(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    words = [*QUICK, "--optimizers", "deva:betas=0.9/0.95/0.95,adamw", "--lr", "x0.3,0.01"]
    words += ["--warmup", "0.1", "--clip", "0.7", "--jobs", "1"]
    assert deva("compare", *words, "--out", first) == 0
    config = first / "options.json"
    assert deva("compare", "--config", config, "--jobs", "1", "--out", second) == 0
    assert curves_of(first) == curves_of(second)
    assert len(curves_of(first)) == 4
    assert json.loads(config.read_text()) == json.loads((second / "options.json").read_text())


def test_a_run_is_repeated_to_the_bit_from_its_options(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    words = ["--task", "mlp", "--size", "tiny", "--tokens", "192", "--batch", "16", "--seed", "3"]
    assert deva("train", *words, "--dtype", "bfloat16", "--lr", "0.0123", "--out", first) == 0
    assert deva("train", "--config", first / "options.json", "--out", second) == 0
    assert curves_of(first) == curves_of(second)


def test_what_is_typed_wins(tmp_path):
    options = {"task": "mlp", "size": "tiny", "tokens": 1e9, "batch": 16, "optimizer": "muon"}
    config = written(tmp_path / "mine.json", **options, **{"evaluate-every": 2}, compile=True)
    words = ["--steps", "4", "--optimizer", "adamw", "--no-compile"]
    assert deva("train", "--config", config, *words, "--out", tmp_path / "out") == 0
    (result,) = read_results(tmp_path / "out" / "results.jsonl")
    assert result["label"] == "adamw"
    assert result["curve"]["step"] == [0, 2, 4]
    assert result["settings"]["compile"] is False
    assert result["command"].startswith(f"deva train --config {config} --steps 4")


def test_numbers_lists_and_null_are_taken_as_json_has_them(tmp_path):
    options = {"optimizers": ["deva", "muon"], "lr": 0.01, "seeds": [5, 6], "decay": None}
    options |= {"task": "mlp", "size": "tiny", "steps": 2, "jobs": 1, "compile": False}
    config = written(tmp_path / "mine.json", **options)
    assert deva("compare", "--config", config, "--out", tmp_path / "out") == 0
    runs = [x["settings"] for x in read_results(tmp_path / "out" / "results.jsonl")]
    assert {(x["optimizer"], x["seed"]) for x in runs} == {
        (name, seed) for name in ("deva", "muon") for seed in (5, 6)
    }
    assert {(x["lr"], x["decay"]) for x in runs} == {(0.01, 0.4)}


def test_a_list_of_one_seed_is_that_seed_and_a_mark_of_windows_is_none_of_json(tmp_path):
    config = tmp_path / "mine.json"
    options = {"task": "mlp", "size": "tiny", "steps": 1, "optimizers": "adamw", "seeds": [2]}
    config.write_text(json.dumps(options), "utf-8-sig")
    assert deva("compare", "--config", config, "--jobs", "1", "--out", tmp_path / "out") == 0
    runs = [x["settings"]["seed"] for x in read_results(tmp_path / "out" / "results.jsonl")]
    assert runs == [2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step": 12}', "unknown option of deva train 'step', did you mean 'steps'?"),
        ('{"optimizers": "deva"}', "did you mean 'optimizer'?"),
        ('{"resume": "runs"}', "unknown option of deva train 'resume'"),
        ('{"steps": "many"}', "argument --steps: invalid int value: 'many'"),
        ('{"steps": true}', "steps must be a text, a number or a list, got True"),
        ('{"compile": "yes"}', "compile must be true or false, got 'yes'"),
        ('{"dtype": "float8"}', "argument --dtype: invalid choice: 'float8'"),
        ('{"steps": 2, "tokens": 3}', "not allowed with argument"),
        ('{"steps": 2,}', "is no JSON"),
        ("[2]", "must have options by name"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_trained(
    text, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text(text)
    assert deva("train", "--config", "mine.json") == 2
    said = capsys.readouterr().err
    assert said.startswith("deva: ")
    assert "mine.json" in said
    assert message in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


def test_a_record_that_was_edited_is_refused_until_its_digest_is_gone(tmp_path, capsys):
    assert deva("train", *QUICK, "--out", tmp_path / "first") == 0
    record = json.loads((tmp_path / "first" / "options.json").read_text())
    config = written(tmp_path / "mine.json", **{**record, "steps": 4})
    words = ["train", "--config", config, "--out", tmp_path / "second"]
    assert deva(*words) == 2
    assert "remove its field 'digest'" in capsys.readouterr().err
    del record["digest"]
    written(config, **{**record, "steps": 4})
    assert deva(*words) == 0
    (result,) = read_results(tmp_path / "second" / "results.jsonl")
    assert result["step"] == 4


def test_options_of_a_file_extend_what_is_resumed(tmp_path):
    words = [*QUICK, "--optimizers", "adamw", "--jobs", "1"]
    assert deva("compare", *words, "--out", tmp_path / "out") == 0
    config = written(tmp_path / "more.json", seeds=2, jobs=1)
    assert deva("compare", "--resume", tmp_path / "out", "--config", config) == 0
    results = read_results(tmp_path / "out" / "results.jsonl")
    assert [result["settings"]["seed"] for result in results] == [0, 1]
