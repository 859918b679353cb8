"""The parameters of an optimizer: what each is called, and how its group says to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from .matrices import Part, parts, whole
from .methods import METHODS, Method, method_of


class Member(NamedTuple):
    """A parameter of the optimizer, and how it is read."""

    group: dict[str, Any]
    param: Tensor
    name: str
    method: Method
    parts: tuple[Part, ...]

    @property
    def is_matrix(self) -> bool:
        """Whether it is made of matrices; the rest is updated entry by entry."""
        return self.method.vector is not None


def members(groups: Iterable[dict[str, Any]], wanted: Callable[[Tensor], bool]) -> list[Member]:
    """The parameters that are wanted, in their order."""
    found: list[Member] = []
    for i, group in enumerate(groups):
        method = method_of(group)
        found += [
            Member(group, p, name, *_read(p, group, method))
            for p, name in zip(group["params"], _names(group, i), strict=True)
            if wanted(p)
        ]
    return found


def _read(param: Tensor, group: dict[str, Any], method: Method) -> tuple[Method, tuple[Part, ...]]:
    """The method for a parameter of the group's method, and the parts it is read as."""
    shape = tuple(param.shape)
    if method.vector is not None:
        pieces = parts(shape, group["layout"], group["split"], group["split_dim"])
        if pieces and group["role"] != "vector":
            return method, pieces
        method = METHODS[group["rest"]]
    return method, (whole(shape),)


def _names(group: dict[str, Any], index: int) -> Sequence[str]:
    """The names of a group's parameters, or where to find them."""
    names: list[str] | None = group.get("param_names")
    return names or _places(index, len(group["params"]))


@lru_cache(maxsize=64)
def _places(group: int, count: int) -> tuple[str, ...]:
    return tuple(f"param_groups[{group}]['params'][{i}]" for i in range(count))
