"""What an experiment would do, without doing it: its runs, their sizes and their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from ..carry_out import finished
from ..data.images import SHAPES
from ..models.gpt import GPT, SIZES
from ..settings import RunSettings
from ..vision import build_model
from ..wording import count
from . import Scale
from .experiment import Experiment
from .trained import Trained, runs_of

GPT2_IDS = 50_257


def dry_run(
    experiments: Sequence[Experiment | Trained], scale: Scale, folder: Path, data: str | None
) -> str:
    """Every run that `deva reproduce` would carry out, those that are done already marked."""
    trained = [one for one in experiments if isinstance(one, Trained)]
    runs = runs_of(trained, scale, data)
    done = {result["id"] for result in finished(folder, runs)}
    lines = [f"{one.id}: computed, no training" for one in experiments if one not in trained]
    for one in trained:
        own = runs_of([one], scale, data)
        lines.append(f"{one.id}: {len(own)} runs, {count(sum(map(units, own)))} {unit(own[0])}")
    lines += ["", *(_line(run, run.id in done) for run in runs)] if runs else []
    if runs:
        left = len(runs) - len(done)
        lines += ["", f"{len(runs)} different runs, {left} to do; {_sizes(runs)}"]
    return "\n".join(lines)


def units(run: RunSettings) -> int:
    """The tokens or images that a run trains on."""
    context = SIZES[run.size].context if run.task == "gpt" else 1
    return run.steps * run.accumulate * run.batch * context


def unit(run: RunSettings) -> str:
    """What they are."""
    return "tokens" if run.task == "gpt" else "images"


def parameters(run: RunSettings) -> int | None:
    """The parameters of a run's model, without making them; None if its data decides."""
    if run.task != "gpt" and run.data not in SHAPES:
        return None
    with torch.device("meta"):
        model = _model(run)
    return sum(parameter.numel() for parameter in model.parameters())


def _model(run: RunSettings) -> nn.Module:
    if run.task != "gpt":
        return build_model(run.task, run.size, SHAPES[run.data])
    vocabulary = GPT2_IDS if run.vocabulary == "gpt2" else int(run.vocabulary)
    return GPT(SIZES[run.size], vocabulary)


def _line(run: RunSettings, done: bool) -> str:
    batch = f"{run.batch} × {run.accumulate}" if run.accumulate > 1 else f"{run.batch}"
    return (
        f"  {run.optimizer}  lr {run.lr:g}  seed {run.seed}  {run.steps} steps of {batch}  "
        f"{count(units(run))} {unit(run)}" + "  (done)" * done
    )


def _sizes(runs: Sequence[RunSettings]) -> str:
    models = {(run.task, run.size, run.data, run.vocabulary): run for run in runs}
    texts = []
    for run in models.values():
        number = parameters(run)
        size = "" if number is None else f", {number:,} parameters"
        texts.append(f"{run.task} {run.size} on {run.data}{size}")
    return "; ".join(texts)
