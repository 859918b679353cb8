"""The command as people type it: what it leaves, what it says, how it ends."""

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import deva_optim
from deva_lab import launchers
from deva_lab.cli import main
from deva_lab.commands.report import merged
from deva_lab.files import append_line
from deva_lab.results import read_results
from deva_lab.run import checkpoint
from deva_lab.run.settings import TUNED
from helpers import needs_posix

QUICK = ["--task", "mlp", "--size", "tiny", "--steps", "12", "--batch", "16"]


def deva(*words: str | Path) -> int:
    return main([str(word) for word in words])


def test_compare_leaves_results_curves_and_a_page(tmp_path, capsys):
    out = tmp_path / "out"
    code = deva("compare", *QUICK, "--jobs", "1", "--lr", "x0.5,x1", "--seeds", "2", "--out", out)
    said = capsys.readouterr().out
    assert code == 0
    assert {"results.jsonl", "curves.png", "curves.svg", "report.html"} <= set(os.listdir(out))
    results = read_results(out / "results.jsonl")
    assert len(results) == 4 * 2 * 2
    assert {result["label"] for result in results} == set(TUNED)
    assert len({result["curve"]["loss"][0] for result in results}) == 2  # a start for each seed
    assert str(out / "report.html") in said
    assert "images and time to it are in per cent" in said  # not tokens
    assert not list((out / "runs").iterdir())  # what has ended needs no checkpoint
    assert "deva compare --task mlp" in (out / "report.html").read_text()


def test_resume_does_what_is_missing_and_more_on_request(tmp_path, capsys):
    out = tmp_path / "out"
    assert deva("compare", *QUICK, "--optimizers", "deva,muon", "--jobs", "1", "--out", out) == 0
    path = out / "results.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n" + second[:50])  # the second run was cut off
    assert deva("compare", "--resume", out, "--seeds", "2", "--jobs", "1") == 0
    assert "1 runs are done already, 3 to go" in capsys.readouterr().out
    results = read_results(path)
    assert {(r["label"], r["settings"]["seed"]) for r in results} == {
        (label, seed) for label in ("deva", "muon") for seed in (0, 1)
    }
    again = next(r for r in results if r["id"] == json.loads(second)["id"])
    assert again["curve"]["loss"] == json.loads(second)["curve"]["loss"]


