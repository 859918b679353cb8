"""Runs in TensorBoard, Weights & Biases and MLflow: what they have is what results.jsonl has."""

import gc
import json
import os
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from deva_lab.cli import main
from deva_lab.loggers import Log, files_of, name_of, names_of, records
from deva_lab.results import read_results
from deva_lab.run import checkpoint
from deva_lab.run.entrants import Entrant
from deva_lab.run.plan import Request, plan
from deva_lab.run.progress import Event
from deva_lab.run.runner import Orders, run_one
from deva_lab.run.settings import LOGGERS
from helpers import needs_posix

pytestmark = pytest.mark.filterwarnings("ignore:::mlflow", "ignore:::sqlalchemy", "ignore:::wandb")

QUICK = ["--task", "mlp", "--size", "tiny", "--steps", "12", "--batch", "16"]
QUICK += ["--evaluate-every", "4"]
ALL = ",".join(LOGGERS)


@pytest.fixture(autouse=True)
def trackers(tmp_path, monkeypatch) -> None:
    """Trackers that need no network, and nobody who has logged in."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)


def deva(*words: str | Path) -> int:
    return main([str(word) for word in words])


def needs(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module, reason=f"the extra with {module} is not installed")


# --- Reading back --------------------------------------------------------------------------------


@dataclass
class WandBRun:
    """A run of W&B in all of its lives."""

    group: str = ""
    name: str = ""
    lives: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exits: list[int] = field(default_factory=list)

    def take(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.group, self.name = record.run.run_group, record.run.display_name
            self.config |= items(record.run.config.update)
        elif kind == "history":
            self.history.append(items(record.history.item))
        elif kind == "summary":
            self.summary |= items(record.summary.update)
        elif kind == "exit":
            self.exits.append(record.exit.exit_code)

    def column(self, name: str) -> dict[int, float]:
        return {row["_step"]: row[name] for row in self.history if name in row}


def items(found: Any) -> dict[str, Any]:
    return {name_of(item): json.loads(item.value_json) for item in found}


def wandb_runs(folder: Path) -> dict[str, WandBRun]:
    """The runs of a folder by name, each under one id."""
    runs: dict[str, WandBRun] = {}
    for path in files_of(folder):
        run = runs.setdefault(path.stem, WandBRun())
        run.lives += 1
        for record in records(path):
            run.take(record)
    found = {run.name: run for run in runs.values()}
    assert len(found) == len(runs), "a run has two ids"
    return found


def board_of(folder: Path, run: str):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard" / run), size_guidance={"tensors": 0})
    return events.Reload()


def board_column(events, name: str) -> dict[int, float]:
    scalars = events.Scalars(name)
    assert len({x.step for x in scalars}) == len(scalars), "a step is there twice"
    return {x.step: x.value for x in scalars}


def board_text(events, name: str):
    (tensor,) = events.Tensors(f"{name}/text_summary")
    return json.loads(tensor.tensor_proto.string_val[0])


def mlflow_runs(name: str):
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("deva")
    runs = client.search_runs([experiment.experiment_id])
    return client, [run for run in runs if run.info.run_name == name]


def mlflow_column(client, run, name: str) -> dict[int, float]:
    history = client.get_metric_history(run.info.run_id, name)
    assert len({x.step for x in history}) == len(history), "a step is there twice"
    return {x.step: x.value for x in history}


COLUMNS = {
    "loss/validation": "loss",
    "loss/training": "train_loss",
    "accuracy/validation": "accuracy",
    "images": "units",
    "seconds": "seconds",
}


def column_of(result, name: str) -> dict[int, float]:
    curve = result["curve"]
    pairs = zip(curve["step"], curve[COLUMNS[name]], strict=True)
    return {step: value for step, value in pairs if value is not None}


def telemetry_of(result) -> dict[int, dict[str, float]]:
    """The telemetry that a result has kept, by step and by the names that loggers give it."""
    return {
        record["step"]: {
            f"telemetry/{key}/{name}": value
            for name, row in record["matrices"].items()
            for key, value in row.items()
        }
        for record in result.get("telemetry", [])
    }


def check_wandb(folder: Path, result, *, lives: int = 1, telemetry: bool = True) -> None:
    run = wandb_runs(folder)[result["id"]]
    assert (run.group, run.lives) == (folder.name, lives)
    assert [row["_step"] for row in run.history] == result["curve"]["step"]  # each once
    for name in COLUMNS:
        assert column_of(result, name).items() <= run.column(name).items()
    for name, value in json.loads(json.dumps(result["settings"])).items():
        assert run.config[name] == value
    assert run.config["environment"] == result["environment"]
    assert run.config["command"] == result["command"]
    assert run.summary["result/status"] == "finished"
    assert run.summary["result/loss"] == result["curve"]["loss"][-1]
    assert run.summary["result/state_bytes"] == result["state_bytes"]
    last = {f"milliseconds/{k}": x for k, x in result["milliseconds"].items()}
    assert last.items() <= run.history[-1].items()
    assert any(key.startswith("telemetry/") for key in run.history[-1]) is telemetry
    for step, values in telemetry_of(result).items():
        assert {k: x for k, x in values.items() if run.column(k)[step] != x} == {}
    assert run.exits[-1] == 0


def check_mlflow(folder: Path, result, *, telemetry: bool = True) -> None:
    client, (run,) = mlflow_runs(result["id"])
    assert run.data.tags["comparison"] == folder.name
    for name in COLUMNS:
        found = mlflow_column(client, run, name)
        assert column_of(result, name).items() <= found.items()
        assert found.keys() <= set(result["curve"]["step"])
    settings = {k: x for k, x in result["settings"].items() if k != "telemetry"}
    assert settings.keys() == run.data.params.keys() - {"telemetry"}
    assert all(run.data.params[k] == str(x) for k, x in settings.items())
    assert run.data.tags["environment.torch"] == result["environment"]["torch"]
    assert run.data.tags["result/status"] == "finished"
    assert run.data.metrics["result/loss"] == result["curve"]["loss"][-1]
    assert any(key.startswith("telemetry/") for key in run.data.metrics) is telemetry
    for step, values in telemetry_of(result).items():
        for name, value in values.items():
            assert mlflow_column(client, run, name)[step] == value
    assert run.info.status == "FINISHED"


def check_board(folder: Path, result, *, telemetry: bool = True) -> None:
    events = board_of(folder, result["id"])
    for name in COLUMNS:
        wanted, found = column_of(result, name), board_column(events, name)
        assert found.keys() <= set(result["curve"]["step"])
        assert {x: found[x] for x in wanted} == pytest.approx(wanted, rel=1e-6)  # float32 there
    assert board_text(events, "settings") == json.loads(json.dumps(result["settings"]))
    assert board_text(events, "environment") == result["environment"]
    assert board_text(events, "result")["result/loss"] == result["curve"]["loss"][-1]
    tags = events.Tags()["scalars"]
    assert any(tag.startswith("telemetry/") for tag in tags) is telemetry


def check_all(folder: Path, result, *, lives: int = 1) -> None:
    check_wandb(folder, result, lives=lives)
    check_mlflow(folder, result)
    check_board(folder, result)


# --- Tests ---------------------------------------------------------------------------------------


def test_every_logger_has_what_the_results_have(tmp_path):
    needs(*LOGGERS)
    out = tmp_path / "out"
    words = [*QUICK, "--optimizers", "deva:lr=0.01,rest_lr=0.002,torch-adamw", "--jobs", "1"]
    assert deva("compare", *words, "--warmup", "0.5", "--log", ALL, "--out", out) == 0
    ours, torchs = read_results(out / "results.jsonl")
    check_all(out, ours)
    for check in (check_wandb, check_mlflow, check_board):
        check(out, torchs, telemetry=False)  # which PyTorch's has none of
    rates = {4: 0.01 * 4 / 6, 8: 0.01, 12: 0.01 * 1 / 4.8}
    run = wandb_runs(out)[ours["id"]]
    assert run.column("rate/base") == pytest.approx(rates)
    rest = run.column("rate/vector.1")
    assert rest == pytest.approx({step: 0.2 * rate for step, rate in rates.items()})


def test_logging_changes_no_bit_of_a_run(tmp_path):
    needs("tensorboard")
    for name, log in (("plain", []), ("logged", ["--log", "tensorboard"])):
        assert deva("train", *QUICK, *log, "--out", tmp_path / name) == 0
    (plain,), (logged,) = (
        read_results(tmp_path / name / "results.jsonl") for name in ("plain", "logged")
    )
    assert plain["id"] == logged["id"]
    assert plain["curve"]["loss"] == logged["curve"]["loss"]
    assert plain["curve"]["train_loss"] == logged["curve"]["train_loss"]


@pytest.mark.slow
def test_runs_side_by_side_give_the_same_numbers_and_log_them(tmp_path):
    needs("wandb")
    words = [*QUICK, "--optimizers", "deva,muon"]
    assert deva("compare", *words, "--jobs", "1", "--out", tmp_path / "1") == 0
    assert deva("compare", *words, "--jobs", "2", "--log", "wandb", "--out", tmp_path / "2") == 0
    one, two = (read_results(tmp_path / jobs / "results.jsonl") for jobs in ("1", "2"))
    losses = [{x["id"]: x["curve"]["loss"] for x in results} for results in (one, two)]
    assert losses[0] == losses[1]
    assert {result["label"] for result in two} == {"deva", "muon"}
    for result in two:  # each from a process of its own
        check_wandb(tmp_path / "2", result)


def test_a_local_database_is_the_store_where_none_is_named(tmp_path, monkeypatch):
    needs("mlflow", "sqlalchemy", "alembic")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    out = tmp_path / "out"
    assert deva("train", *QUICK, "--log", "mlflow", "--out", out) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{(out / 'mlflow.db').as_posix()}")
    (result,) = read_results(out / "results.jsonl")
    check_mlflow(out, result)


def quiet(event: Event) -> None:
    """A watch that says nothing."""


def settings_in(folder: Path):
    request = Request((Entrant("deva"),), "mlp", "tiny", steps=12, batch=16, evaluate_every=4)
    (settings,) = plan(request)
    return settings.changed(telemetry=(4, 12)), Orders(folder, "deva train", log=LOGGERS)


@pytest.mark.parametrize("cut", [2, 4, 9])  # before, at and after an evaluation
def test_a_stopped_run_goes_on_in_the_same_runs(tmp_path, cut):
    needs(*LOGGERS)
    out = tmp_path / "out"
    settings, orders = settings_in(out)
    steps: list[int] = []

    def stopping() -> bool:
        steps.append(1)
        return len(steps) == cut

    stopped = run_one(settings, orders, watch=quiet, stopping=stopping)
    assert (stopped["status"], stopped["step"]) == ("stopped", cut)
    _, (run,) = mlflow_runs(settings.id)
    assert run.info.status == "KILLED"
    assert wandb_runs(out)[settings.id].exits == [1]
    result = run_one(settings, orders, watch=quiet, stopping=lambda: False)
    check_all(out, result, lives=2)
    assert wandb_runs(out)[settings.id].exits == [1, 0]


def test_a_run_that_goes_back_logs_no_step_twice(tmp_path):
    """Its newest checkpoint is lost, and it takes steps again that have been logged."""
    needs(*LOGGERS)
    out = tmp_path / "out"
    settings, orders = settings_in(out)
    steps = iter(range(1, 13))
    orders = replace(orders, save_every=0)
    run_one(settings, orders, watch=quiet, stopping=lambda: next(steps) == 8)
    newest, before = checkpoint.found(out / "runs" / settings.id)
    assert (newest.name, before.name) == ("checkpoint-8.pt", "checkpoint-7.pt")
    newest.unlink()
    result = run_one(settings, orders, watch=quiet, stopping=lambda: False)
    check_all(out, {**result, "curve": without_seconds(result, 8)}, lives=2)


def without_seconds(result, step: int):
    """The curve without the time of a step that has been taken twice."""
    curve = dict(result["curve"])
    seconds = zip(curve["step"], curve["seconds"], strict=True)
    curve["seconds"] = [None if at == step else value for at, value in seconds]
    return curve


KILLED = """
import os, signal, sys
from deva_lab.run import checkpoint
from deva_lab.cli import main
save = checkpoint.save
def killed(folder, run):
    if run.progress.step == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    save(folder, run)
