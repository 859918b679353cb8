"""The user's own task: found, asked for what it has, trained and resumed, and its errors."""

import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import saved
from torch import nn

from deva_lab.cli import main
from deva_lab.errors import UsageError
from deva_lab.results import read_results
from deva_lab.run.entrants import Entrant
from deva_lab.run.plan import Request, plan
from deva_lab.run.runner import Orders, run_one
from deva_lab.run.tasks import make_task, to_device
from deva_lab.run.user_source import load, of_object
from helpers import ROOT, needs_posix

FUNCTIONS = """
import torch
from torch import nn

steps = 6
batch_size = 4
target = torch.eye(5)


def model():
    return nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 5))


def batch(step, batch_size):
    return {"x": torch.randn(batch_size, 5), "name": "gaussian"}


def loss(model, batch):
    return (model(batch["x"]) - batch["x"] @ target).square().mean()


def validate(model):
    assert not model.training
    return loss(model, {"x": torch.randn(50, 5)})
"""
CLASS = """
from beside import width
import torch
from torch import nn


class Task:
    unit = "tokens"
    steps = 5

    def __init__(self, seed, batch_size=3):
        self.seed, self.rows = seed, batch_size

    def model(self):
        return nn.Linear(width, width)

    def batch(self, step):
        return [torch.full((self.rows, width), float(self.seed + step))]

    def loss(self, model, batch):
        return model(batch[0]).square().mean()

    def validate(self, model):
        return {"loss": self.loss(model, self.batch(0)), "accuracy": 0.5}
"""

NOTED = """error = ValueError("no data")
error.__notes__ = ["a note, as Python 3.11 has them"]
raise error"""


def deva(*words: str | Path) -> int:
    return main([str(word) for word in words])


