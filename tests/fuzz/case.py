"""What a case is: plain frozen data that prints as the expression that makes it again.

A case says everything about a run: parameters, groups, gradients of every step, and what happens
between the steps. Numbers that are drawn come from the seeds that it holds, one for each parameter
and step, so that a case can lose steps and parameters without the others changing.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import torch

Event = tuple[Any, ...]


class Spelled:
    """A dataclass that prints the fields that differ from their defaults, and no others."""

    def __repr__(self) -> str:
        given = []
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            default = f.default if f.default_factory is MISSING else f.default_factory()
            if default is MISSING or value != default:
                given.append(f"{f.name}={value!r}")
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class Param(Spelled):
    """A parameter: its shape, dtype, group and layout in memory; zero, or drawn with its seed."""

    shape: tuple[int, ...] = (3, 3)
    dtype: torch.dtype = torch.float32
    group: int = 0
    layout: str = "plain"  # of LAYOUTS
    zero: bool = False
    seed: int = 0


@dataclass(frozen=True, repr=False)
class Group(Spelled):
    """The options of a parameter group; `tensor_lr` gives its learning rate as a 0-D tensor."""

    options: dict[str, Any] = field(default_factory=dict)
    tensor_lr: bool = False


@dataclass(frozen=True, repr=False)
class Grad(Spelled):
    """A gradient: what it looks like, the size of its largest entry, its layout and dtype."""

    kind: str = "normal"  # of KINDS
    scale: float = 1.0
    layout: str = "plain"  # of LAYOUTS
    dtype: torch.dtype | None = None  # that of the parameter, unless given


@dataclass(frozen=True, repr=False)
class Step(Spelled):
    """The events before a step, the gradient of each parameter, and how often it is repeated.

    Events:
        ("save",)               a twin goes on from a file
        ("deepcopy",)           a twin goes on from a deep copy
        ("telemetry",)          is asked for
        ("averaged",)           averaged weights are shown, if there are any, and taken back
        ("set", g, key, value)  an option of group g changes
        ("add", g)              group g joins, which was not there until now
        ("freeze", i)           parameter i has no gradient any more
        ("thaw", i)             and has one again
    """

    grads: tuple[Grad, ...] = ()
    events: tuple[Event, ...] = ()
    repeat: int = 1
    seed: int = 0


@dataclass(frozen=True, repr=False)
class Case(Spelled):
    """A run of an optimizer of the table `OPTIMIZERS`, and the twins that it is compared with.

    Attributes:
        path: "host", or "device" for the way of accelerators, taken on the CPU.
        small: Whether the sizes from which on work is cut into pieces are tiny.
        twins: Of TWINS; one is compared where `comparison` says that it can be.
    """

    optimizer: str
    params: tuple[Param, ...] = (Param(),)
    groups: tuple[Group, ...] = (Group(),)
    steps: tuple[Step, ...] = (Step(),)
    path: str = "host"
    small: bool = False
    twins: tuple[str, ...] = ()


TWINS = ("one-by-one", "other-path", "mirror", "spared")
