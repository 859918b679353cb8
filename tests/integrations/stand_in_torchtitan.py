"""The part of torchtitan's published interface (0.3.0) that the integration and its users touch.

torchtitan asks for an older `datasets` than the tests use. Names, arguments, the order in which
the container calls its hooks and the form of its checkpoints are torchtitan's; the rest is short.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


@dataclass(kw_only=True, slots=True)
class ParamGroupConfig:
    pattern: str
    optimizer_name: str
    optimizer_kwargs: dict[str, Any] = field(default_factory=dict)


class OptimizersContainer(Optimizer):
    @dataclass(kw_only=True, slots=True)
    class Config:
        param_groups: list[ParamGroupConfig] = field(default_factory=list)
        implementation: str = "fused"
        optimizer_factory_kwargs_by_name: dict[str, dict[str, Any]] = field(default_factory=dict)
        _owner: ClassVar[Any] = None

        def build(self, **kwargs: Any) -> Any:
            return self._owner(config=self, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.Config._owner = cls

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Any:
        if name != "AdamW":
            raise NotImplementedError(name)
        return torch.optim.AdamW

    def __init__(self, config: Any, *, model_parts: list[nn.Module]) -> None:
        kind = config.implementation
        self.optimizers: list[Optimizer] = []
        self.model_parts = model_parts
        everything = []
        for i, model in enumerate(model_parts):
            groups: dict[str, list[dict[str, Any]]] = {}
            patterns: dict[str, list[str]] = {}
            claimed: set[str] = set()
            for entry in config.param_groups:
                named = {
                    name: p
                    for name, p in model.named_parameters()
                    if p.requires_grad and name not in claimed and re.search(entry.pattern, name)
                }
                claimed |= named.keys()
                group = {"params": [*named.values()], "param_names": [*named]}
                group |= {"fused": kind.startswith("fused"), "foreach": kind == "foreach"}
                group |= entry.optimizer_kwargs
                groups.setdefault(entry.optimizer_name, []).append(group)
                patterns.setdefault(entry.optimizer_name, []).append(entry.pattern)
            for name, own in groups.items():
                options = config.optimizer_factory_kwargs_by_name.get(name, {})
                optimizer = self._resolve_optimizer_factory(name)(own, **options)
                self.optimizers.append(optimizer)
                self._log_optimizer(optimizer, i, patterns[name])
                everything += [p for group in own for p in group["params"]]
        parts = [p for model in model_parts for p in model.parameters() if p.requires_grad]
        assert {*map(id, parts)} == {*map(id, everything)}
        Optimizer.__init__(self, everything, {})

    def _log_optimizer(self, optimizer: Optimizer, part_idx: int, patterns: list[str]) -> None:
        self.logged = [*zip(optimizer.param_groups, patterns, strict=False)]

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self.optimizers)

    def __len__(self) -> int:
        return len(self.optimizers)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Flat: `state.NAME.KEY` and `param_groups.NAME.KEY`."""
        flat: dict[str, Any] = {}
        for optimizer in self.optimizers:
            _make_state(optimizer)
            state = optimizer.state_dict()
            for group in state["param_groups"]:
                for i, name in zip(group["params"], group["param_names"], strict=True):
                    options = {k: x for k, x in group.items() if k not in ("params", "param_names")}
                    flat |= {f"param_groups.{name}.{k}": x for k, x in options.items()}
                    flat |= {f"state.{name}.{k}": x for k, x in state["state"].get(i, {}).items()}
        return flat

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for optimizer in self.optimizers:
            _make_state(optimizer)
            state: dict[int, Any] = {}
            groups = []
            for group in optimizer.param_groups:
                numbers = range(len(state), len(state) + len(group["params"]))
                for i, p, name in zip(numbers, group["params"], group["param_names"], strict=True):
                    keys = optimizer.state[p]
                    state[i] = {key: state_dict[f"state.{name}.{key}"] for key in keys}
                first = group["param_names"][0]
                options = {
                    key: state_dict[f"param_groups.{first}.{key}"]
                    for key in group
                    if key not in ("params", "param_names")
                }
                groups.append({"params": [*numbers], **options})
            optimizer.load_state_dict({"state": state, "param_groups": groups})


OptimizersContainer.Config._owner = OptimizersContainer


def _make_state(optimizer: Optimizer) -> None:
    """State by a step of rate zero on gradients of zero, where there is none."""
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()


class LRSchedulersContainer:
    def __init__(self, optimizers: OptimizersContainer, lr_lambda: Any) -> None:
        self.schedulers = [LambdaLR(optimizer, lr_lambda) for optimizer in optimizers]

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()


@contextmanager
def installed() -> Iterator[None]:
    """`import torchtitan.components.optimizer` finds this module inside the block."""
    here = sys.modules[__name__]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("torchtitan", "torchtitan.components"):
            patch.setitem(sys.modules, name, ModuleType("torchtitan"))
        patch.setitem(sys.modules, "torchtitan.components.optimizer", here)
        yield
