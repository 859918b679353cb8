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
from typing import Any

import pytest
from processes import LIMIT, needs_proc, processes, saved, status, wait_for

from deva_lab.cli import main, parser
from deva_lab.commands.options import check_launcher
from deva_lab.errors import CommandError, UsageError
from deva_lab.launchers import carry_out, driver
from deva_lab.launchers.driver import (
    LEASE,
    Driver,
    EventWriter,
    Lease,
    events_file,
    launch_folder,
    run_on,
    work,
)
from deva_lab.launchers.slurm import SlurmCluster, sbatch_options
from deva_lab.render.display import Display
from deva_lab.results import read_results
from deva_lab.run.progress import Event, Result
from deva_lab.run.runner import Orders, run_one
from deva_lab.run.settings import RunSettings
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


def bits(result: Result) -> Result:
    """All of a result but times, and where and by which command it was made."""
    times = ("milliseconds", "mean_milliseconds", "environment", "command")
    curve = {name: column for name, column in result["curve"].items() if name != "seconds"}
    return {**{key: value for key, value in result.items() if key not in times}, "curve": curve}


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


# --- The driver, on clusters that tests make up --------------------------------------------------


class Ended:
    """A job that has ended when it is asked for the first time."""

    def __init__(self, how: str = "") -> None:
        self.how = how

    def ended(self) -> str:
        return self.how

    def cancel(self) -> None:
        raise AssertionError("it has ended")


class Calling:
    """A cluster that calls functions at once, one after the other."""

    cpus, tries = 1, 3

    def __init__(self, steps: int = 1_000_000) -> None:
        self.steps = steps  # of a job, after which it is asked to end
        self.started = 0

    def start(self, name: str, function: Callable[..., None]) -> Ended:
        self.started += 1
        left = iter(range(self.steps))
        function(asked=lambda: next(left, None) is None)
        return Ended()


class Losing(Calling):
    """A cluster that loses the jobs of one optimizer."""

    def start(self, name: str, function: Callable[..., None]) -> Ended:
        if name.startswith("deva-adamw"):
            self.started += 1
            return Ended("out of memory")
        return super().start(name, function)


@pytest.fixture
def settings() -> RunSettings:
    return RunSettings(
        task="quadratic",
        size="homogeneous",
        data="none",
        optimizer="muon",
        lr=0.01,
        seed=0,
        steps=12,
        batch=4,
        evaluate_every=4,
    )


def carried_out(
    runs: list[RunSettings], folder: Path, cluster: Any = None
) -> tuple[list[Result], list[Event]]:
    events: list[Event] = []
    orders = Orders(folder, "deva compare")
    how: dict[str, Any] = {"watch": events.append, "stopping": lambda: False}
    if cluster is None:
        return [run_one(run, orders, **how) for run in runs], events
    return list(run_on(cluster, runs, orders, jobs=1, **how)), events


def test_a_run_that_needs_several_jobs_ends_as_one_that_needs_one(
    settings: RunSettings, tmp_path: Path
) -> None:
    here, told_here = carried_out([settings], tmp_path / "here")
    cluster = Calling(steps=4)
    there, told = carried_out([settings], tmp_path / "there", cluster)
    assert cluster.started == 3
    assert list(map(bits, there)) == list(map(bits, here))
    points = [(x.step, x.loss) for x in told_here if x.evaluated]
    assert [(x.step, x.loss) for x in told if x.evaluated] == points


def test_a_run_that_is_always_lost_fails_and_the_others_go_on(
    settings: RunSettings, tmp_path: Path
) -> None:
    runs = [settings.changed(optimizer="adamw"), settings]
    cluster = Losing()
    results, events = carried_out(runs, tmp_path, cluster)
    assert {x["label"]: x["status"] for x in results} == {"adamw": "failed", "muon": "finished"}
    assert cluster.started == cluster.tries + 1
    (failed,) = (x for x in results if x["status"] == "failed")
    assert failed["error"].endswith("without another checkpoint, at last: out of memory")
    assert [x.status for x in events if x.id == runs[0].id] == ["failed"]
    assert (tmp_path / "runs" / runs[0].id / "error.txt").exists()


