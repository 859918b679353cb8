"""The machine: what it is, how fast it multiplies, and what memory it has free."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

import deva_optim

PACKAGES: Final = ("torch", "pytorch_optimizer", "heavyball")


def machine(device: str) -> dict[str, Any]:
    """The commit, the hardware and the versions that a result depends on."""
    gpu = device.startswith("cuda") and torch.cuda.is_available()  # not one of another machine
    pages = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    )
    return {
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(pages / 1e9, 1) or None,
        "gpu": torch.cuda.get_device_name(device) if gpu else None,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def summary(device: str) -> str:
    """One line of it."""
    about = machine(device)
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items() if v)
    where = about["gpu"] or f"{about['cpu']}, {about['cores']} cores, {about['threads']} used"
    return f"{where}; {versions}; commit {about['commit'][:9]}{about['commit'][40:]}"


def cores(system: Path = Path("/")) -> int:
    """The cores that this process may use: those it is bound to, or its container's share of them.

    `system` is where the files of Linux are that tell of quotas.
    """
    bound = hasattr(os, "sched_getaffinity")
    found = len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1
    try:
        own = (system / "proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    except OSError:
        return found
    groups = system / "sys/fs/cgroup"
    for group in (groups / own, *(groups / own).parents):
        if group.is_relative_to(groups) and (limit := group / "cpu.max").is_file():
            quota, period = limit.read_text().split()  # microseconds of work in such a time
            found = found if quota == "max" else min(found, math.ceil(int(quota) / int(period)))
    return found


@cache
def _commit() -> str:
    """The commit of the optimizers, with a mark if the sources have changed since.

    It is what this process has imported, whatever is committed while it trains.
    """
    if not _git("ls-files", "__init__.py"):  # installed somewhere inside of another repository
        return "unknown"
    return (
        f"{_git('rev-parse', 'HEAD')}{' with changes' * bool(_git('status', '--porcelain', '..'))}"
    )


def _git(*arguments: str) -> str | None:
    command, root = ["git", "--no-optional-locks", *arguments], Path(deva_optim.__file__).parent
    try:
        said = subprocess.check_output(command, cwd=root, text=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.strip()


def _cpu() -> str:
    lines = _system_file("cpuinfo").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _system_file(name: str) -> str:
    """What Linux says of itself under a name; nothing on other systems."""
    path = Path("/proc", name)
    return path.read_text() if path.exists() else ""


def available_bytes() -> int | None:
    """The memory that is free for a program, where the system says it."""
    fields = dict(line.split(":", 1) for line in _system_file("meminfo").splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024 if fields else None


def wait(device: str) -> None:
    """Wait until the device has done what it was told to do."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(torch.device(device))


def peak_flops(n: int, device: str = "cpu", *, trials: int = 7) -> float:
    """FLOP/s of the best of some n×n×n products in float32."""
    A, B, out = (torch.ones(n, n, device=device) for _ in range(3))
    times = []
    for _ in range(trials + 1):
        wait(device)
        start = time.perf_counter()
        torch.mm(A, B, out=out)
        wait(device)
        times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times[1:])