checkpoint.save = killed
main(sys.argv[1:])
"""


@needs_posix
@pytest.mark.slow
def test_a_killed_run_leaves_no_gap_and_no_step_twice(tmp_path):
    needs("tensorboard", "wandb")
    out = tmp_path / "out"
    words = ["train", *QUICK, "--save-every", "0", "--log", "tensorboard,wandb"]
    words += ["--out", str(out)]
    ended = subprocess.run([sys.executable, "-c", KILLED, *words], check=False, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    assert deva("train", "--resume", out) == 0  # which logs as the command did
    (result,) = read_results(out / "results.jsonl")
    wanted = column_of(result, "loss/validation")
    run = wandb_runs(out)[result["id"]]
    assert run.lives == 2
    assert sorted(row["_step"] for row in run.history) == [0, 4, 8, 12]
    assert run.column("loss/validation") == wanted
    written = board_column(board_of(out, result["id"]), "loss/validation")
    assert written == pytest.approx(wanted, rel=1e-6)


def test_a_logger_that_comes_later_gets_the_curve_from_the_start(tmp_path):
    needs("tensorboard", "mlflow")
    out = tmp_path / "out"
    settings = settings_in(out)[0].changed(telemetry=(12,))  # that of before is gone
    steps = iter(range(1, 13))
    plain = Orders(out, "deva train")
    run_one(settings, plain, watch=quiet, stopping=lambda: next(steps) == 9)
    orders = Orders(out, "deva train", log=("tensorboard", "mlflow"))
    result = run_one(settings, orders, watch=quiet, stopping=lambda: False)
    check_board(out, result)
    check_mlflow(out, result)


def test_a_tracker_that_fails_ends_no_training(tmp_path, capsys):
    needs("tensorboard", "mlflow")
    out = tmp_path / "out"
    settings, orders = settings_in(out)
    orders = Orders(out, "deva train", log=("tensorboard", "mlflow"))

    def lose_the_store(event: Event) -> None:
        if event.step == 5:
            (tmp_path / "mlruns").rename(tmp_path / "gone")

    result = run_one(settings, orders, watch=lose_the_store, stopping=lambda: False)
    assert result["status"] == "finished"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("deva: mlflow has failed, and the run goes on without it: ")
    check_board(out, result)


@needs_posix
def test_a_lost_service_of_wandb_ends_no_training(tmp_path, capsys):
    needs("wandb")
    if not Path("/proc").is_dir():
        pytest.skip("children are looked for in /proc")
    out = tmp_path / "out"
    settings, _ = settings_in(out)

    def kill_the_service(event: Event) -> None:
        if event.step == 5:
            (service,) = services()
            os.kill(service, signal.SIGKILL)

    orders = Orders(out, "deva train", log=("wandb",))
    tear_down()  # one that other tests have left
    result = run_one(settings, orders, watch=kill_the_service, stopping=lambda: False)
    assert result["status"] == "finished"
    assert "wandb has failed, and the run goes on without it" in capsys.readouterr().err
    tear_down()
    again = run_one(settings.changed(seed=1), orders, watch=quiet, stopping=lambda: False)
    check_wandb(out, again)  # with a new one


def tear_down() -> None:
    """End the service of W&B, or what is left of it."""
    import wandb

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody waits for the process
        with suppress(OSError):
            wandb.teardown()
        gc.collect()


def services() -> list[int]:
    """The processes of W&B that this one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = path.read_text().partition(" ")
        except OSError:
            continue
        name, _, state = rest.rpartition(")")
        if name.startswith("(wandb-core") and int(state.split()[1]) == os.getpid():
            found.append(int(number))
    return found


