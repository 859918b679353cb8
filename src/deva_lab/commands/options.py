"""What the options that commands share come to: what is trained, and where."""

from __future__ import annotations

import argparse
import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from ..config import EXCLUSIVE
from ..errors import UsageError, check_least, require
from ..files import read_record, typed, write_record
from ..launchers import carry_out, check_jobs, jobs_for
from ..launchers.driver import Cluster
from ..loggers import check_loggers, names_of, prepare_loggers
from ..render.display import Display
from ..run.entrants import Entrant, entrants
from ..run.environment import device_of
from ..run.plan import Request, common
from ..run.progress import Result
from ..run.runner import Orders, Stopping
from ..run.settings import RunSettings
from ..run.tasks import make_task
from ..run.user_source import find, is_user_task

OPTIONS = "options.json"  # in the folder of results: what was asked for

# What `--resume` takes over from the command that it continues: the fields of a request, some of
# which are read from a text, and what is asked for besides.
_READ = ("seeds", "device")
_FIELDS = tuple(x.name for x in fields(Request) if x.name not in ("optimizers", "rates"))
REQUESTED = (*_FIELDS, "lr", "tokens", "log")


def asked_of(
    options: argparse.Namespace, kind: str, defaults: dict[str, Any], program: str = "deva"
) -> tuple[Path, dict[str, Any], Request, Orders]:
    """What a command that trains was asked for: where, the options, and what they come to.

    Raises:
        UsageError: For what would come to light after hours.
    """
    folder = output_folder(options, kind)
    given = given_options(options, defaults)
    elsewhere = getattr(options, "launcher", "local") != "local"
    if "jobs" in options:
        check_launcher(options)
        check_jobs(options.jobs)
    if elsewhere:  # the device is one of other machines
        given.setdefault("device", "cuda" if options.gpus else "cpu")
    request = request_of(given, elsewhere=elsewhere)
    log = names_of(given.get("log"))
    check_loggers(log)
    if not options.save_every >= 0:  # NaN among them
        raise UsageError(f"--save-every must be seconds, 0 or more, got {options.save_every}")
    orders = Orders(folder, command_line(options.words, program), options.save_every, log)
    return folder, given, request, orders


def begin(folder: Path, given: dict[str, Any], log: Sequence[str]) -> None:
    """Make what all runs share, and write down what was asked for."""
    prepare_loggers(log, folder)
    write_record(folder / OPTIONS, given)


def output_folder(options: argparse.Namespace, kind: str) -> Path:
    """Where the results go: a new place, or the one that `--resume` names."""
    if options.resume is None:
        if options.out is None:
            return _unused(Path("runs") / time.strftime(f"{kind}-%Y%m%d-%H%M%S"))
        folder = Path(options.out)
        if (folder / OPTIONS).exists():
            raise UsageError(f"{folder} has results: --resume {typed(folder)} goes on with them")
        return folder
    if options.out is not None:
        raise UsageError("--out and --resume exclude each other: --resume DIR goes on in DIR")
    if not (options.resume / OPTIONS).is_file():
        raise UsageError(f"--resume {options.resume}: there is no {OPTIONS} of `deva {kind}`")
    return Path(options.resume)


def _unused(folder: Path) -> Path:
    """The folder, or the first of FOLDER-2, FOLDER-3, … that has no results."""
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in chain([folder], others) if not (path / OPTIONS).exists())


def given_options(options: argparse.Namespace, defaults: dict[str, Any]) -> dict[str, Any]:
    """The options of this command, over those of the one that it continues, over the defaults."""
    names = (*REQUESTED, *defaults)
    typed = {name: getattr(options, name, None) for name in names}
    given = {name: value for name, value in typed.items() if value is not None}
    if is_user_task(given.get("task", "")):
        given["task"] = find(given["task"]).place  # which is found from another folder as well
    if options.tensorboard:
        given["log"] = ",".join(dict.fromkeys((*names_of(given.get("log")), "tensorboard")))
    if options.resume is None:
        return {**defaults, **given}
    before = options_in(options.resume)
    if missing := [name for name in defaults if name not in before]:
        raise UsageError(f"--resume {options.resume}: its {OPTIONS} has no {missing[0]}")
    for one, other in EXCLUSIVE.items():
        if one in given:
            before.pop(other, None)
    return {**before, **given}


