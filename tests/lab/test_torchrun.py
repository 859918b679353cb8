"""`torchrun … -m deva_lab train` as people type it, its ranks killed; a hang is a failure."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from deva_lab.results import read_results
from deva_lab.run import checkpoint
from deva_lab.run.ranks import Ranks
from deva_lab.run.runner import train
from deva_lab.run.settings import RunSettings
from deva_lab.run.tasks import make_task
from deva_lab.run.training import Run
from helpers import needs_posix
from ranks import run

pytestmark = needs_posix
LIMIT = 240  # seconds; on a quiet machine nothing here takes a tenth of it
TRAIN = ["--size", "tiny", "--batch", "4", "--evaluate-every", "4", "--save-every", "0"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of several documents."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = (f"{i * i % 97} is {i % 13} and" + "\n\n" * (i % 9 == 0) for i in range(10_000))
    path.write_text(" ".join(words))
    return path


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEVA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@contextmanager
def started(*words: str | Path, restarts: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A torchrun with two ranks; none of them outlives the block."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, f"--max-restarts={restarts}", "-m", "deva_lab", "train", *TRAIN]
    with subprocess.Popen(
        [*command, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            yield process
        finally:
            for pid in [process.pid, *ranks_of(process)] if process.poll() is None else []:
                os.kill(pid, signal.SIGKILL)


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes of its ranks."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in table.stdout.splitlines()]
    return [
        int(pid) for pid, parent, words in rows if int(parent) == process.pid and "lab" in words
    ]


def wait_for_checkpoint(process: subprocess.Popen[str], folder: Path) -> None:
    begun = time.monotonic()
    while not list(folder.glob("runs/*/checkpoint-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - begun < LIMIT
        time.sleep(0.01)


def end_of(folder: Path) -> Run:
    """The run as its last checkpoint has it, read by a process alone."""
    (place,) = (folder / "runs").iterdir()
    newest = checkpoint.found(place)[0]
    record = json.loads((newest / "record").read_text())
    settings = RunSettings(**record["settings"])
    end = Run(settings, make_task(settings, lambda text: None))
    checkpoint.load(place, end)
    return end


def undisturbed(settings: RunSettings, folder: str, cache: str) -> None:
    """The same run on ranks that nothing happens to, and its last checkpoint."""
    os.environ["DEVA_CACHE"] = cache
    task = make_task(settings, lambda text: None)
    train(Run(settings, task, Ranks("fsdp")), folder=Path(folder))


def test_a_killed_rank_is_started_again_and_changes_nothing(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ["--parallel", "fsdp", "--data", text, "--steps", "8", "--out", folder]
    with started(*words, restarts=1) as process:
        wait_for_checkpoint(process, folder)
        os.kill(ranks_of(process)[-1], signal.SIGKILL)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert "another rank has ended" in err
    assert out.count("finished") == 1  # one rank speaks
    assert out.count("step 0/8") == 1  # it went on, and did not start anew
    assert {"results.jsonl", "report.html", "options.json"} <= set(os.listdir(folder))
    end = end_of(folder)
    assert end.progress.status == "finished"
    whole = tmp_path / "whole"
    run(2, undisturbed, end.settings, str(whole), os.environ["DEVA_CACHE"])
    theirs = Run(end.settings, end.task)
    checkpoint.load(whole, theirs)
    for (name, a), b in zip(end.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    (result,) = read_results(folder / "results.jsonl")
    assert result["curve"]["loss"] == theirs.progress.curve["loss"]
    assert result["curve"]["train_loss"] == theirs.progress.curve["train_loss"]
    assert result["environment"]["ranks"] == 2


def test_a_signal_saves_once_and_ends_all_ranks(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ["--parallel", "ddp", "--data", text, "--steps", "100000", "--out", folder]
    with started(*words) as process:
        wait_for_checkpoint(process, folder)
        ranks = ranks_of(process)
        process.send_signal(signal.SIGTERM)
        for rank in ranks:  # torchrun passes it on, and a scheduler may do so too
            os.kill(rank, signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT)
    assert out.count("Stopped after step") == 1, err
    assert "Warning" not in err
    assert f"-m deva_lab train --parallel ddp --resume {folder}" in out
    step = end_of(folder).progress.step
    assert f"Stopped after step {step}." in out