def test_a_run_that_raises_is_a_row_as_it_is_on_this_machine(
    settings: RunSettings, tmp_path: Path
) -> None:
    broken = settings.changed(lr=-1.0)
    here, _ = carried_out([broken], tmp_path / "here")
    there, _ = carried_out([broken], tmp_path / "there", Calling())
    assert there[0]["error"] == here[0]["error"]
    assert list(map(bits, there)) == list(map(bits, here))


def test_what_the_laboratory_refuses_ends_the_command(
    settings: RunSettings, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="unknown optimizer 'muno'"):
        carried_out([settings.changed(optimizer="muno")], tmp_path, Calling())


def test_a_machine_that_does_not_see_the_folder_says_so(
    settings: RunSettings, tmp_path: Path
) -> None:
    orders = Orders(tmp_path / "elsewhere", "deva compare")
    with pytest.raises(UsageError, match=r"does not see .*elsewhere: choose a folder with --out"):
        work(settings, orders, orders.folder / "launch-1", 1)


def test_a_machine_of_ray_that_does_not_see_the_folder_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")
    from deva_lab.launchers.ray_cluster import Task

    def get(result: object) -> None:
        raise ray.exceptions.RayTaskError("work", "traceback", result).as_instanceof_cause()

    monkeypatch.setattr(ray, "wait", lambda results, timeout: (results, []))
    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(UsageError, match="^node7 does not see /out$"):
        Task(UsageError("node7 does not see /out")).ended()
    assert "MemoryError" in (Task(MemoryError("too little")).ended() or "")


# --- Who is still there --------------------------------------------------------------------------


class Clock:
    """A clock that tests set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(driver.time, "monotonic", clock.monotonic)
    return clock


def driver_of(place: Path, watch: Callable[[Event], None] = print) -> Driver:
    return Driver(Calling(), Orders(place.parent, "deva compare"), place, watch)


def test_a_worker_ends_when_its_driver_has_gone(tmp_path: Path, clock: Clock) -> None:
    with launch_folder(tmp_path) as place:
        lease, alive = Lease(place / LEASE), driver_of(place)
        for clock.now in (0.0, 200.0, 400.0, 600.0):
            alive.renew()
            os.utime(place / LEASE, (clock.now, clock.now))  # of a machine with another clock
            assert not lease()
        clock.now = 600.0 + driver.ALONE_AFTER
        assert not lease()
        clock.now += 1
        assert lease()  # nobody has renewed it
    assert Lease(place / LEASE)()  # the driver has removed it


def test_the_workers_of_a_killed_driver_end_when_their_runs_are_gone_on_with(
    settings: RunSettings, tmp_path: Path
) -> None:
    left = tmp_path / "launch-1"
    left.mkdir()
    (left / LEASE).touch()
    lease = Lease(left / LEASE)
    assert not lease()
    orders = Orders(tmp_path, "deva compare")
    carry_out([settings], orders, jobs=1, shown=Display(), stopping=lambda: False)
    assert lease()
    work(settings, orders, left, 1)  # one that had been waiting in a queue
    assert not list(tmp_path.glob("launch-*"))


def test_a_driver_whose_folder_another_one_has_taken_ends(tmp_path: Path, clock: Clock) -> None:
    with launch_folder(tmp_path) as place:
        other = driver_of(place)
        (place / LEASE).unlink()
        other.renew()  # it has looked just now
        clock.now = driver.RENEW_EVERY
        with pytest.raises(CommandError, match="another command has begun in"):
            other.renew()


def test_events_are_read_once_and_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    events = [Event("a", step, "running", 1.5, 0.1, evaluated=True) for step in range(3)]
    heard: list[Event] = []
    with launch_folder(tmp_path) as place:
        listening, tell = driver_of(place, heard.append), EventWriter(events_file(place, "a"))
        tell(events[0])
        listening.read_events("a")
        assert heard == events[:1]
        with events_file(place, "a").open("ab") as file:
            file.write(b'["a", 1, "run')
        listening.read_events("a")
        assert heard == events[:1]
        again = EventWriter(events_file(place, "a"))  # of the worker that goes on
        again(events[1])
        again(events[2])
        listening.read_events("a")
        assert heard == events
