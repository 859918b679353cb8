"""What the commands take that train: `deva compare`, `deva train` and `deva tune`.

Options that they share, and some of which other commands have as well, come first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from ..names import LOGGERS
from ..run.settings import DTYPES, MODES, OFFERS, TUNED, default_size
from . import Commands, add_command

LAUNCHERS: Final = ("local", "ray", "slurm")
EXECUTORS: Final = ("slurm", "local")
CPUS: Final = 1
MINUTES: Final = 60
OPTIMIZERS: Final = ",".join(TUNED)  # what is compared and tuned unless told otherwise
OPTIMIZER: Final = "deva"
BUDGET: Final = 12
COMPARE = """\
Train the same model with several optimizers, from the same weights on the same batches, and write
results.jsonl, curves.png, curves.svg and report.html. Unless told otherwise it takes DeVA, Muon,
SOAP and AdamW, each with the settings and the rate that the race found best (docs/race.md).

A run that fails is a row of the table, with its error, and the others go on; the exit code is then
1, and --resume tries it again.

  deva compare
  deva compare --optimizers deva,deva:variant=factored,muon:nesterov=true
  deva compare --lr x0.3,x1,x3 --seeds 3          each optimizer is reported at its own best rate
  deva compare --data book.txt --size tiny --steps 500
  deva compare --task my_task.py                  your own model and data; see deva init-task
  deva compare --resume runs/compare-20260101-1200
  deva compare --lr x0.3,x1,x3 --seeds 5 --launcher slurm --gpus 1 --out /shared/sweep
"""
TRAIN = """\
Train one model. Checkpoints are written whole or not at all, and --resume goes on from the newest
to the same bits. SIGTERM and Ctrl-C save before they end it; a second one does not wait.

  deva train --optimizer deva:sides=short --size small --steps 2000 --out runs/first
  deva train --resume runs/first

Over several processes, on the batches of one process: --parallel under torchrun. A command that is
given again, as torchrun does when a rank has died, goes on from the last checkpoint.

  torchrun --nproc-per-node 2 --max-restarts 3 -m deva_lab train --parallel fsdp --out runs/two
"""
TUNE = """\
Find the learning rate of each optimizer on a task, by the rule of the race: three rates a factor of
two apart about the usual one, then one by one, beyond an end that is best, else into the middle of
the wider gap beside the best. Every optimizer gets as many rates as the others. At the end there is
a table, and the `deva compare` that races them at the rates found, on other seeds.

  deva tune --task my_task.py --optimizers deva,adamw --budget 12
  deva tune --task mlp --steps 100 --optimizers deva,muon,adamw --budget 15 --out runs/rates
  deva tune --resume runs/rates --budget 24       goes on with more
"""


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is trained."""
    what = parser.add_argument_group("what is trained")
    kinds = "; ".join(f"{name}: {kind.about}" for name, kind in OFFERS.items())
    own = "or your own: my_task.py, package.module:Task (see `deva init-task`)"
    what.add_argument("--task", metavar="TASK", help=f"{kinds}; {own} (gpt)")
    sizes = "; ".join(f"{name}: {', '.join(kind.presets)}" for name, kind in OFFERS.items())
    what.add_argument("--size", help=f"a preset: {sizes} ({default_size('gpt')})")
    what.add_argument(
        "--data",
        metavar="NAME|PATH",
        help="text: python (the source of the standard library), fineweb, fineweb-edu, or a file "
        "or folder of txt, jsonl, parquet or token shards; images: digits, cifar10, imagenet-1k, "
        "or a folder (python; digits)",
    )
    what.add_argument(
        "--vocabulary", metavar="N|gpt2", help="token ids of a byte-level BPE, or GPT-2's"
    )
    how = parser.add_argument_group("how long and how")
    length = how.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help="steps of the optimizer (the preset's)")
    length.add_argument("--tokens", type=float, help="the same in tokens, images or samples")
    how.add_argument("--batch", type=int, help="sequences, images or samples in a batch")
    how.add_argument("--accumulate", type=int, help="batches in a step (1)")
    how.add_argument("--warmup", type=float, help="share of the steps in which the rate rises (0)")
    how.add_argument("--decay", type=float, help="share in which it falls to zero (0.4)")
    how.add_argument("--clip", type=float, help="greatest norm of the gradient (0: none)")
    how.add_argument("--evaluate-every", type=int, metavar="STEPS", help="(a tenth of the steps)")
    where = parser.add_argument_group("on what")
    where.add_argument("--device", help="cpu, cuda, cuda:1, mps (the accelerator, if there is one)")
    where.add_argument("--dtype", choices=DTYPES, help="of products (float32)")
    where.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=None, help="torch.compile"
    )


