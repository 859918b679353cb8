"""Where a result comes from: commit, hardware and versions."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

import deva_optim

PACKAGES: Final = ("torch", "pytorch_optimizer", "heavyball")


def machine(device: str) -> dict[str, Any]:
    """The commit, the hardware and the versions that a result depends on."""
    return {
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "gpu": _gpu(device),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _gpu(device: str) -> str | None:
    """The name of a GPU; None for other devices, and for one that is on another machine."""
    there = device.startswith("cuda") and torch.cuda.is_available()
    return torch.cuda.get_device_name(device) if there else None


def summary(about: dict[str, Any]) -> str:
    """One line of it."""
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items() if v)
    where = about["gpu"] or f"{about['cpu']}, {about['cores']} cores, {about['threads']} used"
    return f"{where}; {versions}; commit {about['commit'][:9]}{about['commit'][40:]}"


class CpuTimes(NamedTuple):
    """Seconds of all CPUs together since the machine was started, and of this program."""

    total: float
    busy: float
    own: float


def cpu_times() -> CpuTimes | None:
    """The clocks of the CPUs, where the system shows them."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    tick = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, waiting for a disk, two kinds of interrupts, stolen from the machine
    times = [int(field) / tick for field in path.read_text().split("\n", 1)[0].split()[1:9]]
    return CpuTimes(sum(times), sum(times) - times[3] - times[4], time.process_time())


def others_share(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The share of the CPUs' time that went to other programs between two readings."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others / (after.total - before.total))


def _commit() -> str:
    """The commit of the optimizers, with a mark if the sources have changed since."""
    if not _git("ls-files", "__init__.py"):  # installed somewhere inside of another repository
        return "unknown"
    head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "..")
    return f"{head} with changes" if changes else f"{head}"


def _git(*arguments: str) -> str | None:
    root = Path(deva_optim.__file__).parent
    try:
        return subprocess.check_output(
            ["git", *arguments], cwd=root, text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    if not hasattr(os, "sysconf"):
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
