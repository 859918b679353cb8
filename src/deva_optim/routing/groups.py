"""From a model to parameter groups: first match wins, nothing is left over.

`param_groups` sends each parameter to the matrix method or to the elementwise one, and says which
matrices a convolution, a stack of experts or a fused weight is made of. `describe` prints it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .layouts import Options, Split, cut, layout_of, matrices
from .modules import ModelParameter, model_parameters, without_numbers
from .overrides import Matcher, Setting, match_overrides, match_splits
from .rules import rule_of


def param_groups(
    model: nn.Module | Iterable[tuple[str, Tensor]] | Iterable[Tensor],
    *,
    overrides: Sequence[tuple[Matcher, Setting]] = (),
    split: Mapping[str, Split] | None = None,
    decay_1d: bool = False,
) -> list[dict[str, Any]]:
    r"""Parameter groups that hold every parameter of a model exactly once.

    Linear layers, attention projections, convolutions, recurrent and low-rank weights and stacks
    of experts are for the matrix method (role "matrix"). Embeddings, output heads, tied or not,
    position tables, tokens, depthwise convolutions, biases, norms and whatever has a side of 1 are
    for the elementwise method (role "vector"). Weights known to be fused (q, k and v; gate and up;
    the gates of an LSTM; the groups of a convolution) are cut apart. Where the layout is not known
    for sure they are not, and `split` can say it. A parameter of three dimensions that is not a
    convolution is a stack of matrices, and the router of experts a linear layer like any other.

    Biases, norms and scalars are not decayed, nor are position tables and tokens that are
    parameters of their own, as in timm and DeiT. Matrices, heads and embeddings, those of positions
    included (GPT-2's wpe), keep the optimizer's decay. Frozen parameters are routed as others are.

    Args:
        model: The module. Its `named_parameters()` will do, but then only names and shapes can
            speak, and of its `parameters()` only shapes.
        overrides: Pairs (matcher, setting), of which the first match wins. A matcher is a regular
            expression, searched for in the parameter's full name (in each of them, if it is tied),
            or a module class, which matches all parameters inside such a module at any depth. A
            setting is "matrix", "vector" or a dict of group options, which is merged over the
            automatic ones.
        split: {regular expression on the name: parts}, the parts of a matrix being a number of
            equal ones or a tuple of sizes. They cut the layer's outputs: the rows of a Linear, the
            columns of transformers' Conv1D. They win over the known layout (1 does not cut), and
            pass over what is not a matrix, such as the layer's bias.
        decay_1d: Whether to decay also what is exempt by default.

    Returns:
        Groups of [(name, parameter), …], or of parameters if these have no names; matrices first.
        Each has a "name" and a "role"; matrices have a "layout" and, if cut, "split" and, if it is
        the columns that are cut, "split_dim"; what is exempt has a "weight_decay" of 0.

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
    params = model_parameters(model)
    settings = match_overrides(params, overrides)
    splits = match_splits(params, settings, split or {})
    routes = [
        (p, *_route(p, setting, told, decay_1d))
        for p, setting, told in zip(params, settings, splits, strict=True)
    ]
    return _grouped(routes)


def describe(groups: Iterable[Mapping[str, Any]]) -> None:
    """Prints which parameter is in which group, and which matrices the optimizer sees in it.

    Layers that differ by their number alone share a line. Groups of `param_groups` also show why;
    those of `optimizer.param_groups` have forgotten it.

    Args:
        groups: The groups.

    Example:
        >>> describe(param_groups(nn.Sequential(*(nn.GRU(8, 8) for _ in range(4)))))
        matrix, split 3: role matrix, layout stack, split 3; 8 tensors, 1,536 elements
          {0…3}.weight_ih_l0  4 × (24, 8)  as 3 × (8, 8)  gates
          {0…3}.weight_hh_l0  4 × (24, 8)  as 3 × (8, 8)  gates
        vector, no decay: role vector, weight_decay 0.0; 8 tensors, 192 elements
          {0…3}.bias_ih_l0    4 × (24,)    elementwise    fewer than two dimensions
          {0…3}.bias_hh_l0    4 × (24,)    elementwise    fewer than two dimensions
    """
    tables = [(_header(group, i), _rows(group)) for i, group in enumerate(groups)]
    rows = [row for _, table in tables for row in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for header, table in tables:
        print(header)
        for row in table:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  " + "  ".join(cells).rstrip())


# --- Which group ---------------------------------------------------------------------------------


class Named(tuple[str, Tensor]):
    """(name, parameter), which remembers why it is in its group until an optimizer takes it."""

    why: str = ""


def _route(
    p: ModelParameter, setting: Options, told: Split | None, decay_1d: bool
) -> tuple[Options, str]:
    """The options of a parameter's group, and why they are so."""
    rule = rule_of(p)
    options = {**rule.options}
    if decay_1d:
        options.pop("weight_decay", None)
    options.update(setting)
    if options["role"] == "vector":
        return options, "override" if "role" in setting else rule.why
    layout = layout_of(p)
    options = {**cut(p, layout.parts(p) if told is None else told), **options}
    name = p.names[0] or "a parameter"
    if not _reading(p.shape, options, name) and options["role"] == "matrix":
        raise ValueError(
            f"{name} of shape {p.shape} cannot have the role 'matrix', which takes two sides of "
            "at least 2; leave it out of the override, or split it into fewer parts"
        )
    return options, layout.why if told is None else "split by the user"


def _grouped(routes: Iterable[tuple[ModelParameter, Options, str]]) -> list[dict[str, Any]]:
    """Groups of equal options, matrices first, otherwise in the order of their first parameter."""
    groups: dict[str, dict[str, Any]] = {}
    for p, options, why in routes:
        key = repr(sorted(options.items()))
        group = groups.setdefault(key, {"params": [], "name": _group_name(options), **options})
        group["params"].append(_named(p, why) if p.names[0] else p.tensor)
    return sorted(groups.values(), key=lambda group: bool(group["role"] == "vector"))


def _named(p: ModelParameter, why: str) -> Named:
    pair = Named((p.names[0], p.tensor))
    pair.why = why
    return pair


def _group_name(options: Options) -> str:
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


def _reading(shape: tuple[int, ...], group: Mapping[str, Any], name: str) -> str:
    """The matrices that the optimizer sees in a parameter, as "3 × (768, 768)"; "" if none."""
    try:
        found = matrices(shape, group)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return " + ".join(_times(math.prod(part.shape[:-2]), part.shape[-2:]) for part in found)


def _times(count: int, shape: tuple[int, ...]) -> str:
    return f"{count} × {shape}" if count > 1 else f"{shape}"


# --- What to print -------------------------------------------------------------------------------


def _header(group: Mapping[str, Any], number: int) -> str:
    """The group's name, its options and its size."""
    keys = ["role", "layout", "split", "split_dim", "lr", "weight_decay"]
    if group.get("split") is None:
        keys.remove("split_dim")
    options = ", ".join(f"{key} {group[key]}" for key in keys if group.get(key) is not None)
    params = [param for _, param, _ in _members(group)]
    size = sum(param.numel() for param in params)
    count = f"{len(params)} tensor{'s' if len(params) != 1 else ''}, {size:,} elements"
    return f"{group.get('name', f'group {number}')}: " + "; ".join(filter(None, [options, count]))


def _members(group: Mapping[str, Any]) -> list[tuple[str, Tensor, str]]:
    """(name, parameter, why) of a group's parameters, before or after an optimizer took them."""
    params = group["params"]
    names = group.get("param_names", ["unnamed"] * len(params))
    pairs = [
        param if isinstance(param, tuple) else (name, param)
        for name, param in zip(names, params, strict=True)
    ]
    return [(*pair, getattr(pair, "why", "")) for pair in pairs]


def _rows(group: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(names, shape, matrices, why) for each kind of parameter in a group."""
    kinds: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
    for name, param, why in _members(group):
        kinds.setdefault((without_numbers(name), tuple(param.shape), why), []).append(name)
    rows = []
    for (_, shape, why), names in kinds.items():
        found = _reading(shape, group, names[0])
        reading = f"as {found}" if found else "elementwise"
        rows += [(text, _times(count, shape), reading, why) for text, count in _merged(names)]
    return rows


def _merged(names: list[str]) -> list[tuple[str, int]]:
    """Names that differ in numbers alone as "h.{0…11}.weight", with how many each stands for."""
    columns = [set(column) for column in zip(*(name.split(".") for name in names), strict=True)]
    if math.prod(map(len, columns)) == len(set(names)):
        return [(".".join(map(_span, columns)), len(names))]
    # not every combination of numbers exists: one line for each value of the first number
    first = next(i for i, column in enumerate(columns) if len(column) > 1)
    apart: dict[str, list[str]] = {}
    for name in names:
        apart.setdefault(name.split(".")[first], []).append(name)
    return [line for part in apart.values() for line in _merged(part)]


def _span(values: set[str]) -> str:
    """Numbers in braces, runs of them shortened; a value that is alone, as it is."""
    if len(values) == 1:
        return next(iter(values))
    numbers = sorted(map(int, values))
    if numbers[-1] - numbers[0] == len(numbers) - 1 > 1:
        return f"{{{numbers[0]}…{numbers[-1]}}}"
    return "{" + ",".join(map(str, numbers)) + "}"