def add_output(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add the options that say where things go."""
    out = parser.add_argument_group("where it goes")
    out.add_argument("--out", type=Path, metavar="DIR", help=f"(runs/{kind}-DATE-TIME)")
    out.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="take options from a file, such as the options.json of another DIR; those given here "
        "win",
    )
    out.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on with what is in DIR, with its options where none are given here",
    )
    out.add_argument(
        "--save-every", type=float, default=60.0, metavar="SECONDS", help="checkpoints (60)"
    )
    out.add_argument(
        "--log",
        "--log-to",  # for torchrun, which takes --log for an option of its own
        metavar="LIST",
        help=f"{', '.join(LOGGERS)}: log curves, telemetry and settings there as well, a run each "
        "(none)",
    )
    out.add_argument("--tensorboard", action="store_true", help="short for --log tensorboard")


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


def add_compare(commands: Commands) -> None:
    """Add `deva compare`."""
    parser = add_command(
        commands,
        "compare",
        help="several optimizers on the same task, and a report",
        description=COMPARE,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument(
        "--optimizers",
        metavar="LIST",
        help=f"names with settings, see `deva methods` ({OPTIMIZERS})",
    )
    parser.add_argument(
        "--lr", metavar="LIST", help="rates for all, or x0.5,x1,x2: multiples of each one's usual"
    )
    parser.add_argument("--seeds", metavar="N|LIST", help="how many, or which (1)")
    parser.add_argument("--baseline", metavar="NAME", help="whose final loss is the target (adamw)")
    parser.add_argument(
        "--telemetry",
        type=int,
        metavar="STEPS",
        help="keep what the optimizers did every so many steps, for the page (none)",
    )
    add_training(parser)
    add_launching(parser)
    add_output(parser, "compare")


def add_train(commands: Commands) -> None:
    """Add `deva train`."""
    parser = add_command(
        commands,
        "train",
        help="one run, with checkpoints",
        description=TRAIN,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument("--optimizer", metavar="NAME[:SETTINGS]", help=f"({OPTIMIZER})")
    parser.add_argument("--lr", help="learning rate (the optimizer's usual one)")
    parser.add_argument("--seed", type=int, help="of weights and batches (0)")
    parser.add_argument(
        "--parallel",
        choices=MODES,
        help="train over the ranks of torchrun: ddp, each with the whole model; fsdp, each with a "
        "shard of it; hsdp, copies in shards (a copy a node, two on a single one)",
    )
    add_training(parser)
    add_output(parser, "train")


def add_tune(commands: Commands) -> None:
    """Add `deva tune`."""
    parser = add_command(
        commands,
        "tune",
        help="the learning rate of each optimizer on a task",
        description=TUNE,
        needs=("numpy", "matplotlib"),
    )
    parser.add_argument(
        "--optimizers",
        metavar="LIST",
        help=f"names with settings, see `deva methods`; an lr=… is where to begin ({OPTIMIZERS})",
    )
    parser.add_argument(
        "--budget",
        type=int,
        metavar="RUNS",
        help=f"runs in all, the same number for each optimizer ({BUDGET})",
    )
    parser.add_argument("--seeds", metavar="N|LIST", help="on which each rate is tried (1)")
    add_training(parser)
    add_launching(parser)
    add_output(parser, "tune")
