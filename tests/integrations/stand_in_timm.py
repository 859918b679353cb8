"""The part of timm's published interface (1.0.31) that the integration and its users touch.

timm needs torchvision, which the tests do without. Names, arguments, defaults and the keys of
groups are timm's; what is behind them is as short as can be.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from torch import nn


@dataclass(frozen=True)
class OptimInfo:
    name: str
    opt_class: Any
    description: str = ""
    has_eps: bool = True
    has_momentum: bool = False
    has_betas: bool = False
    num_betas: int = 2
    second_order: bool = False
    defaults: dict[str, Any] | None = None


class OptimizerRegistry:
    def __init__(self) -> None:
        self.infos: dict[str, OptimInfo] = {}
        self.overwritten: list[str] = []  # timm writes a warning to its log

    def register(self, info: OptimInfo) -> None:
        self.overwritten += [info.name] if info.name in self.infos else []
        self.infos[info.name.lower()] = info

    def list_optimizers(self) -> list[str]:
        return sorted(self.infos)

    def get_optimizer_info(self, name: str) -> OptimInfo:
        return self.infos[name.lower()]


default_registry = OptimizerRegistry()


def exempt(name: str, p: nn.Parameter, listed: Any) -> bool:
    return p.ndim <= 1 or name in listed


def param_groups_weight_decay(
    model: nn.Module,
    weight_decay: float = 1e-5,
    no_weight_decay_list: Any = (),
    fallback_list: Any = (),
) -> list[dict[str, Any]]:
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            key = (exempt(name, p, no_weight_decay_list), name in fallback_list)
            group = {"params": [], "weight_decay": 0.0 if key[0] else weight_decay}
            group |= {"use_fallback": True} if key[1] else {}
            groups.setdefault(key, group)["params"].append(p)
    return list(groups.values())


def param_groups_layer_decay(
    model: nn.Module,
    weight_decay: float = 0.05,
    no_weight_decay_list: Any = (),
    fallback_list: Any = (),
    layer_decay: float = 0.75,
    min_scale: float = 0.0,
    no_opt_scale: float | None = None,
) -> list[dict[str, Any]]:
    """Without a `group_matcher` a layer is twelve tensors of the trunk, and the head the last."""
    head = model.pretrained_cfg["classifier"]
    trunk = [name for name, _ in model.named_parameters() if not name.startswith(head)]
    last = -(-len(trunk) // 12)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, p in model.named_parameters():
        layer = trunk.index(name) // 12 if name in trunk else last
        scale = max(min_scale, layer_decay ** (last - layer))
        if not p.requires_grad:
            continue
        if no_opt_scale and scale < no_opt_scale:
            p.requires_grad = False
            continue
        key = (layer, exempt(name, p, no_weight_decay_list), name in fallback_list)
        decay = 0.0 if key[1] else weight_decay
        group = {"lr_scale": scale, "weight_decay": decay, "params": []}
        group |= {"use_fallback": True} if key[2] else {}
        groups.setdefault(key, group)["params"].append(p)
    return list(groups.values())


def create_optimizer_v2(
    model: nn.Module,
    opt: str = "sgd",
    lr: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    foreach: bool | None = None,
    fallback_list: Any = (),
    layer_decay: float | None = None,
    param_group_fn: Callable[[nn.Module], Any] | None = None,
    **kwargs: Any,
) -> Any:
    info = default_registry.get_optimizer_info(opt.lower().split("_")[-1])
    listed = getattr(model, "no_weight_decay", set)()
    shared: dict[str, Any] = {"no_weight_decay_list": listed, "fallback_list": fallback_list}
    if param_group_fn is not None:
        groups = param_group_fn(model)
    else:
        if layer_decay is None:
            groups = param_groups_weight_decay(model, weight_decay, **shared)
        else:
            groups = param_groups_layer_decay(
                model, weight_decay, layer_decay=layer_decay, **shared
            )
        weight_decay = 0.0
    options: dict[str, Any] = {"weight_decay": weight_decay, **kwargs}
    options |= {} if lr is None else {"lr": lr}
    options |= {} if foreach is None else {"foreach": foreach}
    if info.has_momentum:
        options.setdefault("momentum", momentum)
    for key, has in (("eps", info.has_eps), ("betas", info.has_betas)):
        if not has:
            options.pop(key, None)
    return info.opt_class(groups, **options)


class Scheduler:
    """timm's schedulers: the rate of a group is multiplied by its `lr_scale`."""

    def __init__(self, optimizer: Any, param_group_field: str) -> None:
        self.optimizer, self.field = optimizer, param_group_field
        for group in optimizer.param_groups:
            group.setdefault(f"initial_{self.field}", group[self.field])
        self.update_groups([group[self.field] for group in optimizer.param_groups])

    def update_groups(self, values: list[float]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            group[self.field] = value * group.get("lr_scale", 1.0)


@contextmanager
def installed() -> Iterator[None]:
    """`import timm.optim` finds this module inside the block."""
    here = sys.modules[__name__]
    package = ModuleType("timm")
    package.optim = here  # type: ignore[attr-defined]
    names = ("optim", "optim._optim_factory", "scheduler", "scheduler.scheduler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "timm", package)
        for name in names:
            patch.setitem(sys.modules, f"timm.{name}", here)
        yield
