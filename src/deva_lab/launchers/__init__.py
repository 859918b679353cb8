"""Where the runs of a command are carried out: on this machine, by Ray, or by SLURM.

On a cluster every run is a task or a job of its own, which goes on from the checkpoints of the run.
The folder of the results is on storage that all machines see. The driver, which is the command that
the user typed, and its workers talk through files there (`exchange`): so it is the same for all
clusters, and a cluster has only to start a function somewhere, to say how it ended, and to end it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ..errors import UsageError
from ..extras import require
from ..run.runner import Launch, run_all
from ..usage.launching import of_launcher

_MODULES: Final[Mapping[str, str]] = MappingProxyType({"ray": "ray", "slurm": "submitit"})


@contextmanager
def launching(options: argparse.Namespace, folder: Path) -> Iterator[Launch]:
    """The way that the options of a command ask for, ready to be used for runs into a folder.

    Enter it before `Stopping`: Ray has its own handler of SIGTERM.

    Raises:
        UsageError: If it cannot be used, for whatever reason that can be found before any run.
    """
    check_launcher(options)
    if options.launcher == "local":
        yield run_all
        return
    from .driver import run_on

    if options.launcher == "ray":
        from .ray_cluster import RayCluster

        with RayCluster(options, folder) as cluster:
            yield partial(run_on, cluster)
    else:
        from .slurm import SlurmCluster

        yield partial(run_on, SlurmCluster(options, folder))


def is_elsewhere(options: argparse.Namespace, given: dict[str, Any]) -> bool:
    """Whether runs go to other machines; what was asked for then names a device of theirs.

    Raises:
        UsageError: As `check_launcher` does.
    """
    check_launcher(options)
    if options.launcher == "local":
        return False
    given.setdefault("device", "cuda" if options.gpus else "cpu")
    return True


def check_launcher(options: argparse.Namespace) -> None:
    """Raises UsageError for options that do not fit each other, MissingExtra for a package."""
    launcher = options.launcher
    for name, value in vars(options).items():
        wanted = of_launcher(name)
        if wanted and value is not None and launcher not in wanted:
            raise UsageError(
                f"--{name.replace('_', '-')} needs --launcher {' or '.join(wanted)}, got {launcher}"
            )
    if launcher in _MODULES:
        require(_MODULES[launcher])
    for name, least in (("cpus", 1), ("gpus", 0), ("memory", 0), ("slurm_time", 1)):
        value = getattr(options, name)
        if value is not None and not (least <= value < math.inf):
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, got {value:g}")
