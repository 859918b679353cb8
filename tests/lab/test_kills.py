"""`kill -9` at random moments: nothing that was finished is lost, and every end is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from killing import ends
from processes import LIMIT, needs_proc, processes, saved, status, wait_for

from deva_lab.cli import main


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="commands are forked")
def test_a_hundred_kills_of_train_and_compare_change_nothing() -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("killing.py"), "--kills", "100"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("100 kills")


# --- Side by side --------------------------------------------------------------------------------

WORDS = ["--task", "quadratic", "--steps", "400", "--optimizers", "muon,adamw", "--save-every", "0"]


def started(*words: str | Path) -> subprocess.Popen[str]:
    """A `deva compare` of its own, with two workers that have begun to train."""
    process = subprocess.Popen(
        [sys.executable, "-m", "deva_lab", "compare", *map(str, words), "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    wait_for(lambda: len(workers(process.pid)) == 2)
    return process


def workers(parent: int) -> list[int]:
    """The processes that a command has started to train in."""
    return [pid for pid in processes("spawn_main") if status(pid)[1] == str(parent)]


@pytest.mark.slow
@needs_proc
def test_workers_end_with_a_killed_command_which_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["compare", *WORDS, "--jobs", "1", "--out", str(whole)]) == 0
    process = started(*WORDS, "--out", cut)
    left = workers(process.pid)
    wait_for(lambda: saved(cut))
    process.kill()
    wait_for(lambda: all(status(pid)[0] == "Z" for pid in left))  # nobody has told them
    process.communicate(timeout=LIMIT)
    assert main(["compare", "--resume", str(cut), "--jobs", "1"]) == 0
    assert ends(cut) == ends(whole)