def written(folder: Path, text: str = FUNCTIONS, name: str = "my_task.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def settings_of(task: object, **changes):
    (settings,) = plan(Request((Entrant.parse("adamw"),), task=str(task)))
    return settings.changed(**changes)


def plan_place(task: object) -> str:
    return settings_of(task).task_place


def task_of(task: object, **changes):
    return make_task(settings_of(task, **changes), lambda text: None)


# --- The contract --------------------------------------------------------------------------------


def test_model_and_batches_depend_on_the_seed_and_the_step_alone(tmp_path):
    path = written(tmp_path)
    one, same, other = (task_of(path, seed=seed) for seed in (3, 3, 4))
    models = [each.model() for each in (one, same, other)]
    first, again, different = (model[0].weight for model in models)
    assert first.equal(again)
    assert not first.equal(different)
    torch.randn(9), np.random.rand(), random.random()
    assert one.batch(5)["x"].equal(same.batch(5)["x"])
    assert not one.batch(5)["x"].equal(same.batch(6)["x"])
    assert not one.batch(5)["x"].equal(other.batch(5)["x"])


def test_what_is_drawn_while_a_task_is_imported_or_made_is_the_same_every_time(tmp_path):
    text = FUNCTIONS.replace("torch.eye(5)", "torch.randn(5, 5)")
    targets = [load(str(written(tmp_path / name, text))).target for name in "ab"]
    assert targets[0].equal(targets[1])


def test_the_example_of_the_documentation_runs(tmp_path):
    page = (ROOT / "docs" / "your-model.md").read_text("utf-8")
    path = written(tmp_path, page.split("```python\n")[1].split("```")[0])
    words = ["--optimizers", "adamw", "--steps", "3", "--jobs", "1", "--out", tmp_path / "out"]
    assert deva("compare", "--task", path, *words) == 0


def test_what_the_loss_draws_is_the_same_in_a_run_that_goes_on(tmp_path):
    text = "import random\nimport numpy as np\n" + FUNCTIONS.replace(
        "    return (model(",
        "    noise = np.random.rand() + random.random()\n    return noise * (model(",
    )
    settings = settings_of(written(tmp_path, text), evaluate_every=1)
    orders = {name: Orders(tmp_path / name, "deva train") for name in ("whole", "cut")}
    quiet = {"watch": lambda event: None}
    whole = run_one(settings, orders["whole"], stopping=lambda: False, **quiet)
    asked = iter([False, False, True])
    stopped = run_one(settings, orders["cut"], stopping=lambda: next(asked), **quiet)
    assert (stopped["status"], stopped["step"]) == ("stopped", 3)
    end = run_one(settings, orders["cut"], stopping=lambda: False, **quiet)
    assert end["curve"]["train_loss"] == whole["curve"]["train_loss"]
    assert len(set(whole["curve"]["train_loss"][1:])) == 6


def test_an_accuracy_that_is_no_number_spoils_no_result(tmp_path):
    text = CLASS.replace("from beside import width", "width = 3").replace("0.5", "float('nan')")
    words = ["--optimizers", "adamw", "--jobs", "1", "--out", tmp_path / "out"]
    assert deva("compare", "--task", written(tmp_path, text), *words) == 0
    (result,) = read_results(tmp_path / "out" / "results.jsonl")
    assert set(result["curve"]["accuracy"]) == {None}


def test_what_a_task_does_leaves_the_random_numbers_of_the_training_alone(tmp_path):
    task = task_of(written(tmp_path))
    model = task.model()
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    task.batch(0)
    task.validate(model)
    assert torch.get_rng_state().equal(states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    assert model.training
    assert all(module.training for module in model.modules())


def test_steps_batch_and_units_are_those_of_the_task_unless_given(tmp_path):
    path = written(tmp_path)
    settings = settings_of(path)
    assert (settings.steps, settings.batch) == (6, 4)
    assert task_of(path).units == 4
    assert task_of(path).unit == "samples"
    request = Request((Entrant.parse("adamw"),), task=str(path), steps=9, batch=2)
    (settings,) = plan(request)
    assert (settings.steps, settings.batch) == (9, 2)
    assert len(make_task(settings, lambda text: None).batch(0)["x"]) == 2


def test_a_class_is_made_for_each_run_and_imports_what_lies_beside_it(tmp_path):
    written(tmp_path, "width = 6", "beside.py")
    path = written(tmp_path, CLASS)
    settings = settings_of(path)
    assert (settings.steps, settings.batch) == (5, 3)
    task = task_of(path, seed=2)
    assert task.batch(1)[0].equal(torch.full((3, 6), 3.0))
    assert (task.unit, task.units) == ("tokens", 18)  # all elements
    found = task.validate(task.model())
    assert set(found) == {"loss", "accuracy"}


def test_tasks_of_several_folders_import_each_what_lies_beside_it(tmp_path):
    paths = []
    for width in (4, 7):
        folder = tmp_path / f"width {width}"
        written(folder, f"width = {width}", "beside.py")
        paths.append(written(folder, CLASS))
    widths = [task_of(path).model().in_features for path in (*paths, paths[0])]
    assert widths == [4, 7, 4]


def test_what_a_file_defines_can_be_imported_by_processes_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    place = plan_place(written(tmp_path, FUNCTIONS + "\nclass Data: pass\n", "own_task.py"))
    pickled = pickle.dumps(load(place).Data())
    code = f"import pickle; print(type(pickle.loads({pickled!r})).__name__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environment, text=True).strip() == "Data"
    taken = load(plan_place(written(tmp_path, FUNCTIONS, "json.py")))
    assert taken.__name__ != "json"
    assert sys.modules["json"] is json


def test_a_file_in_another_encoding(tmp_path):
    path = tmp_path / "my_task.py"
    path.write_bytes("# coding: latin-1\nname = 'é'\n".encode("latin-1") + FUNCTIONS.encode())
    assert load(plan_place(path)).name == "é"


def test_a_task_in_a_module(tmp_path, monkeypatch):
    written(tmp_path / "kit", "", "__init__.py")
    text = CLASS.replace("from beside import width", "width = 3").replace("Task", "Mine")
    written(tmp_path / "kit", text, "tasks.py")
    monkeypatch.chdir(tmp_path)
    settings = settings_of("kit.tasks:Mine")
    assert settings.task == "kit.tasks:Mine"
    assert task_of("kit.tasks:Mine").batch(0)[0].shape == (3, 3)
    with pytest.raises(UsageError, match="no module kit.others"):
        settings_of("kit.others:Mine")
    with pytest.raises(UsageError, match="no Other in kit.tasks"):
        settings_of("kit.tasks:Other")


def test_different_tasks_are_different_runs_wherever_they_lie(tmp_path):
    here, there = written(tmp_path / "a"), written(tmp_path / "b")
    assert settings_of(here).id == settings_of(there).id  # the same text under the same name
    written(tmp_path / "b", FUNCTIONS.replace("0.5", "0.25"))
    assert settings_of(here).id != settings_of(there).id
    assert "task_place" not in settings_of(here).saved()


def test_batches_are_moved_whatever_holds_them():
    batch = {"x": torch.zeros(2), "more": [(torch.ones(1), "name"), None]}
    moved = to_device(batch, nn.Linear(1, 1, device="meta"))
    assert moved["x"].is_meta
    assert moved["more"][0][0].is_meta
    assert moved["more"][0][1] == "name"


def test_an_optimizer_with_many_settings_has_a_name_that_files_can_have(tmp_path):
    run = settings_of(written(tmp_path))
    names = {run.changed(optimizer=f"deva:{'betas=0.9,' * 30}{i}").id for i in range(2)}
    assert len(names) == 2
    for name in names:
        (tmp_path / f"{name}.jsonl").touch()


# --- What is wrong is said at once ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("def validate", "def evaluate"), "has no function validate(model), which returns"),
        (("import torch\n", "import torhc\n"), "No module named 'torhc' (line 2)"),
        (("steps = 6", "steps = 6 +"), "SyntaxError: invalid syntax (line 5)"),
        (("steps = 6", "raise SystemExit(3)"), "cannot be imported: SystemExit: 3 (line 5)"),
        (("steps = 6", NOTED), "cannot be imported: ValueError: no data (line 7)"),
        (("steps = 6", "import deva_lab; deva_lab.compare(__file__)"), "under `if __name__ =="),
        (("import torch\n", "# coding: none\n"), "cannot be read as Python: unknown encoding"),
        (("def model():", "model = nn.Linear(5, 5)\n\ndef other():"), "every run needs a new one"),
        (("steps = 6", "steps = 0"), "--steps must be at least 1"),
        (("steps = 6", "steps = 12 / 5"), "--steps must be a whole number, at least 1, got 2.4"),
    ],
)
def test_a_task_that_cannot_be_used(tmp_path, monkeypatch, capsys, change, said):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, FUNCTIONS.replace(*change))
    assert deva("compare", "--task", path) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "none.py"], "there is no task at none.py: `deva init-task` writes"),
        (["--task", "my_task.py", "--data", "x"], "--data is for tasks of the laboratory"),
        (["--task", "my_task.py", "--size", "tiny"], "--size is for tasks of the laboratory"),
        (["--task", "whole.py", "--batch", "3"], "--batch 3: whole.py does not ask for it"),
        (["--task", "odd.py"], "odd.py asks for 'path', and is given seed and batch_size alone"),
        (["--task", "my_task"], "a task of your own is a file"),
        (["--task", "math:Task"], "there is no module math that can be imported from here"),
        (["--task", "__main__:Task"], "__main__"),
    ],
)
def test_a_request_that_does_not_fit(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    whole = FUNCTIONS.replace("batch_size = 4", "").replace(", batch_size)", ")")
    written(tmp_path, whole.replace("batch_size", "4"), "whole.py")
    text = CLASS.replace("seed, batch_size=3", "seed, path").replace("from beside", "# ")
    written(tmp_path, text, "odd.py")
    assert deva("compare", *words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ({"model": lambda: "net"}, "model of SimpleNamespace must return a torch.nn.Module"),
        ({"loss": lambda model, batch: 1.0}, "loss of SimpleNamespace must return a tensor"),
        ({"validate": lambda model: None}, "validate of SimpleNamespace must return a number"),
    ],
)
def test_what_a_function_returns_is_checked(function, said):
    functions = {
        "model": lambda: nn.Linear(1, 1),
        "batch": lambda step: torch.zeros(1, 1),
        "loss": lambda model, batch: model(batch).sum(),
        "validate": lambda model: 1.0,
    }
    task = task_of(of_object(SimpleNamespace(**{**functions, **function})))
    with pytest.raises(TypeError, match=said):
        task.loss(task.model(), task.batch(0)) and task.validate(task.model())


