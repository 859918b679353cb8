"""Comparisons from Python: files, classes and objects, and the notebook of the examples."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import deva_lab
from deva_lab import Comparison, UsageError, compare
from deva_lab.run.user_source import _objects
from helpers import ROOT

NOTEBOOK = ROOT / "examples" / "compare_in_a_notebook.ipynb"


class Squares:
    """The square of a linear map, which goes to zero."""

    steps = 8

    def __init__(self, seed, fails=False):
        self.seed, self.fails = seed, fails

    def model(self):
        return nn.Linear(4, 4)

    def batch(self, step):
        if self.fails and step == 2:
            raise RuntimeError("there is no third batch")
        return torch.randn(6, 4)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def validate(self, model):
        return self.loss(model, torch.eye(4))


def quiet(task, *arguments, **options) -> Comparison:
    return compare(task, *arguments, progress=False, **options)


def test_a_class_is_compared_in_this_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    found = quiet(Squares, ["deva", "adamw"], lr=["x0.5", 0.01], seeds=2)
    assert torch.get_rng_state().equal(before)
    assert isinstance(found, Comparison)
    assert len(found.results) == 2 * 2 * 2
    assert "deva" in found.table()
    assert found.plot().axes
    assert "Squares" in found.report(tmp_path / "page.html").read_text()
    assert os.listdir(tmp_path) == ["page.html"]
    again = quiet(Squares, "deva,adamw", lr=["x0.5", 0.01], seeds=2)
    assert [x["curve"]["loss"] for x in again.results] == [
        x["curve"]["loss"] for x in found.results
    ]


def test_an_object_that_fails_is_a_row(capsys):
    found = compare(Squares(0, fails=True), ["adamw"])
    assert "RuntimeError: there is no third batch" in found.table()
    said = capsys.readouterr().out
    path = Path(said.split("traceback: ")[1].split("\n")[0])
    assert "there is no third batch" in path.read_text()  # which outlives the call


def test_telemetry_is_kept_every_so_many_steps():
    (result,) = quiet(Squares, ["deva"], telemetry=4).results
    assert [record["step"] for record in result["telemetry"]] == [4, 8]


def test_a_folder_keeps_the_runs(tmp_path):
    first = quiet("mlp", ["adamw"], size="tiny", steps=4, jobs=1, out=tmp_path)
    second = quiet("mlp", ["adamw", "lion"], size="tiny", steps=4, jobs=1, out=tmp_path)
    assert first.results[0] in second.results
    assert len(second.results) == 2


def test_a_folder_knows_a_class_by_its_source_and_an_object_by_nothing_that_another_has(tmp_path):
    first = quiet(Squares, ["adamw"], out=tmp_path)
    assert quiet(Squares, ["adamw"], out=tmp_path).results == first.results
    (place,) = (place for place, known in _objects.items() if known is Squares)
    _objects[place.replace(" ", " 1")] = _objects.pop(place)  # as another process would call it
    assert quiet(Squares, ["adamw"], out=tmp_path).results == first.results
    one, other = Squares(0), Squares(1)
    named = quiet(one, ["adamw"], out=tmp_path).results
    assert quiet(one, ["adamw"], out=tmp_path).results == named
    assert quiet(other, ["adamw"], out=tmp_path).results[0]["id"] != named[0]["id"]
    assert {run["settings"]["task"] for run in (*first.results, *named)} == {"Squares"}


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((Squares, ["muno"]), {}, "did you mean 'muon'"),
        ((Squares, []), {}, "at least one"),
        ((Squares, ["deva"]), {"jobs": 2}, "jobs=2: other processes cannot import"),
        ((Squares, ["deva"]), {"seeds": 0}, "seeds must be one or more numbers"),
        ((Squares, ["deva"]), {"seeds": [0, -1]}, "from 0 on, got (0, -1)"),
        ((Squares, ["deva"]), {"lr": [-1.0]}, "must be positive numbers"),
        ((Squares, ["deva"]), {"baseline": "lion"}, "lion"),
        ((Squares, ["deva"]), {"seeds": "2"}, "seeds must be whole numbers from 0 on, got '2'"),
        ((Squares, ["deva"]), {"steps": 2.5}, "--steps must be a whole number, at least 1"),
        ((Squares, ["deva"]), {"evaluate_every": 2.5}, "--evaluate-every must be a whole number"),
        ((Squares, ["deva"]), {"dtype": "bf16"}, "unknown dtype 'bf16', did you mean 'bfloat16'"),
        ((Squares, ["deva"]), {"device": "gpu"}, "--device gpu cannot be used here"),
        ((object(), ["deva"]), {}, "has no function model()"),
        (("none.py", ["deva"]), {}, "there is no task at none.py"),
    ],
)
def test_what_does_not_fit_is_said_at_once(arguments, options, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(").replace(")", r"\)")):
        compare(*arguments, **options)


def test_numbers_of_numpy_and_whole_numbers_name_the_same_runs(tmp_path):
    plain = {"lr": "x0.5,0.01", "seeds": [0, 1], "steps": 2, "clip": 1.0}
    same = {"lr": [np.float32(0.0025), "x2"], "seeds": np.arange(2), "steps": np.int64(2)}
    first = quiet("mlp", "adamw", size="tiny", out=tmp_path, jobs=1, **plain)
    again = quiet("mlp", "adamw", size="tiny", out=tmp_path, jobs=1, **same, clip=1)
    assert len(first.results) == 4
    assert {x["id"] for x in again.results} == {x["id"] for x in first.results}
    one = quiet(Squares, "adamw", lr=np.float32(0.01), seeds=np.int64(1), steps=1)
    assert [x["settings"]["lr"] for x in one.results] == [pytest.approx(0.01)]


def test_a_baseline_may_be_written_as_the_optimizers_are(tmp_path, monkeypatch):
    for home in ("HOME", "USERPROFILE"):  # of Windows the second
        monkeypatch.setenv(home, str(tmp_path))
    names = ["muon:nesterov=true,momentum=0.80", "adamw"]
    found = quiet(Squares, names, baseline=names[0], steps=2, out="~/kept")
    assert found.baseline == "muon:momentum=0.8,nesterov=true"
    assert (tmp_path / "kept" / "results.jsonl").exists()


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    script = tmp_path / "script.py"
    words = 'compare("mlp", ["adamw", "lion"], size="tiny", steps=2, jobs=2)'
    script.write_text(f"from deva_lab import compare\n\n{words}\n")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert 'put the call of compare under `if __name__ == "__main__":`' in ended.stderr
    assert "could not begin: they have said why" in ended.stderr.splitlines()[-1]


def test_public_names():
    for name in deva_lab.__all__:
        assert callable(getattr(deva_lab, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        deva_lab.nothing  # noqa: B018


def test_the_notebook_runs_and_is_stored_without_outputs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code)
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in code:
        exec("".join(cell["source"]).replace("steps = 150", "steps = 5"), names)
    assert "adamw" in capsys.readouterr().out
    assert (tmp_path / "report.html").is_file()
