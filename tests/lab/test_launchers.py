"""Runs end alike side by side and on clusters, whatever is killed, and nothing stays behind."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import LIMIT, bits, needs_proc, processes, saved, status, wait_for

from deva_lab.cli import main, parser
from deva_lab.commands.options import check_launcher
from deva_lab.errors import UsageError
from deva_lab.launchers.slurm import SlurmCluster, sbatch_options
from deva_lab.results import read_results
from deva_lab.run.progress import Result
from helpers import needs_posix

STEPS = 2500
WORDS = ["--task", "quadratic", "--optimizers", "muon,adamw", "--evaluate-every", "250"]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",  # else 15, and tests beside this one would take all of the time
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else Ray would write one into the home
    "RAY_USAGE_STATS_ENABLED": "0",
}
RAY = ["--launcher", "ray", "--ray-address"]
SLURM = ["--launcher", "slurm", "--slurm-executor", "local"]


def bits_in(folder: Path) -> list[Result]:
    return sorted(map(bits, read_results(folder / "results.jsonl")), key=lambda x: str(x["id"]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """What the comparison comes to on this machine."""
    folder = tmp_path_factory.mktemp("whole")
    words = [*WORDS, "--steps", str(STEPS), "--jobs", "1", "--out", str(folder)]
    assert main(["compare", *words]) == 0
    return bits_in(folder)


@contextmanager
def started(words: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A `deva compare` in a process of its own, that saves often and ends with the block."""
    length = ["--steps", str(STEPS), "--save-every", "0.05"]
    with subprocess.Popen(
        [sys.executable, "-m", "deva_lab", "compare", *WORDS, *length, *words, "--out", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_then_stop(
    process: subprocess.Popen[str], folder: Path, workers: Callable[[], list[int]]
) -> None:
    """Kill the worker of the first run, let the second one end, and press Ctrl-C in the first."""
    wait_for(lambda: saved(folder))
    (worker,) = workers()
    os.kill(worker, signal.SIGSTOP)  # so that it saves nothing more
    old = saved(folder)
    (first,) = {path.parent for path in old}
    os.kill(worker, signal.SIGKILL)
    wait_for((folder / "results.jsonl").exists)
    wait_for(lambda: any(path.parent == first for path in saved(folder).keys() - old.keys()))
    said = press_ctrl_c(process, workers)
    assert said.count("was lost, and another one goes on: ") == 1
    assert said.count(f"step    0/{STEPS}") == 2  # the first has gone on, and not begun anew
    assert saved(folder)
    assert [path.name for path in folder.glob("launch-*")] == []
    assert len(bits_in(folder)) == 1


def press_ctrl_c(process: subprocess.Popen[str], workers: Callable[[], list[int]]) -> str:
    """What a command says in all, when Ctrl-C is pressed, which ends its workers."""
    left = workers()
    assert left
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, said
    assert said.count("  stopped\n") == 1
    assert "Stopped. To go on" in said
    assert "Traceback" not in said
    wait_for(lambda: all(status(pid)[0] == "Z" for pid in left))
    return str(said)


def gone_on_with(folder: Path) -> list[Result]:
    """What the comparison comes to when it goes on in one process."""
    assert main(["compare", "--resume", str(folder), "--jobs", "1"]) == 0
    return bits_in(folder)


# --- This machine --------------------------------------------------------------------------------


@pytest.mark.slow
@needs_proc
def test_workers_end_with_a_killed_command(tmp_path: Path, whole: list[Result]) -> None:
    folder = tmp_path / "out"
    with started(["--jobs", "2"], folder) as process:

        def workers() -> list[int]:
            return [pid for pid in processes("spawn_main") if status(pid)[1] == str(process.pid)]

        wait_for(lambda: len(workers()) == 2 and saved(folder))
        left = workers()
        process.kill()
        wait_for(lambda: all(status(pid)[0] == "Z" for pid in left))  # nobody has told them
    assert gone_on_with(folder) == whole


# --- Ray -----------------------------------------------------------------------------------------

HEAD = """
import ray, sys
options = dict(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
print(ray.init(address="local", log_to_driver=False, **options).address_info["address"], flush=True)
sys.stdin.read()
"""


@contextmanager
def ray_head() -> Iterator[str]:
    """The address of a small Ray cluster, which ends with the block."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD], stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=LIMIT)


@pytest.mark.slow
@needs_proc
def test_neither_a_kill_nor_ctrl_c_changes_runs_on_ray(tmp_path: Path, whole: list[Result]) -> None:
    folder = tmp_path / "out"
    with ray_head() as address, started([*RAY, address, "--jobs", "1"], folder) as process:
        kill_then_stop(process, folder, lambda: processes("ray::deva-"))
    assert gone_on_with(folder) == whole


@pytest.mark.slow
@needs_proc
def test_a_ray_that_was_started_for_a_command_ends_with_it(tmp_path: Path) -> None:
    before, folder = set(processes("ray")), tmp_path / "out"
    with started([*RAY, "local", "--optimizers", "adamw"], folder) as process:
        wait_for(lambda: saved(folder))
        press_ctrl_c(process, lambda: [pid for pid in processes("ray") if pid not in before])


# --- SLURM ---------------------------------------------------------------------------------------


def jobs_in(folder: Path) -> list[int]:
    """The processes of submitit that train into a folder."""
    return processes("submitit.core._submit", str(folder))


@pytest.mark.slow
@needs_proc
def test_neither_a_kill_nor_ctrl_c_changes_jobs(tmp_path: Path, whole: list[Result]) -> None:
    folder = tmp_path / "out"
    with started([*SLURM, "--jobs", "1"], folder) as process:
        kill_then_stop(process, folder, lambda: jobs_in(folder))
    assert gone_on_with(folder) == whole


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with commands in the place of SLURM's, which write down what they are given."""
    for name, says in {
        "sbatch": "Submitted batch job 17",
        "srun": "",
        "scancel": "",
        "sacct": "",
    }.items():
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}\necho "{says}"\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


@needs_posix
def test_what_slurm_does_not_take_is_said(slurm: Path) -> None:
    (slurm / "bin" / "sbatch").write_text("#!/bin/sh\necho invalid partition >&2\nexit 1\n")
    cluster = SlurmCluster(options_of("--launcher", "slurm"), slurm / "out")
    with pytest.raises(UsageError, match="SLURM does not take the job: .*invalid partition"):
        cluster.start("deva-muon", print)


@needs_posix
def test_options_come_to_sbatch_and_a_job_is_cancelled(slurm: Path) -> None:
    options = options_of(
        *("--launcher", "slurm", "--slurm-partition", "long", "--slurm-time", "90", "--cpus", "8"),
        *("--gpus", "1", "--memory", "24", "--slurm-options", "account=mine,exclusive"),
    )
    check_launcher(options)
    job = SlurmCluster(options, slurm / "out").start("deva-muon", print)
    (script,) = (slurm / "out" / "slurm").glob("*_submission.sh")
    wanted = {
        *("--job-name=deva-muon", "--partition=long", "--time=90", "--cpus-per-task=8"),
        *("--gpus-per-node=1", "--mem=24GB", "--account=mine", "--exclusive", "--nodes=1"),
    }
    lines = script.read_text().splitlines()
    assert wanted <= {line.removeprefix("#SBATCH ") for line in lines if "#SBATCH" in line}
    assert job.ended() is None
    job.cancel()
    assert (slurm / "scancel").read_text() == "17\n"


def options_of(*words: str) -> argparse.Namespace:
    return parser().parse_args(["compare", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cpus 2", "--cpus needs --launcher ray or slurm, got local"),
        ("--launcher slurm --ray-address a:1", "--ray-address needs --launcher ray, got slurm"),
        ("--launcher ray --slurm-time 9", "--slurm-time needs --launcher slurm, got ray"),
        ("--launcher ray --cpus 0", "--cpus must be at least 1, got 0"),
        ("--launcher ray --gpus -0.5", "--gpus must be at least 0, got -0.5"),
        ("--launcher ray --memory nan", "--memory must be at least 0, got nan"),
        ("--launcher slurm --gpus 0.5 --slurm-executor local", "--gpus must be a whole number"),
        (
            "--launcher slurm --slurm-executor local --slurm-options a=",
            "NAME=VALUE or NAME, got 'a='",
        ),
        ("--launcher slurm", "needs sbatch and srun, which are not on this machine"),
        ("--launcher ray --ray-address 127.0.0.1:1", "--ray-address 127.0.0.1:1 cannot be used"),
        ("--launcher ray --device coda", "--device coda cannot be used here"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
def test_what_makes_no_sense_is_said_before_anything_is_written(
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--task", "quadratic", *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_options_of_sbatch_may_have_dashes() -> None:
    assert sbatch_options("--qos=high, mail-type=END") == {"qos": "high", "mail-type": "END"}
    assert sbatch_options(None) is None
