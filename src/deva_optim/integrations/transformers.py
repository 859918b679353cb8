"""For the Trainer of Transformers, and those of TRL: the optimizer, and a callback for telemetry.

trainer = Trainer(model, args, optimizer_cls_and_kwargs=optimizer(DeVA, args), …)
trainer.add_callback(TelemetryCallback(trainer))

Of TRL's, SFTTrainer and RewardTrainer alone take the argument. For the others, such as DPOTrainer:

trainer = DPOTrainer(model, args=args, …)
trainer.optimizer_cls_and_kwargs = optimizer(DeVA, args)
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

from ..optimizer import BaseOptimizer
from ..optimizers.vector import AdamW
from ..telemetry import check_every, finite_scalars
from .accelerate import unwrap

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

Build = Callable[..., BaseOptimizer]
Groups = Callable[[nn.Module], Iterable[dict[str, Any]]]


def optimizer(
    cls: Build, args: TrainingArguments, *, groups: Groups | None = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """What the Trainer takes as `optimizer_cls_and_kwargs`: it makes the optimizer from the model.

    The Trainer asks for the optimizer when it starts to train, and gives it the model with all its
    modules, so that embeddings and heads are known. It does so for FSDP2, too, where it refuses
    optimizers that were made before.

    Of the arguments these are read, at that time, so that a search over them has its effect:

    - `learning_rate` is `lr`, and `weight_decay` is `weight_decay`, also where they are the
      Trainer's defaults, 5e-5 and 0. Biases, norms and scalars are not decayed.
    - `adam_beta1`, `adam_beta2` and `adam_epsilon` are `betas` and `eps` of `AdamW`. For another
      class they are not read, because its β and ε mean something else. A warning says so if they
      are not the Trainer's defaults.

    `optim` and `optim_args` are not read, and a warning says so if there are `optim_args`. The
    schedule, clipping, accumulation and checkpoints are the Trainer's own.

    Args:
        cls: The class, such as `DeVA` or `Muon`.
        args: The `TrainingArguments` of the same Trainer, or a class of TRL derived from them.
        groups: From the model to parameter groups, where `cls(model)` is not what is wanted:
            `lambda model: param_groups(model, overrides=[…])`.
        **options: Options of the class, which win over what the arguments say.
    """

    def make(model: nn.Module, **options: Any) -> BaseOptimizer:
        params = model if groups is None else groups(model)
        return cls(params, **{**_options(cls, args), **options})

    return lambda: make, options


def _options(cls: Build, args: TrainingArguments) -> dict[str, Any]:
    found: dict[str, Any] = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
    unread = {"optim_args"}
    if cls is AdamW:
        found |= {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    else:
        unread |= {"adam_beta1", "adam_beta2", "adam_epsilon"}
    for field in fields(args):
        value = getattr(args, field.name)
        if field.name in unread and value != field.default:
            warnings.warn(
                f"{field.name}={value!r} of the training arguments is not read for "
                f"{getattr(cls, '__name__', cls)}; give the option itself, as in "
                "optimizer(cls, args, betas=…, eps=…)",
                stacklevel=2,
            )
    return found


class TelemetryCallback(TrainerCallback):
    r"""Logs `optimizer.telemetry()` to all that the Trainer reports to.

    Callbacks of the Trainer are not told who else listens, so this one is given the Trainer:

        trainer.add_callback(TelemetryCallback(trainer, every=100))

    Each row is of the step that it is logged for. That step is recorded, whatever `telemetry_every`
    says; of a matrix that took no step in it, for want of a finite gradient, only the number of
    `skipped` steps is logged. What is not finite is left out. The rows go to the callbacks that
    `report_to` names and to those of the user. They are neither printed nor kept in
    `trainer_state.json`, since a model of a few hundred matrices has more than a thousand numbers.

    Args:
        trainer: The Trainer whose optimizer and loggers are meant.
        every: Log the steps that this number divides, above 0.
        only: A regular expression; tags in which it is not found are left out. A tag is the
            quantity and the name: `update_ratio/model.layers.0.mlp.up_proj.weight`.
    """

    def __init__(self, trainer: Trainer, *, every: int = 100, only: str = "") -> None:
        check_every(every)
        self.trainer, self.every, self.only = trainer, every, re.compile(only)
        self._interval = 0
        self._before: dict[str, dict[str, float]] | None = None
        self._row: dict[str, float] = {}

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Have the step recorded if it is one to be logged."""
        if (state.global_step + 1) % self.every == 0:
            ours = unwrap(kwargs["optimizer"])
            self._before, self._interval = ours.telemetry(), ours.telemetry_every
            ours.telemetry_every = 1

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Read what it has left behind; the step is counted, and its gradients cleared, later."""
        if self._before is None:
            return
        ours, before, self._before = unwrap(kwargs["optimizer"]), self._before, None
        ours.telemetry_every = self._interval
        now = ours.telemetry()
        fresh = {name: _changed(row, before.get(name, {})) for name, row in now.items()}
        self._row = {tag: x for tag, x in finite_scalars(fresh).items() if self.only.search(tag)}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the row to the loggers.

        They are called one by one: `Trainer.log` would print the row, and it takes back the
        request for the Trainer's own row of the same step.
        """
        row, self._row = self._row, {}
        for callback in self.trainer.callback_handler.callbacks if row else ():
            if not _prints(callback):
                callback.on_log(args, state, control, logs=dict(row), **kwargs)


def _changed(row: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """The row if it is a new one; else what it says of now, the number of skipped steps."""
    skipped = {"skipped": row["skipped"]}
    return row if row != {**before, **skipped} else skipped


def _prints(callback: TrainerCallback) -> bool:
    """Whether it writes to the console; TRL and notebooks have progress bars of their own."""
    known = isinstance(callback, (PrinterCallback, ProgressCallback))
    return known or "Progress" in type(callback).__name__
