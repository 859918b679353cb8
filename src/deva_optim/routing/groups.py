"""From a model to parameter groups, which decide how the optimizer treats each parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..core.matrices import matrices
from .layouts import layout_options
from .modules import ModelParameter, model_parameters, tensor_of, without_numbers
from .overrides import (
    GROUP_OPTIONS,
    Matcher,
    Setting,
    layer_scales,
    match_overrides,
    match_splits,
)
from .rules import role_options


def param_groups(
    model: nn.Module | Iterable[tuple[str, Tensor]] | Iterable[Tensor],
    *,
    overrides: Sequence[tuple[Matcher, Setting]] = (),
    split: Mapping[str, int | tuple[int, ...]] | None = None,
    decay_1d: bool = False,
    per_head: bool = False,
    layer_decay: float | None = None,
) -> list[dict[str, Any]]:
    r"""Parameter groups that contain every parameter of a model exactly once.

    The matrix method (role "matrix") gets linear layers, attention projections, convolutions,
    recurrent and low-rank weights, stacks of experts and their routers. The elementwise method
    (role "vector") gets embeddings, output heads (tied or not), position tables, tokens, depthwise
    convolutions, biases, norms and whatever has a side of 1.

    Fused weights of known layers are split: q, k and v; gate and up; the gates of an LSTM; the
    groups of a convolution. All others stay whole unless `split` tells how to split them. A weight
    of three dimensions that is not a convolution is a stack of matrices.

    Biases, norms and scalars get no weight decay, nor do position tables and tokens that are
    parameters by themselves, as in timm and DeiT. Matrices, heads and embeddings, including those
    of positions (GPT-2's wpe), keep the decay of the optimizer. Frozen parameters are included.

    Args:
        model: The module. If its `named_parameters()` are given instead, only names and shapes tell
            parameters apart; if its `parameters()` are given, only shapes do.
        overrides: Pairs (matcher, setting), of which the first that matches a parameter wins. A
            matcher is a regular expression, searched for in all full names of the parameter, or a
            module class, which matches all parameters inside such a module at any depth. A setting
            is "matrix", "vector" or a dict of group options that replace the automatic ones.
        split: {regular expression: parts}, of which the first that matches the name of a matrix
            replaces the automatic split. The parts are a number of equal parts, 1 to leave the
            matrix whole, or a tuple of sizes. They split the outputs of the layer: the rows of a
            Linear, the columns of transformers' Conv1D. Biases and other vectors are passed over.
        decay_1d: Whether to decay the parameters that get no weight decay by default.
        per_head: Whether to cut queries, keys and values into heads, each a matrix by itself. The
            size of a head is read from the attention modules of transformers, timm and torch.
        layer_decay: For fine-tuning: the learning rate of each layer is this share of that of the
            layer after it. The layers are the repeated blocks, what comes before them (embeddings)
            and what comes after them (final norm, head), which has the whole rate. What lies
            between blocks has the rate of the block before it. Towers beside each other, as in
            CLIP, are counted each by itself; they are known by a `logit_scale` in their parent.

    Returns:
        Groups of (name, parameter) pairs, or of parameters if these have no names; matrices come
        first. Each group has a "name" and a "role"; matrices have a "layout" and, if they are
        split, a "split", with "split_dim" -1 for columns; what is not decayed has "weight_decay" 0.
        With `layer_decay` a group has an "lr_scale", by which the optimizer multiplies its rate.

    Raises:
        ValueError: If there are no parameters, a matcher matches none, or a split does not fit.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 9))
        >>> groups = param_groups(model, overrides=[(r"^1\.weight", {"lr": 0.01})])
        >>> for group in groups:
        ...     print(group["name"], "|", *(name for name, _ in group["params"]))
        matrix, lr 0.01 | 1.weight
        vector | 0.weight 3.weight
        vector, no decay | 1.bias 3.bias
    """
    return grouped(routes(model, overrides, split, decay_1d, per_head, layer_decay))


Routes = dict[ModelParameter, tuple[dict[str, Any], str]]
"""Parameter → the options of its group, and the reason for them."""


def routes(
    model: nn.Module | Iterable[Any],
    overrides: Sequence[tuple[Matcher, Setting]] = (),
    split: Mapping[str, int | tuple[int, ...]] | None = None,
    decay_1d: bool = False,
    per_head: bool = False,
    layer_decay: float | None = None,
) -> Routes:
    """Where each parameter goes; the arguments are those of `param_groups`."""
    params = model_parameters(model)
    settings = match_overrides(overrides, params)
    scales = {} if layer_decay is None else layer_scales(params, layer_decay)
    found: Routes = {}
    for p in params:
        options, reason = role_options(p)
        if decay_1d:
            options = {"role": options["role"]}
        setting = settings.get(p, {})
        reason = "override" if "role" in setting else reason
        found[p] = {**options, **scales.get(p, {}), **setting}, reason
    not_vectors = [p for p, (options, _) in found.items() if options["role"] != "vector"]
    splits = match_splits(split or {}, params, not_vectors)
    for p in not_vectors:
        layout, reason = layout_options(p, splits.get(p), per_head=per_head)
        found[p] = {**layout, **found[p][0]}, reason
    return found


def grouped(routes: Routes) -> list[dict[str, Any]]:
    """Groups of the parameters with the same options, matrices first."""
    groups: dict[str, dict[str, Any]] = {}
    for p, (options, reason) in routes.items():
        name = p.names[0] or "a parameter"
        matrices(p.shape, options, name)  # or an error that says what does not fit
        # A rate that is a tensor may be changed in place, and is written with four digits.
        known = [(k, id(x) if isinstance(x, Tensor) else x) for k, x in options.items()]
        key = repr(sorted(known))
        group = groups.setdefault(key, {"params": [], "name": _group_name(options), **options})
        pair = NamedParameter((name, p.tensor))
        pair.reason = reason
        group["params"].append(pair if p.names[0] else p.tensor)
    return sorted(groups.values(), key=lambda group: bool(group["role"] == "vector"))


def cut_by_role(
    groups: Iterable[Mapping[str, Any]], models: Iterable[nn.Module], **settings: Any
) -> Iterator[tuple[Mapping[str, Any], dict[str, Any], list[NamedParameter]]]:
    """Groups of tensors that others have made of models, cut by what the parameters are.

    Yields a group as it was given, the options of `param_groups(model, **settings)` for some of its
    parameters, and these with their names.
    """
    place = {
        pair[1]: (options, pair)
        for model in models
        for options in param_groups(model, **settings)
        for pair in options["params"]
    }
    for group in groups:
        cut: dict[int, tuple[dict[str, Any], list[NamedParameter]]] = {}
        for p in group["params"]:
            options, pair = place[p]
            cut.setdefault(id(options), (options, []))[1].append(pair)  # names may be the user's
        for options, pairs in cut.values():
            yield group, {key: x for key, x in options.items() if key != "params"}, pairs


class NamedParameter(tuple[str, Tensor]):
    """(name, parameter) with the reason for its group, until an optimizer takes it apart."""

    reason: str = ""


def describe(groups: Iterable[Mapping[str, Any]]) -> None:
    """Prints the parameters of each group and the matrices that the optimizer sees in them.

    Layers that differ only in their numbers share a line. The reason at its end is known for groups
    of `param_groups`, and no longer for those of `optimizer.param_groups`.

    Example:
        >>> describe(param_groups(nn.Sequential(*(nn.GRU(8, 8) for _ in range(4)))))
        matrix, split 3: role matrix, layout stack, split 3; 8 tensors, 1,536 elements
          {0…3}.weight_ih_l0  4 × (24, 8)  as 3 × (8, 8)  gates
          {0…3}.weight_hh_l0  4 × (24, 8)  as 3 × (8, 8)  gates
        vector, no decay: role vector, weight_decay 0.0; 8 tensors, 192 elements
          {0…3}.bias_ih_l0    4 × (24,)    elementwise    fewer than two dimensions
          {0…3}.bias_hh_l0    4 × (24,)    elementwise    fewer than two dimensions
    """
    if not isinstance(groups, Iterable):
        raise TypeError(
            "groups must be parameter groups, such as param_groups(model) or "
            f"optimizer.param_groups, got a {type(groups).__name__}"
        )
    tables = [(_header(group, i), _rows(group)) for i, group in enumerate(groups)]
    columns = zip(*(row for _, rows in tables for row in rows), strict=True)
    widths = [max(map(len, column)) for column in columns]
    for header, rows in tables:
        print(header)
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  " + "  ".join(cells).rstrip())


def _group_name(options: Mapping[str, Any]) -> str:
    """A short name such as "matrix, conv" or "vector, no decay"."""
    words = [options["role"]]
    if options.get("layout") == "conv":
        words.append("conv")
    if options.get("split") is not None:
        split, columns = options["split"], options.get("split_dim") == -1
        sizes = split if isinstance(split, int) else "+".join(map(str, split))
        words.append(f"split {sizes}{' columns' if columns else ''}")
    for key, value in options.items():
        if key == "weight_decay" and value == 0:
            words.append("no decay")
        elif key not in ("role", "layout", "split", "split_dim"):
            words.append(f"{key} {value}")
    return ", ".join(words)


def _times(count: int, shape: tuple[int, ...]) -> str:
    return f"{count} × {shape}" if count > 1 else f"{shape}"


def _header(group: Mapping[str, Any], number: int) -> str:
    """The name of a group, its options and its size."""
    hidden = "split_dim" if group.get("split") is None else None
    keys = [key for key in GROUP_OPTIONS if key != hidden and group.get(key) is not None]
    options = ", ".join(f"{key} {group[key]}" for key in keys)
    tensors = list(map(tensor_of, group["params"]))
    plural, elements = "s" if len(tensors) != 1 else "", sum(tensor.numel() for tensor in tensors)
    size = f"{len(tensors)} tensor{plural}, {elements:,} elements"
    return f"{group.get('name', f'group {number}')}: " + "; ".join(filter(None, [options, size]))


def _rows(group: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(names, shape, matrices, reason) of each line of a group."""
    names = group.get("param_names", ["unnamed"] * len(group["params"]))
    lines: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
    for param_name, param in zip(names, group["params"], strict=True):
        name, tensor = param if isinstance(param, tuple) else (param_name, param)
        kind = (without_numbers(name), tuple(tensor.shape), getattr(param, "reason", ""))
        lines.setdefault(kind, []).append(name)
    rows = []
    for (_, shape, reason), alike in lines.items():
        parts = matrices(shape, group, alike[0])
        found = " + ".join(_times(part.matrices, part.shape[-2:]) for part in parts)
        text = f"as {found}" if found else "elementwise"
        rows += [(name, _times(count, shape), text, reason) for name, count in _merged(alike)]
    return rows


def _merged(names: list[str]) -> list[tuple[str, int]]:
    """Names that differ only in numbers as "h.{0…11}.weight", each with how many it stands for."""
    columns = [set(column) for column in zip(*(name.split(".") for name in names), strict=True)]
    if math.prod(map(len, columns)) == len(set(names)):
        return [(".".join(map(_span, columns)), len(names))]
    # Not every combination of numbers exists: one line for each value of the first number.
    first = next(i for i, column in enumerate(columns) if len(column) > 1)
    apart: dict[str, list[str]] = {}
    for name in names:
        apart.setdefault(name.split(".")[first], []).append(name)
    return [line for part in apart.values() for line in _merged(part)]


def _span(values: set[str]) -> str:
    """A single value as it is; several numbers in braces, shortened if they are consecutive."""
    if len(values) == 1:
        return next(iter(values))
    numbers = sorted(map(int, values))
    if numbers[-1] - numbers[0] == len(numbers) - 1 > 1:
        return f"{{{numbers[0]}…{numbers[-1]}}}"
    return "{" + ",".join(map(str, numbers)) + "}"
