"""torchtitan: its container of optimizers, with ours by name and the roles of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from torch import nn
from torch.optim import Optimizer
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

from ..optimizer import BaseOptimizer
from ..optimizers import CLASSES as ALL_CLASSES
from ..routing.groups import cut_by_role

CLASSES: Final[dict[str, type[BaseOptimizer]]] = {
    cls.__name__: cls for cls in ALL_CLASSES if cls.__name__ != "AdamW"
}
"""What `ParamGroupConfig.optimizer_name` may be, besides torchtitan's own names, such as AdamW."""


class Optimizers(OptimizersContainer):  # type: ignore[misc]  # Any, where torchtitan is not
    """torchtitan's container, which also makes the optimizers of this library.

    torchtitan cuts the model by patterns and makes an optimizer of each name from tensors and their
    names. Each of its groups is cut further here by what the parameters are, as
    `deva_optim.param_groups` finds it from the modules of the model. A group whose
    `optimizer_kwargs` have a `role` stays as it is. What `optimizer_kwargs` set holds for every
    parameter of the group, a weight decay for norms included; what
    `optimizer_factory_kwargs_by_name` sets are the defaults, as in `DeVA(model, weight_decay=0.1)`.

    `implementation="foreach"` and `"for-loop"` mean `foreach=True` and `False`; `"fused"`, which is
    torchtitan's default, leaves the choice to the optimizer.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):  # type: ignore[misc]
        """torchtitan's own, for `Trainer.Config(optimizer=…)`."""

    def __init__(self, config: Any, *, model_parts: list[nn.Module]) -> None:
        ours = [x for x in config.param_groups if x.optimizer_name in CLASSES]
        if ours and config.implementation == "fused_opt_states_bf16":
            raise ValueError(
                "implementation='fused_opt_states_bf16' is for Adam and AdamW alone, got it with "
                f"{ours[0].optimizer_name}; take another one, and for a state in bfloat16 "
                "optimizer_kwargs={'state_dtype': torch.bfloat16}"
            )
        super().__init__(config, model_parts=model_parts)

    def _resolve_optimizer_factory(self, name: str) -> Callable[..., Optimizer]:
        if name in CLASSES:
            return partial(_make, CLASSES[name], self.model_parts)
        theirs: Callable[..., Optimizer] = super()._resolve_optimizer_factory(name)
        return theirs

    def _log_optimizer(self, optimizer: Optimizer, part_idx: int, patterns: list[str]) -> None:
        if isinstance(optimizer, BaseOptimizer):  # its groups are not those of the patterns
            patterns = [group.get("name", "") for group in optimizer.param_groups]
        super()._log_optimizer(optimizer, part_idx, patterns)


def default_deva(lr: float = 1e-3, *, name: str = "DeVA", **options: Any) -> Optimizers.Config:
    """The configuration with one optimizer for everything, as torchtitan's `default_adamw`.

        Trainer.Config(optimizer=default_deva(lr=8e-4), …)

    Args:
        lr: Learning rate.
        name: One of `CLASSES`.
        options: Other options of the optimizer. Biases and norms are not decayed.
    """
    return Optimizers.Config(
        param_groups=[ParamGroupConfig(pattern=r".*", optimizer_name=name)],
        optimizer_factory_kwargs_by_name={name: {"lr": lr, **options}},
    )


def _make(
    cls: type[BaseOptimizer],
    model_parts: list[nn.Module],
    groups: list[dict[str, Any]],
    **options: Any,
) -> BaseOptimizer:
    """The optimizer of torchtitan's groups, cut by the roles that the modules give."""
    found: list[dict[str, Any]] = []
    for group, route, pairs in cut_by_role(groups, model_parts):
        given = {
            key: x for key, x in group.items() if key not in ("params", "param_names", "fused")
        }
        if group.get("fused"):  # torchtitan's foreach=False then means that fused is meant
            given["foreach"] = None
        found.append({**({} if "role" in given else route), **given, "params": pairs})
    made: Any = cls
    optimizer: BaseOptimizer = made(found, **options)
    return optimizer
