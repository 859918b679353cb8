"""What the laboratory knows of the machine that it runs on."""

import os
from pathlib import Path

import pytest

from deva_lab.machine import cores


@pytest.mark.parametrize(
    ("own", "limits", "found"),
    [
        ("a/b", {"a": "150000 100000", "a/b": "max 100000"}, 2),  # a half of a core is one more
        ("a/b", {"a": "800000 100000", "a/b": "300000 100000", "c": "100000 100000"}, 3),
        ("", {"": "400000 100000"}, 4),  # as a container sees itself
        ("a", {"a": "9900000 100000"}, 64),
        ("a", {}, 64),
    ],
)
def test_a_quota_of_the_container_bounds_the_cores(own, limits, found, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::/{own}\n")
    for group, limit in limits.items():
        file = tmp_path / "sys/fs/cgroup" / group / "cpu.max"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    assert cores(tmp_path) == found


def test_without_control_groups_the_cores_are_those_it_is_bound_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5}, raising=False)
    assert cores(tmp_path) == 2
    assert cores(Path("/")) >= 1
