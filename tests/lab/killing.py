"""Kills `deva train` and `deva compare` at random moments, goes on, and compares how they end.

    OMP_NUM_THREADS=1 python tests/lab/killing.py --kills 1000 --seed 1

A process that has imported everything, and has no threads, is forked for each life of a command, so
that a life costs what its work does. Half of the kills come from outside after a random time; with
the others the command kills itself before a random one of its operations on files, where most harm
could be done.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from deva_lab.cli import main
from deva_lab.files import is_whole
from deva_lab.results import read_results
from deva_lab.run import checkpoint

LENGTH = ["--save-every", "0", "--evaluate-every", "4"]
COMMANDS = {
    "train": ["train", "--task", "quadratic", "--steps", "12", *LENGTH],
    "train-mlp": [
        *["train", "--optimizer", "soap", "--task", "mlp", "--size", "tiny", "--batch", "16"],
        *["--steps", "8", *LENGTH],
    ],
    "compare": [
        *["compare", "--optimizers", "deva,adamw", "--jobs", "1"],
        *["--task", "quadratic", "--steps", "8", *LENGTH],
    ],
}
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir")
PART = 0.4
LATE = ("cProfile", "matplotlib.pyplot", "sklearn.datasets", "torch._dynamo")


@dataclass
class Life:
    """How a command ended: its wait status, its operations on files and its seconds."""

    status: int
    operations: int
    seconds: float

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


def live(words: list[str], folder: Path, log: Path, **death: Any) -> Life:
    """Run a command that writes to the folder; `death` is its `operation` or `seconds`, if any."""
    reading, writing = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _be(words, folder, log, writing, death.get("operation"))
    os.close(writing)
    if "seconds" in death:
        time.sleep(death["seconds"])
        os.kill(child, signal.SIGKILL)  # one that has ended is still there to be waited for
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - began
    with open(reading, "rb") as pipe:
        return Life(status, int(pipe.read() or 0), seconds)


def _be(words: list[str], folder: Path, log: Path, writing: int, operation: int | None) -> None:
    """In the child: the command, which dies before one of its operations if that is given."""
    count, place = 0, str(folder)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in OPERATIONS and (place in str(arguments[0]) or in_a_folder(arguments[0])):
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 99
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.addaudithook(hear)
        code = main(words)
        os.write(writing, str(count).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def in_a_folder(name: object) -> bool:
    """Whether this is a name in a folder that is open, as a tree is removed."""
    return isinstance(name, str) and os.sep not in name


@dataclass
class Kept:
    """What a folder must not lose: its results, and how far each run has come."""

    folder: Path
    log: Path  # what the command said
    finished: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        """Look again, and fail where something has gone."""
        finished = ends(self.folder)
        lost = [name for name, end in self.finished.items() if finished.get(name) != end]
        assert not lost, f"the results of {lost} are lost"
        self.finished = finished
        for run, step in self.steps.items():
            assert run in finished or newest(self.folder / "runs" / run) >= step, f"{run} went back"
        runs = self.folder.glob("runs/*")
        self.steps = {run.name: newest(run) for run in runs if run.name not in finished}
        said = self.said()
        ended = sum(step == max(said.values()) for step in self.steps.values()) if said else 0
        assert len(said) <= len(finished) + ended, f"of {list(said)} one is lost"

    def said(self) -> dict[str, int]:
        """The runs that were said to be finished, and their steps."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        ends = (line.split(" step ") for line in lines if line.endswith("finished"))
        return {name.strip(): int(rest.partition("/")[2].split()[0]) for name, rest in ends}


def log_of(folder: Path) -> Path:
    """Where a command says what it does, one life behind the other."""
    return folder.with_suffix(".log")


def ends(folder: Path) -> dict[str, Any]:
    """The losses of the finished runs, in full."""
    path = folder / "results.jsonl"
    results = read_results(path) if path.exists() else []
    return {
        each["id"]: (each["status"], each["curve"]["loss"], each["curve"]["train_loss"])
        for each in results
    }


def newest(run: Path) -> int:
    """The step of the newest checkpoint that is whole."""
    whole = (path for path in checkpoint.found(run) if is_whole(path))
    return max((int(path.stem.partition("-")[2]) for path in whole), default=0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """What the checkpoints that are left hold in the end; `deva compare` leaves none."""
    found = {}
    for run in folder.glob("runs/*"):
        state = checkpoint.read_file(checkpoint.found(run)[0], "cpu")
        assert state is not None
        found |= {f"{run.name} {name}": weight for name, weight in state["model"].items()}
    return found


class Killing:
    """Kills commands until there were enough kills."""

    def __init__(self, place: Path, kills: int, seed: int) -> None:
        self.place, self.kills, self.chance = place, kills, random.Random(seed)
        self.killed = dict.fromkeys(COMMANDS, 0)
        self.rounds = 0

    def run(self) -> None:
        """Go through the commands in turn, each in a new folder, to its end."""
        for name in ("warm", *COMMANDS):  # the first one fills caches of matplotlib
            life = self.life(COMMANDS.get(name, COMMANDS["train"]), self.place / name)
            assert life.status == 0, self.said()
            if name != "warm":
                COUNTED[name] = life
        while sum(self.killed.values()) < self.kills:
            self.round(list(COMMANDS)[self.rounds % len(COMMANDS)])

    def round(self, name: str) -> None:
        """Kill one command again and again until it comes to its end, and compare that."""
        self.rounds += 1
        folder = self.place / f"{name}-{self.rounds}"
        kept, words = Kept(folder, log_of(folder)), COMMANDS[name]
        while True:
            enough = sum(self.killed.values()) >= self.kills
            life = self.life(words, folder, **({} if enough else self.death(COUNTED[name])))
            kept.check()
            if not life.killed:
                break
            self.killed[name] += 1
            if (folder / "options.json").exists():
                words = [words[0], "--resume", str(folder), "--save-every", "0"]
                words += ["--jobs", "1"] if name == "compare" else []
        assert life.status == 0, self.said()
        whole = self.place / name
        assert ends(folder) == ends(whole), f"{folder} ended with other losses"
        ours, theirs = weights(folder), weights(whole)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), f"{folder}: other weights"
        assert (folder / "report.html").exists()

    def life(self, words: list[str], folder: Path, **death: Any) -> Life:
        out = [] if "--resume" in words else ["--out", str(folder)]
        return live([*words, *out], folder, log_of(folder), **death)

    def death(self, whole: Life) -> dict[str, Any]:
        """A moment in the first part of what a command takes that nothing happens to.

        One that goes on has less to do, so that its end is in this part too.
        """
        if self.chance.random() < 0.5:
            return {"operation": self.chance.randint(1, int(PART * whole.operations))}
        return {"seconds": self.chance.uniform(0, PART * whole.seconds)}

    def said(self) -> str:
        """All that the commands have said."""
        return "".join(path.read_text() for path in sorted(self.place.glob("*.log")))


COUNTED: dict[str, Life] = {}  # by name: the life of a command that nothing happens to


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    for name in LATE:  # what commands import when they need it
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as place:
        killing = Killing(Path(place), options.kills, options.seed)
        killing.run()
        assert "Traceback" not in killing.said(), killing.said()
        each = ", ".join(f"{count} of {name}" for name, count in killing.killed.items())
        print(f"{sum(killing.killed.values())} kills ({each}), {killing.rounds} ends, all the same")


if __name__ == "__main__":
    run(sys.argv[1:])
