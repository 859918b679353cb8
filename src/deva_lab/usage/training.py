"""The options that `deva compare` and `deva train` share."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..names import LOGGERS
from ..run.settings import DTYPES, OFFERS, default_size


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is trained."""
    what = parser.add_argument_group("what is trained")
    kinds = "; ".join(f"{name}: {kind.about}" for name, kind in OFFERS.items())
    own = "or your own: my_task.py, package.module:Task (see `deva init-task`)"
    what.add_argument("--task", metavar="TASK", help=f"{kinds}; {own} (gpt)")
    what.add_argument("--size", help=f"a preset: {sizes()} ({default_size('gpt')})")
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


def sizes() -> str:
    """The sizes of every task, for the help."""
    return "; ".join(f"{name}: {', '.join(kind.presets)}" for name, kind in OFFERS.items())