def test_who_has_not_logged_in_is_told_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    needs("wandb")
    tear_down()  # what was set up without a network
    monkeypatch.setenv("WANDB_MODE", "online")
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert deva("train", *QUICK, "--log", "wandb", "--out", tmp_path / "out") == 2
    tear_down()  # what would go on asking for a login in other tests
    assert "WANDB_MODE=offline" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_store_that_cannot_be_reached_is_told_of_before_anything_is_trained(
    tmp_path, monkeypatch, capsys
):
    needs("mlflow", "sqlalchemy", "alembic")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "file" / "mlruns").as_uri())
    assert deva("train", *QUICK, "--log", "mlflow", "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err.startswith("deva: --log mlflow: ")
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_closed_as_failed(tmp_path):
    needs("mlflow")
    out = tmp_path / "out"
    settings, _ = settings_in(out)

    def fail(event: Event) -> None:
        raise RuntimeError("the disk is full")

    orders = Orders(out, "deva train", log=("mlflow",))
    with pytest.raises(RuntimeError, match="the disk is full"):
        run_one(settings, orders, watch=fail, stopping=lambda: False)
    _, (run,) = mlflow_runs(settings.id)
    assert run.info.status == "FAILED"


def test_tensorboard_is_a_short_form_and_is_remembered(tmp_path):
    needs("tensorboard")
    assert deva("train", *QUICK, "--tensorboard", "--out", tmp_path / "out") == 0
    given = json.loads((tmp_path / "out" / "options.json").read_text())
    assert given["log"] == "tensorboard"


def test_names_of_loggers():
    assert names_of("wandb, mlflow,wandb") == ("wandb", "mlflow")
    assert names_of(None) == names_of("none") == ()
    assert not Log(()).wanted
    assert Log(("wandb",), logs=False).wanted  # telemetry is the work of all ranks
