"""The driver of launched runs, on clusters that tests make up: what is lost, told and left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import bits

from deva_lab.errors import CommandError, UsageError
from deva_lab.files import append_line
from deva_lab.launchers import carry_out, driver, ended
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
from deva_lab.render.display import Display
from deva_lab.run.progress import Event, Result
from deva_lab.run.runner import Orders, run_one
from deva_lab.run.settings import RunSettings


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


def test_results_come_in_the_order_of_the_runs_whichever_ends_first(
    settings: RunSettings, tmp_path: Path
) -> None:
    runs = [settings.changed(seed=seed) for seed in (1, 2, 3)]
    for run in reversed(runs[:2]):
        append_line(tmp_path / "results.jsonl", {"id": run.id})
    assert [result["id"] for result in ended(tmp_path, runs)] == [run.id for run in runs[:2]]