@pytest.mark.filterwarnings("ignore:.*not finite")
def test_a_run_that_diverges_is_reported_and_the_others_go_on(tmp_path, capsys):
    out = tmp_path / "out"
    entrants = "signum:weight_decay=0,lr=1e30,adamw"
    assert deva("compare", *QUICK, "--optimizers", entrants, "--jobs", "1", "--out", out) == 0
    assert "diverged" in capsys.readouterr().out
    status = {result["label"]: result["status"] for result in read_results(out / "results.jsonl")}
    assert status == {"signum:weight_decay=0": "diverged", "adamw": "finished"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--optimizers", "muno"], "did you mean 'muon'"),
        (["compare", "--task", "gtp"], "did you mean 'gpt'"),
        (["compare", "--data", "no/such/file.txt"], "no/such/file.txt"),
        (["compare", "--lr", "fast"], "--lr"),
        (["compare", "--seeds", "0"], "--seeds"),
        (["compare", "--baseline", "lion"], "--baseline lion"),
        (["compare", "--device", "cuda:7"], "--device cuda:7"),
        (["compare", "--resume", "nowhere"], "nowhere"),
        (["compare", "--vocabulary", "12"], "--vocabulary"),
        (["compare", "--jobs", "0"], "--jobs"),
        (["compare", "--log", "wanb"], "unknown logger 'wanb', did you mean 'wandb'"),
        (["train", "--config", "no.json"], "--config no.json cannot be read"),
        (["train", "--lr", "0.1,0.2"], "deva compare takes several"),
        (["train", "--seed", "-1"], "--seed"),
        (["train", "--parallel", "ddp", "--out", "here"], "torchrun --nproc-per-node 2"),
        (["report", "nowhere"], "results.jsonl"),
        (["methods", "adamx"], "did you mean 'adamw'"),
    ],
)
def test_errors_come_before_anything_is_trained(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert deva(*words) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert not list(tmp_path.iterdir())


def test_a_second_comparison_does_not_overwrite_the_first(tmp_path, capsys):
    arguments = ["compare", *QUICK, "--optimizers", "adamw", "--jobs", "1", "--out", tmp_path]
    assert deva(*arguments) == 0
    assert deva(*arguments) == 2
    assert "--resume" in capsys.readouterr().err


def test_report_merges_folders_and_refuses_what_does_not_compare(tmp_path, capsys):
    for name in ("deva", "muon"):
        deva("compare", *QUICK, "--optimizers", name, "--jobs", "1", "--out", tmp_path / name)
    capsys.readouterr()
    both = [tmp_path / "deva", tmp_path / "muon"]
    assert deva("report", *both, "--out", tmp_path / "both", "--markdown") == 0
    table = capsys.readouterr().out
    assert "| deva |" in table
    assert "| muon |" in table
    assert (tmp_path / "both" / "report.html").exists()
    deva("compare", "--resume", tmp_path / "deva", "--telemetry", "4", "--jobs", "1")
    capsys.readouterr()
    assert deva("report", tmp_path / "deva", "--markdown") == 0
    assert capsys.readouterr().out.count("| deva |") == 1
    assert len(merged([tmp_path / "deva"])) == 1  # the run with telemetry is no other seed
    longer = [*QUICK, "--optimizers", "soap", "--steps", "13", "--jobs", "1"]
    deva("compare", *longer, "--out", tmp_path / "soap")
    assert deva("report", *both, tmp_path / "soap") == 2
    assert "differ in steps (12, 13)" in capsys.readouterr().err


def test_report_of_a_file_and_of_a_run_that_failed_in_another_folder(tmp_path, capsys):
    out, other = tmp_path / "my runs", tmp_path / "other"
    deva("compare", *QUICK, "--optimizers", "adamw", "--jobs", "1", "--out", out)
    page = out / "report.html"
    page.unlink()
    assert deva("report", out / "results.jsonl") == 0
    assert page.exists()
    (result,) = read_results(out / "results.jsonl")
    append_line(other / "results.jsonl", {**result, "status": "failed", "error": "no memory"})
    assert [x["status"] for x in merged([out, other])] == ["finished"]


def test_a_place_that_cannot_be_written_to_is_said_without_a_traceback(tmp_path, capsys):
    out, file = tmp_path / "my runs", tmp_path / "file"
    file.touch()
    words = [*QUICK, "--optimizers", "adamw", "--jobs", "1", "--out"]
    assert deva("compare", *words, file / "out") == 1
    assert deva("compare", *words, out) == 0
    capsys.readouterr()
    assert deva("report", out, "--out", file) == 2
    assert f"{file} cannot be written to" in capsys.readouterr().err
    assert deva("compare", *words, out) == 2
    assert f'--resume "{out}" goes on' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tokens", "-5"], "--tokens must be above 0 and finite, got -5"),
        (["--tokens", "nan"], "--tokens must be above 0 and finite, got nan"),
        (["--save-every", "nan"], "--save-every must be seconds, 0 or more, got nan"),
    ],
)
def test_numbers_that_make_no_sense_are_said_at_once(words, said, tmp_path, capsys):
    quick = ["--task", "quadratic", "--optimizers", "adamw", "--out", tmp_path / "out"]
    assert deva("compare", *quick, *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_left_has_the_threads_of_the_others(tmp_path, monkeypatch):
    asked, carried_out = [], launchers._results

    def noting(runs, orders, jobs, *others):
        asked.append((len(runs), jobs))
        return carried_out(runs, orders, 1, *others)

    monkeypatch.setattr(launchers, "cores", lambda: 8)
    monkeypatch.setattr(launchers, "_results", noting)
    words = ["compare", *QUICK, "--optimizers", "adamw,lion"]
    assert deva(*words, "--out", tmp_path / "runs") == 0
    assert deva("compare", "--resume", tmp_path / "runs", "--optimizers", "adamw,lion,muon") == 0
    assert asked == [(2, 2), (1, 3)]
    asked.clear()
    words = ["tune", *QUICK, "--optimizers", "adamw", "--budget", "5", "--out", tmp_path / "rates"]
    assert deva(*words) == 0
    assert asked == [(3, 3), (1, 3), (1, 3)]


def test_methods_are_those_of_the_library(capsys):
    from deva_optim import METHODS

    assert deva("methods") == 0
    names = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    assert {name for name in METHODS if name != "splus-vector"} <= names


@pytest.mark.parametrize(
    ("name", "rest"),
    [("deva", "adamw"), ("deva-sinf", "deva-linf"), ("splus", "splus-vector"), ("lion", "itself")],
)
def test_the_rest_is_what_the_optimizer_gives_it_to(name, rest, capsys):
    assert deva("methods") == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.split()[0] == name)
    assert f"  {rest}  " in line


