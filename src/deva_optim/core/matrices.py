"""How a parameter is read as matrices: convolutions flattened, stacks kept, fused weights cut.

A parameter of any shape is one or more parts, and a part is a batch of matrices …×n×m. Most
parameters are one part. A weight that fuses layers of unequal size has one part for each run of
equal sizes, because only equal sizes form a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

Layout = Literal["auto", "stack", "conv"]
Split = int | tuple[int, ...] | None

PARAMETER_SHAPED: Final = ("exp_avg", "exp_avg_sq", "weight_avg")
"""The state that is laid out as its parameter is, all parts of it in one tensor."""


class Part(NamedTuple):
    """A slice of a parameter and the batch of matrices it holds.

    Attributes:
        dim, start, length: The slice; a length of −1 stands for the whole parameter.
        shape: The batch of matrices, (…, n, m).
        pieces: How many matrices the slice is cut into along `dim`.
        flat: Whether all dimensions after the first are one (a convolution).
    """

    dim: int
    start: int
    length: int
    shape: tuple[int, ...]
    pieces: int = 1
    flat: bool = False

    @property
    def matrices(self) -> int:
        """How many matrices the part holds."""
        return math.prod(self.shape[:-2])

    def slice(self, X: Tensor) -> Tensor:
        """The slice of a parameter-shaped X that this part is about: a view."""
        return X if self.length < 0 else X.narrow(self.dim, self.start, self.length)

    def fold(self, X: Tensor) -> Tensor:
        """The part of a parameter-shaped X as matrices; a view if X is contiguous."""
        return self.cut(self.slice(X))

    def cut(self, X: Tensor) -> Tensor:
        """The slice of a parameter as matrices; a view if it is contiguous."""
        X = X.flatten(1) if self.flat else X
        if self.pieces == 1:
            return X
        if self.dim == -2 or self.flat:
            return torch.unflatten(X, -2, (self.pieces, -1))
        return torch.unflatten(X, -1, (self.pieces, -1)).movedim(-2, -3)

    def unfold(self, U: Tensor, like: Tensor) -> Tensor:
        """Matrices U laid out as the slice of the parameter-shaped `like`."""
        if self.pieces > 1:
            U = U.flatten(-3, -2) if self.dim == -2 or self.flat else U.movedim(-3, -2).flatten(-2)
        return U.reshape(self.slice(like).shape)


def whole(shape: tuple[int, ...]) -> Part:
    """A parameter of any shape taken as it is, for the elementwise methods."""
    return Part(0, 0, -1, shape)


def matrices(
    shape: tuple[int, ...], group: Mapping[str, Any], name: str = "a parameter"
) -> tuple[Part, ...]:
    """The parts of a parameter in a group with these options; none if it is read as a vector."""
    role, split = group.get("role"), group.get("split")
    if role == "vector":
        return ()
    split = tuple(split) if isinstance(split, list) else split
    try:
        found = parts(shape, group.get("layout", "auto"), split, group.get("split_dim", -2))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if role == "matrix" and not found:
        raise ValueError(
            f"{name} of shape {shape} cannot have the role 'matrix', which takes at least 2 rows "
            "and 2 columns; use 'vector' or 'auto', or split it into fewer parts. If something has "
            "put a flattened tensor in its place, as FSDP1 and ZeRO do, use FSDP2 instead"
        )
    return found


@lru_cache(maxsize=4096)
def parts(shape: tuple[int, ...], layout: Layout, split: Split, split_dim: int) -> tuple[Part, ...]:
    """The parts of a parameter, or none at all if it is not made of matrices.

    A matrix has two sides of at least two. A split that does not fit the shape is an error.
    """
    if len(shape) < 2:
        return ()
    flat = layout == "conv" or (layout == "auto" and len(shape) > 3)
    matrix = (shape[0], math.prod(shape[1:])) if flat else shape
    if flat and split is not None and split_dim != -2:
        raise ValueError(
            f"split_dim must be -2 for a convolution of shape {shape}, got {split_dim}"
        )
    sizes = _sizes(shape, matrix[split_dim], split, split_dim)
    dim = 0 if flat else split_dim
    found, start = [], 0
    for size, run in groupby(sizes):
        count = len(list(run))
        length = -1 if count == len(sizes) else size * count
        *lead, n, m = matrix
        n, m = (size, m) if split_dim == -2 else (n, size)
        cut = (*lead, n, m) if count == 1 else (*lead, count, n, m)
        found.append(Part(dim, start, length, cut, count, flat))
        start += size * count
    return tuple(found) if all(min(part.shape[-2:]) > 1 for part in found) else ()


def _sizes(shape: tuple[int, ...], total: int, split: Split, dim: int) -> tuple[int, ...]:
    """The sizes along `dim`, `total` in all, that a split asks for."""
    if split is None:
        return (total,)
    if isinstance(split, int):
        if total % split:
            raise ValueError(
                f"split must divide dimension {dim} of shape {shape}, got {split} for {total}; "
                "give a tuple of sizes for unequal parts"
            )
        return (total // split,) * split
    if sum(split) != total:
        raise ValueError(
            f"split must add up to dimension {dim} of shape {shape}, "
            f"got {split} (sum {sum(split)}) for {total}"
        )
    return split
