"""Runs as jobs of SLURM, which submitit submits."""

from __future__ import annotations

import argparse
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import submitit

from ..errors import UsageError
from ..run.runner import SIGNALS, Stopping
from ..usage import CPUS, MINUTES

LOGS = "slurm"  # in the folder of the results: what submitit writes


class SlurmCluster:
    """What jobs are submitted to.

    Args:
        options: Of the command line.
        folder: That of the results, which all machines must see.
    """

    tries = 3

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.cpus = options.cpus or CPUS
        kind = options.slurm_executor or "slurm"
        if kind == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
            raise UsageError(
                "--launcher slurm needs sbatch and srun, which are not on this machine: give the "
                "command on one that submits jobs, or try it here with --slurm-executor local"
            )
        gpus = options.gpus or 0
        if gpus != int(gpus):
            raise UsageError(f"--gpus must be a whole number with --launcher slurm, got {gpus:g}")
        others = sbatch_options(options.slurm_options)
        self.executor = submitit.AutoExecutor(folder.absolute() / LOGS, cluster=kind)
        self.executor.update_parameters(
            cpus_per_task=self.cpus,
            gpus_per_node=int(gpus) or None,
            mem_gb=options.memory,
            timeout_min=options.slurm_time or MINUTES,
            slurm_partition=options.slurm_partition,
            slurm_additional_parameters=others,
        )

    def start(self, name: str, function: Callable[..., None]) -> SlurmJob:
        """Submit a job."""
        self.executor.update_parameters(name=name)
        try:
            return SlurmJob(self.executor.submit(_call, function))
        except submitit.core.utils.FailedJobError as error:
            reason = str(error).strip().splitlines()[-1]
            raise UsageError(f"SLURM does not take the job: {reason}") from error


def sbatch_options(text: str | None) -> dict[str, Any] | None:
    """Options of sbatch by name; one without a value is a switch.

    >>> sbatch_options("account=mine,exclusive")
    {'account': 'mine', 'exclusive': True}
    """
    if text is None:
        return None
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not name.lstrip("-") or (equals and not value):
            raise UsageError(f"--slurm-options is a list of NAME=VALUE or NAME, got {part!r}")
        found[name.lstrip("-")] = value or True
    return found


class SlurmJob:
    """A job that has been submitted."""

    def __init__(self, job: submitit.Job[None]) -> None:
        self.job = job

    def ended(self) -> str | None:
        """None while it waits or runs; "" if it has returned; otherwise how it was lost."""
        if not self.job.done():
            return None
        log = f"see {self.job.paths.stderr}"
        if not self.job.paths.result_pickle.exists():
            return f"job {self.job.job_id} has ended with the state {self.job.state}; {log}"
        error = self.job.exception()
        return "" if error is None else f"job {self.job.job_id} has raised an error; {log}"

    def cancel(self) -> None:
        """Cancel it, if it has not ended."""
        if not self.job.done():
            self.job.cancel(check=False)


def _call(function: Callable[..., None]) -> None:
    """In a job: call a function, which saves and returns when SLURM is about to end the job.

    SLURM says so with the signal that submitit has asked for, before the limit of time and before
    the job makes way for another; scancel does with SIGTERM.
    """
    warning = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
    with Stopping(patient=True, signals=(*SIGNALS, warning)) as asked:
        function(asked=asked)
