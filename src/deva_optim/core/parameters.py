"""How each parameter of an optimizer is read: its name, its method and its matrices."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from .linalg import compute_dtype
from .matrices import matrices, whole
from .methods import METHODS, Method, method_of

STRUCTURE: Final = (
    *("method", "variant", "rest", "role", "layout", "split", "split_dim"),
    *("sides", "max_dim", "state_dtype", "param_names"),
)
"""The options of a group that decide how its parameters are read, and what state they have."""


class Reading:
    """A parameter of the optimizer, and how it is read; its method is looked up in a table.

    Attributes:
        place: Which of the parameters of the optimizer it is.
        method, parts: The method that it gets, and the batches of matrices that it is made of.
        is_matrix: Whether it is made of matrices; the rest is updated entry by entry.
        is_rest: Whether it gets the method for the rest, in an optimizer of matrices.
        is_one: Whether the norm of its gradient is that of a single matrix, or of no matrix at all.
        suffixes: What the names of the state of each part end in.
        dtype: The precision of the computation.
        range: The dtype whose range the state has: that of the computation, or a narrower one.
        names: For each part, the names in the state of what a step works on; None before the first.
    """

    def __init__(
        self,
        place: int,
        group: dict[str, Any],
        param: Tensor,
        name: str,
        methods: Mapping[str, Method],
    ) -> None:
        self.place, self.group, self.param, self.name = place, group, param, name
        self.method, shape = method_of(group, methods), tuple(param.shape)
        found = () if self.method.vector is None else matrices(shape, group, name)
        self.is_matrix = bool(found)
        self.is_rest = self.method.vector is not None and not found
        if self.is_rest:
            self.method = methods[group["rest"]]
        self.parts = found or (whole(shape),)
        self.is_one = not found or (len(found) == 1 and len(found[0].shape) == 2)
        several = len(self.parts) > 1
        self.suffixes = tuple(f".{i}" if several else "" for i in range(len(self.parts)))
        self.dtype = compute_dtype(param)
        narrow = group["state_dtype"] in (torch.float32, torch.bfloat16, "int8")
        self.range = torch.float32 if narrow else self.dtype
        self.names: list[dict[str, str]] | None = None


def place_name(group: int, number: int) -> str:
    """What a parameter without a name is called: its place in the groups."""
    return f"param_groups[{group}]['params'][{number}]"


def unused_name(name: str, taken: Container[str]) -> str:
    """The name, or the first of `name (2)`, `name (3)` and so on that is not taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found


def read(groups: list[dict[str, Any]], methods: Mapping[str, Method] = METHODS) -> list[Reading]:
    """The parameters of the groups, in their order, each under a name of its own.

    One without a name is called by its place; the second of a name is `name (2)`.
    """
    found: list[Reading] = []
    taken: set[str] = set()
    for i, group in enumerate(groups):
        names = group.get("param_names") or ()
        for j, p in enumerate(group["params"]):
            name = unused_name(names[j] if j < len(names) else place_name(i, j), taken)
            taken.add(name)
            found.append(Reading(len(found), group, p, name, methods))
    return found
