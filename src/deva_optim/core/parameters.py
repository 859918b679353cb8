"""How each parameter of an optimizer is read: its name, its method and its matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from .linalg import compute_dtype
from .matrices import Part, matrices, whole
from .methods import METHODS, Method, method_of

STRUCTURE: Final = (
    *("method", "variant", "rest", "role", "layout", "split", "split_dim"),
    *("state_dtype", "param_names"),
)
"""The options of a group that decide how its parameters are read."""


@dataclass(slots=True)
class Reading:
    """A parameter of the optimizer, and how it is read.

    Attributes:
        place: Which of the parameters of the optimizer it is.
        is_rest: Whether it gets the method for the rest, in an optimizer of matrices.
        is_matrix: Whether it is made of matrices; the rest is updated entry by entry.
        is_one: Whether the norm of its gradient is that of a single matrix, or of no matrix at all.
        suffixes: What the names of the state of each part end in.
        dtype: The precision of the computation.
        names: For each part, the names in the state of what a step works on; None before the first.
        range: The dtype whose range the state has: that of the computation, or a narrower one.
    """

    place: int
    group: dict[str, Any]
    param: Tensor
    name: str
    method: Method
    parts: tuple[Part, ...]
    is_rest: bool
    is_matrix: bool = field(init=False)
    is_one: bool = field(init=False)
    suffixes: tuple[str, ...] = field(init=False)
    dtype: torch.dtype = field(init=False)
    range: torch.dtype = field(init=False)
    names: list[dict[str, str]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.is_matrix = self.method.vector is not None
        self.is_one = not self.is_matrix or (len(self.parts) == 1 and len(self.parts[0].shape) == 2)
        several = len(self.parts) > 1
        self.suffixes = tuple(f".{i}" if several else "" for i in range(len(self.parts)))
        self.dtype = compute_dtype(self.param)
        narrow = self.group["state_dtype"] in (torch.float32, torch.bfloat16, "int8")
        self.range = torch.float32 if narrow else self.dtype


def read(groups: list[dict[str, Any]], methods: Mapping[str, Method] = METHODS) -> list[Reading]:
    """The parameters of the groups, in their order; their methods are looked up in the table."""
    members = (
        (group, p, name)
        for i, group in enumerate(groups)
        for p, name in zip(group["params"], _names(group, i), strict=True)
    )
    return [
        Reading(place, group, p, name, *_read(p, group, name, methods))
        for place, (group, p, name) in enumerate(members)
    ]


def _read(
    param: Tensor, group: dict[str, Any], name: str, methods: Mapping[str, Method]
) -> tuple[Method, tuple[Part, ...], bool]:
    """The method for a parameter, the parts it is read as, and whether that is for the rest."""
    method, shape = method_of(group, methods), tuple(param.shape)
    if method.vector is None:
        return method, (whole(shape),), False
    if pieces := matrices(shape, group, name):
        return method, pieces, False
    return methods[group["rest"]], (whole(shape),), True


def _names(group: dict[str, Any], index: int) -> Sequence[str]:
    """The names of a group's parameters, or where to find them."""
    names: list[str] | None = group.get("param_names")
    return names or _places(index, len(group["params"]))


@lru_cache(maxsize=64)
def _places(group: int, count: int) -> tuple[str, ...]:
    return tuple(f"param_groups[{group}]['params'][{i}]" for i in range(count))