# --- Commands ------------------------------------------------------------------------------------


def curves(folder: Path) -> dict[str, list[float]]:
    return {x["id"]: x["curve"]["loss"] for x in read_results(folder / "results.jsonl")}


def test_resume_finds_the_task_again_and_says_if_it_has_changed(tmp_path, monkeypatch, capsys):
    path, out = written(tmp_path / "here"), tmp_path / "out"
    monkeypatch.chdir(path.parent)
    words = ["--optimizers", "adamw", "--jobs", "1"]
    assert deva("compare", "--task", "my_task.py", *words, "--out", out) == 0
    assert (out / "my_task.py").read_text() == FUNCTIONS
    assert json.loads((out / "options.json").read_text())["task"] == str(path.resolve())
    monkeypatch.chdir(tmp_path)
    assert deva("compare", "--resume", out, "--seeds", "2", "--jobs", "1") == 0
    assert "has changed" not in capsys.readouterr().out
    path.write_text(FUNCTIONS + "# another line\n")
    assert deva("compare", "--resume", out, "--seeds", "3", "--jobs", "1") == 0
    said = capsys.readouterr().out
    assert "my_task.py has changed since this comparison was begun" in said
    assert "2 runs are done already, 1 to go" in said
    path.unlink()
    assert deva("compare", "--resume", out) == 2
    assert "the folder of a comparison has a copy" in capsys.readouterr().err
    assert deva("compare", "--resume", out, "--task", out / "my_task.py") == 0
    assert len(curves(out)) == 3


def test_train_takes_a_task_too_and_counts_its_units(tmp_path):
    path, out = written(tmp_path), tmp_path / "out"
    assert deva("train", "--task", path, "--tokens", "32", "--out", out) == 0
    (result,) = read_results(out / "results.jsonl")
    assert (result["step"], result["unit"], result["units"]) == (8, "samples", 4)


