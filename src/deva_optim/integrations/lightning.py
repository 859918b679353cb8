"""Lightning: a callback that logs telemetry, and a command line that gives optimizers the model."""

from __future__ import annotations

from types import MethodType
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import (
    LightningArgumentParser,
    LightningCLI,
    LRSchedulerTypeTuple,
    instantiate_class,
)
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch.optim import Optimizer

from ..optimizer import BaseOptimizer
from ..telemetry import check_every, finite_scalars


class TelemetryCallback(Callback):
    """Logs `optimizer.telemetry()` to all loggers of the Trainer.

    The optimizer records as often as the callback logs, so that the numbers of a matrix are fewer
    than `every` steps old. They go to the loggers directly: the Trainer's `log_every_n_steps` takes
    none of them away. With several of our optimizers the names begin with their places, such as
    `1/gamma_mean/layers.0.weight`.

        Trainer(callbacks=[TelemetryCallback(every=100)])

    Args:
        every: Optimizer steps between two entries. Accumulated batches count as one step.
    """

    def __init__(self, every: int = 100) -> None:
        check_every(every)
        self.every = every
        self._entries = 0  # of the steps so far, how many times `every`

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set how often the optimizers record, or say that there is nothing to log."""
        ours = _ours(trainer)
        if not ours:
            kinds = ", ".join(type(_unwrapped(x)).__name__ for x in trainer.optimizers) or "none"
            raise MisconfigurationException(
                f"TelemetryCallback needs an optimizer of deva_optim, the Trainer has {kinds}; "
                "leave the callback out"
            )
        if not trainer.loggers:
            raise MisconfigurationException(
                "TelemetryCallback needs a logger, the Trainer has none; give it one with "
                "Trainer(logger=…), or leave the callback out"
            )
        for optimizer in ours.values():
            optimizer.telemetry_every = self.every
        self._entries = trainer.global_step // self.every

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if that many optimizer steps have been taken since the last entry."""
        entries = trainer.global_step // self.every
        if entries == self._entries:
            return
        self._entries = entries
        ours = _ours(trainer)
        found: dict[str, float] = {}
        for place, optimizer in ours.items():
            prefix = f"{place}/" if len(ours) > 1 else ""
            # Where ranks share parameters all of them must ask; the loggers are silent on the rest.
            rows = finite_scalars(optimizer.telemetry())
            found |= {prefix + tag: x for tag, x in rows.items()}
        for logger in trainer.loggers:
            logger.log_metrics(found, step=trainer.global_step)


class CLI(LightningCLI):
    """LightningCLI whose `--optimizer` gets the model, if it is one of ours.

    LightningCLI gives `self.model.parameters()` to the optimizer, bare tensors of which only the
    shapes are known. This one makes the optimizer when the Trainer asks for it, from the model;
    optimizers of others get the parameters. All arguments, and `configure_optimizers`, are those of
    LightningCLI.

        CLI(MyModule, MyData)  # … fit --optimizer deva_optim.DeVA --optimizer.lr 1e-3
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not kwargs.setdefault("auto_configure_optimizers", True):
            raise ValueError(
                "auto_configure_optimizers=False leaves nothing for this class to do; use "
                "LightningCLI, and DeVA(self, …) in configure_optimizers"
            )
        kwargs["auto_configure_optimizers"] = False  # it would make the optimizer from tensors
        super().__init__(*args, **kwargs)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add `--optimizer` and `--lr_scheduler` besides the arguments of the core classes."""
        super().add_core_arguments_to_parser(parser)
        as_given: dict[str, Any] = {"instantiate": False, "fail_untyped": False}
        parser.add_subclass_arguments((Optimizer,), "optimizer", skip={"params"}, **as_given)
        parser.add_subclass_arguments(
            LRSchedulerTypeTuple, "lr_scheduler", skip={"optimizer"}, **as_given
        )

    def instantiate_classes(self) -> None:
        """Make model, data and Trainer; the model makes the optimizer when it is asked to."""
        super().instantiate_classes()
        config = self.config_init[self.subcommand] if self.subcommand else self.config_init
        chosen, schedule = config.get("optimizer"), config.get("lr_scheduler")
        if not chosen:
            return

        def configure_optimizers(module: LightningModule) -> Any:
            optimizer = _instantiate(module, chosen)
            scheduler = instantiate_class(optimizer, schedule) if schedule else None
            return self.configure_optimizers(module, optimizer, scheduler)

        self.model.configure_optimizers = MethodType(configure_optimizers, self.model)


def _instantiate(module: LightningModule, chosen: Any) -> Optimizer:
    """The optimizer of the command line, made from the module if it can take one."""
    path, _, name = chosen["class_path"].rpartition(".")
    cls = getattr(__import__(path, fromlist=[name]), name)
    takes_model = isinstance(cls, type) and issubclass(cls, BaseOptimizer)
    made: Optimizer = instantiate_class(module if takes_model else module.parameters(), chosen)
    return made


def _unwrapped(optimizer: Any) -> Any:
    return optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer


def _ours(trainer: Trainer) -> dict[int, BaseOptimizer]:
    """The optimizers of this library, by their places among those of the Trainer."""
    found = {i: _unwrapped(x) for i, x in enumerate(trainer.optimizers)}
    return {i: x for i, x in found.items() if isinstance(x, BaseOptimizer)}
