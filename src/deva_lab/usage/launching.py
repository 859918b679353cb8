"""The options that say where runs are carried out, of all commands that have many of them."""

from __future__ import annotations

import argparse
from typing import Final

LAUNCHERS: Final = ("local", "ray", "slurm")
EXECUTORS: Final = ("slurm", "local")
CPUS: Final = 1
MINUTES: Final = 60


def add_launching(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    where = parser.add_argument_group("where runs are carried out (docs/clusters.md)")
    where.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs side by side (as cores allow; with ray and slurm as the cluster does)",
    )
    where.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="local",
        help="on this machine, each as a Ray task, or each as a SLURM job (local)",
    )
    where.add_argument("--cpus", type=int, metavar="N", help=f"cores for a run ({CPUS})")
    where.add_argument(
        "--gpus", type=float, metavar="N", help="GPUs for a run, with ray also a part of one (0)"
    )
    where.add_argument("--memory", type=float, metavar="GB", help="memory for a run")
    where.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="of a Ray cluster, such as HOST:6379; local starts one on this machine for as long as "
        "the command takes (RAY_ADDRESS, else one that runs on this machine, else local)",
    )
    where.add_argument("--slurm-partition", metavar="NAME", help="(the cluster's default)")
    where.add_argument(
        "--slurm-time",
        type=int,
        metavar="MINUTES",
        help=f"limit of a job; a run that needs more goes on in another one ({MINUTES})",
    )
    where.add_argument(
        "--slurm-options",
        metavar="LIST",
        help="other options of sbatch, as in account=mine,constraint=a100,exclusive",
    )
    where.add_argument(
        "--slurm-executor",
        choices=EXECUTORS,
        help="local has submitit start the jobs on this machine, to try things out (slurm)",
    )


def of_launcher(name: str) -> tuple[str, ...]:
    """The launchers that an option is for, if it is not for all."""
    if name in ("cpus", "gpus", "memory"):
        return "ray", "slurm"
    return tuple(x for x in LAUNCHERS if name.startswith(f"{x}_"))
