"""Processes that tests start and kill, and what they leave in folders."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deva_lab.run.progress import Result

LIMIT = 240  # seconds; on a quiet machine nothing takes a tenth of it
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc"
)


def processes(*words: str) -> list[int]:
    """The processes whose command line has these words."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if all(word.encode() in words_of(pid) for word in words)]


def wait_for(what: Callable[[], object]) -> None:
    """Return once this is so."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < LIMIT
        time.sleep(0.05)


def status(pid: int) -> list[str]:
    """The state of a process and its parent; it is as a zombie if it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return ["Z", ""]


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def saved(folder: Path) -> dict[Path, int]:
    """The checkpoints that are there, with their times."""
    found = {}
    for path in folder.glob("runs/*/checkpoint-*"):
        try:
            found[path] = path.stat().st_mtime_ns
        except FileNotFoundError:  # a newer one has taken its place
            continue
    return found


def bits(result: Result) -> Result:
    """All of a result but times, and where and by which command it was made."""
    times = ("milliseconds", "mean_milliseconds", "environment", "command")
    curve = {name: column for name, column in result["curve"].items() if name != "seconds"}
    return {**{key: value for key, value in result.items() if key not in times}, "curve": curve}