def test_a_step_is_measured_on_the_matrices_of_a_task(tmp_path, capsys):
    path = written(tmp_path)
    quick = ["--rounds", "2", "--steps", "1", "--refresh-every", "1", "--warmup", "1"]
    words = ["--only", "muon", "--no-profile", "--peak-size", "16", "--out", tmp_path / "step"]
    assert deva("bench", "step", "--task", path, *quick, *words) == 0
    (found,) = json.loads((tmp_path / "step.json").read_text())["sets"]
    assert "my_task.py" in capsys.readouterr().out
    assert found["name"] == "my_task.py"
    assert sorted(map(tuple, found["shapes"])) == [(7, 5)]  # the last layer is the head


# --- Failures ------------------------------------------------------------------------------------


def failing(folder: Path, how: str) -> Path:
    """A task that fails in the fourth batch of seed 1 as long as there is a file `fail`."""
    (folder / "fail").touch()
    batch = "def batch(step, batch_size, seed):\n    import os\n"
    fault = f"    if step == 3 and seed == 1 and os.path.exists({str(folder / 'fail')!r}):\n"
    text = FUNCTIONS.replace("def batch(step, batch_size):\n", f"{batch}{fault}        {how}\n")
    return written(folder, text)


@pytest.mark.parametrize(
    ("how", "error", "jobs"),
    [
        ("raise ValueError('no such column\\nat all')", "ValueError: no such column\nat all", "2"),
        ("raise torch.OutOfMemoryError('full')", "torch.OutOfMemoryError: full", "1"),
        ("raise SystemExit(3)", "SystemExit: 3", "1"),
    ],
)
def test_a_run_that_fails_is_a_row_and_the_others_go_on(tmp_path, capsys, how, error, jobs):
    path, out = failing(tmp_path, how), tmp_path / "out"
    words = ["--task", path, "--optimizers", "adamw,lion", "--seeds", "3", "--save-every", "0"]
    assert deva("compare", *words, "--jobs", jobs, "--out", out) == 1
    said = capsys.readouterr().out
    assert f"adamw at lr 0.005, seed 1, failed after step 3: {error.splitlines()[0]}" in said
    assert f"To try again: deva compare --resume {out}" in said
    results = {x["id"]: x for x in read_results(out / "results.jsonl")}
    failed = [x for x in results.values() if x["status"] == "failed"]
    assert [x["settings"]["seed"] for x in failed] == [1, 1]
    assert {x["error"] for x in failed} == {error}
    assert failed[0]["curve"]["step"] == [0, 1, 2, 3]
    assert len(results) == 6
    for result in failed:
        trace = (out / "runs" / result["id"] / "error.txt").read_text()
        assert "my_task.py" in trace
        assert trace.strip().endswith(error)
    mend_and_resume(out, words)
    assert not list((out / "runs").iterdir())
    assert "my_task.py" in (out / "report.html").read_text()


def mend_and_resume(out: Path, words: list[str | Path]) -> None:
    """The user mends the task, and the comparison ends as one that has never failed, to the bit."""
    (out.parent / "fail").unlink()
    assert deva("compare", "--resume", out, "--jobs", "1") == 0
    again = read_results(out / "results.jsonl")
    assert {x["status"] for x in again} == {"finished"}
    whole = out.with_name("whole")
    assert deva("compare", *words, "--jobs", "1", "--out", whole) == 0
    assert curves(out) == curves(whole)


@pytest.mark.slow
@needs_posix
def test_a_run_whose_process_is_killed_is_a_row_and_the_others_go_on(tmp_path, capsys):
    path, out = failing(tmp_path, "os.kill(os.getpid(), 9)"), tmp_path / "out"
    words = ["--task", path, "--optimizers", "adamw", "--seeds", "4", "--save-every", "0"]
    assert deva("compare", *words, "--jobs", "2", "--out", out) == 1
    assert "ChildProcessError: the process of the run ended by signal 9" in capsys.readouterr().out
    by_seed = {x["settings"]["seed"]: x["status"] for x in read_results(out / "results.jsonl")}
    assert by_seed == {0: "finished", 1: "failed", 2: "finished", 3: "finished"}
    assert saved(out)  # from which it goes on
    mend_and_resume(out, words)


def test_every_run_may_fail(tmp_path, capsys):
    path = written(tmp_path, FUNCTIONS.replace("def model():", "def model():\n    1 / 0\n"))
    assert deva("compare", "--task", path, "--jobs", "1", "--out", tmp_path / "out") == 1
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").is_file()
    assert deva("train", "--task", path, "--out", tmp_path / "one") == 1
    assert "failed after step 0: ZeroDivisionError" in capsys.readouterr().out