def test_options_have_type_default_and_meaning(capsys):
    assert deva("methods", "AdamW") == 0  # as --optimizers takes it
    assert deva("methods", "shampoo-ungrafted") == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in (
        "lr=0.005 float | torch.Tensor Learning rate η, a float or a 0-D tensor.",
        "betas=0.9/0.99/0.95 tuple[float, float] | tuple[float, float, float] Decay of M",
        "graft=none adam | none",
        "refresh_every=10 int Steps between two computations of the roots.",
        "rest_lr=none float | torch.Tensor | None Learning rate of what is not a hidden matrix.",
    ):
        assert option in text


def test_the_version_is_the_library_s(capsys):
    with pytest.raises(SystemExit) as end:
        deva("--version")
    assert end.value.code == 0
    assert capsys.readouterr().out == f"deva {deva_optim.__version__}\n"


def test_tokens_are_steps_of_a_batch(tmp_path):
    arguments = ["--task", "mlp", "--size", "tiny", "--batch", "16", "--tokens", "320"]
    deva("compare", *arguments, "--optimizers", "adamw", "--jobs", "1", "--out", tmp_path)
    (result,) = read_results(tmp_path / "results.jsonl")
    assert result["settings"]["steps"] == 20
    assert result["curve"]["units"][-1] == 320


def test_tensorboard_has_the_losses(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    arguments = [*QUICK, "--optimizers", "adamw", "--jobs", "1", "--tensorboard"]
    assert deva("compare", *arguments, "--out", tmp_path) == 0
    (result,) = read_results(tmp_path / "results.jsonl")
    events = EventAccumulator(str(tmp_path / "tensorboard" / result["id"]))
    events.Reload()
    written = [event.value for event in events.Scalars("loss/validation")]
    assert written == pytest.approx(result["curve"]["loss"], rel=1e-6)  # float32 there


# --- Signals -------------------------------------------------------------------------------------


@contextmanager
def signalled(number: int, folder: Path) -> Iterator[None]:
    """Within this, a signal comes to this process as soon as a run has saved a checkpoint."""

    def send() -> None:
        while not ended.wait(0.01):
            if list(folder.glob("runs/*/checkpoint-*.pt")):
                os.kill(os.getpid(), number)
                return

    ended = threading.Event()
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


@needs_posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends(tmp_path, number, capsys):
    words = ["train", "--task", "mlp", "--size", "tiny", "--steps", "100000"]
    with signalled(number, tmp_path):
        assert deva(*words, "--save-every", "0.05", "--out", tmp_path) == 128 + number
    out = capsys.readouterr().out
    assert f"deva train --resume {tmp_path}" in out
    (run,) = (tmp_path / "runs").iterdir()
    state = checkpoint.read_file(checkpoint.found(run)[0], "cpu")
    assert state is not None
    assert f"Stopped after step {state['progress']['step']}." in out


@needs_posix
def test_a_comparison_that_is_stopped_can_go_on(tmp_path, capsys):
    words = ["compare", "--task", "quadratic", "--steps", "200000"]
    words += ["--optimizers", "adamw,muon,deva", "--jobs", "2", "--save-every", "0.05"]
    with signalled(signal.SIGTERM, tmp_path):
        assert deva(*words, "--out", tmp_path) == 128 + signal.SIGTERM
    assert f"deva compare --resume {tmp_path}" in capsys.readouterr().out
    assert list((tmp_path / "runs").iterdir())


def test_memory_stays_flat_over_a_long_run():
    """No tensor is kept from one step to the next: their number is the same late as early.

    The thread that prepares batches may be at work on some, so the least of a few counts is taken.
    """
    from deva_lab.run.entrants import Entrant
    from deva_lab.run.plan import Request, plan
    from deva_lab.run.runner import in_turn
    from deva_lab.run.tasks import make_task
    from deva_lab.run.training import Run

    (settings,) = plan(Request((Entrant.parse("deva"),), task="mlp", size="tiny", steps=200))
    task = make_task(settings, lambda text: None)
    run = Run(settings, task)
    counts = []
    with in_turn(task.batch, start=0, ahead=True) as batches:
        for step in range(1, 151):
            run.step(batches)
            if step % 50 == 0:
                few = []
                for _ in range(3):
                    time.sleep(0.02)
                    gc.collect()
                    few.append(sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects()))
                counts.append(min(few))
    assert max(counts[1:]) <= counts[0]