def options_in(folder: Path) -> dict[str, Any]:
    """The options that a folder was begun with.

    Raises:
        UsageError: If they are damaged.
    """
    given = read_record(folder / OPTIONS, begins=("optimizer", "optimizers"))
    if given is None:
        raise UsageError(
            f"{folder / OPTIONS} is damaged: remove it and give the whole command again with "
            f"--out {typed(folder)}, which goes on with the runs that are there"
        )
    return given


def request_of(given: dict[str, Any], *, elsewhere: bool = False) -> Request:
    """The request that options come to; `elsewhere`, the device is one of other machines."""
    lr = given.get("lr", "")
    if "optimizer" in given:  # of `deva train`: one run
        if "," in lr:
            raise UsageError(f"--lr is one rate here, got {lr}: deva compare takes several")
        if given["seed"] < 0:
            raise UsageError(f"--seed must be 0 or more, got {given['seed']}")
        optimizers, chosen = [Entrant.parse(given["optimizer"])], f"{given['seed']},"
    else:
        optimizers, chosen = entrants(given["optimizers"]), given.get("seeds", "1")
    request = Request(
        optimizers=tuple(optimizers),
        rates=tuple(text for text in lr.split(",") if text),
        seeds=seeds_of(chosen),
        device=device_of(given.get("device"), elsewhere=elsewhere),
        **{name: value for name, value in given.items() if name in _FIELDS and name not in _READ},
    )
    if "tokens" not in given:
        return request
    if not 0 < given["tokens"] < math.inf:
        raise UsageError(f"--tokens must be above 0 and finite, got {given['tokens']:g}")
    task = make_task(common(request), report=lambda text: None)  # which knows what a batch has
    steps = round(given["tokens"] / (task.units * request.accumulate))
    return replace(request, steps=max(1, steps))


def seeds_of(text: str) -> tuple[int, ...]:
    """The seeds 0 … n − 1 of a number n, or those of a list.

    >>> seeds_of("3"), seeds_of("5,7,5")
    ((0, 1, 2), (5, 7))
    """
    try:
        numbers = [int(part) for part in text.split(",") if part]
    except ValueError:
        numbers = []
    listed = "," in text
    if not numbers or min(numbers) < (0 if listed else 1):
        raise UsageError(f"--seeds is a number of seeds or a list such as 0,1,2, got {text!r}")
    return tuple(dict.fromkeys(numbers)) if listed else tuple(range(numbers[0]))


def command_line(words: Sequence[str], program: str = "deva") -> str:
    """What the user typed, to be typed again."""
    return f"{program} {shlex.join(words)}"


# --- Where runs are carried out -------------------------------------------------------------------


@contextmanager
def carrying_out(
    options: argparse.Namespace, folder: Path, shown: Display
) -> Iterator[tuple[Callable[..., list[Result]], Stopping]]:
    """`carry_out` in the way that options ask for, and whether a signal has come.

    Raises:
        UsageError: If a cluster cannot be used, for whatever can be found out before any run.
    """
    check_launcher(options)
    with ExitStack() as stack:
        cluster: Cluster | None = None
        if options.launcher == "ray":
            from ..launchers.ray_cluster import RayCluster

            cluster = stack.enter_context(RayCluster(options))
        elif options.launcher == "slurm":
            from ..launchers.slurm import SlurmCluster

            cluster = SlurmCluster(options, folder)
        stopping = stack.enter_context(Stopping())  # after Ray, which has a handler of SIGTERM, too
        how = {"jobs": options.jobs, "shown": shown, "stopping": stopping, "cluster": cluster}

        def in_rounds(runs: Sequence[RunSettings], orders: Orders) -> list[Result]:
            if cluster is None:  # as many in later rounds, of fewer runs, so that times compare
                how["jobs"] = how["jobs"] or jobs_for(runs)
            return carry_out(runs, orders, **how)

        yield in_rounds, stopping


def check_launcher(options: argparse.Namespace) -> None:
    """Raises UsageError for options that do not fit each other, or for a missing package."""
    clusters = ("ray", "slurm")
    for name, value in vars(options).items():
        shared = name in ("cpus", "gpus", "memory")
        wanted = [x for x in clusters if shared or name.startswith(f"{x}_")]
        if wanted and value is not None and options.launcher not in wanted:
            needed, got = " or ".join(wanted), options.launcher
            raise UsageError(f"--{name.replace('_', '-')} needs --launcher {needed}, got {got}")
    if options.launcher in clusters:
        require(options.launcher)
    check_least(options, cpus=1, gpus=0, memory=0, slurm_time=1)
