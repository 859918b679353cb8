"""What the user sets for some parameters: `overrides`, `split`, `layer_decay` of `param_groups`.

A matcher that matches no parameter is an error, because it is most likely misspelt.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from torch import nn

from ..core.matrices import Layout, Split
from ..options import check_choice, nearest, plain
from .modules import ModelParameter, without_numbers

Matcher = str | re.Pattern[str] | type[nn.Module]
Setting = str | Mapping[str, Any]

# Everything up to the number of a block, after the name of the list that holds it; in a network
# of stages blocks are numbered within them. If no list has such a name, any number is a block's.
_LISTS = r"stages\.\d+\.(?:blocks|layers)|layers\.\d+\.blocks|blocks?|layers?|layer\d+|h|resblocks"
_BLOCK = re.compile(rf"^(.*?(?:^|\.)(?:{_LISTS})\.\d+)\.")
_NUMBERED = re.compile(r"^(.*?(?:^|\.)\d+)\.")

GROUP_OPTIONS = ("role", "layout", "split", "split_dim", "lr", "lr_scale", "weight_decay")


def match_overrides(
    overrides: Sequence[tuple[Matcher, Setting]], params: list[ModelParameter]
) -> dict[ModelParameter, dict[str, Any]]:
    """The group options of the parameters for which the user sets any."""
    for pair in overrides:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f"overrides must be pairs (matcher, setting), got {pair!r}")
    pairs = [(matcher, _checked_setting(setting)) for matcher, setting in overrides]
    return _first_matches("overrides", pairs, params, params)


def match_splits(
    splits: Mapping[str, Any], params: list[ModelParameter], matrices: list[ModelParameter]
) -> dict[ModelParameter, Split]:
    """The splits of the matrices for which the user sets one; other parameters are passed over."""
    pairs = [(pattern, plain(parts)) for pattern, parts in splits.items()]
    for pattern, parts in pairs:
        sizes = parts if isinstance(parts, tuple) else (parts,)
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError(
                f"split[{pattern!r}] must be a number of equal parts or a tuple of sizes, all at "
                f"least 1, got {parts!r}"
            )
    return _first_matches("split", pairs, params, matrices)


def _checked_setting(setting: Setting) -> dict[str, Any]:
    """The setting of an override as options of a group."""
    if isinstance(setting, str):
        check_choice("overrides: a setting", setting, ("matrix", "vector"))
        return {"role": setting}
    for key in setting:  # a key that resembles none of ours may be an option of the optimizer
        if key not in GROUP_OPTIONS and (hint := nearest(key, GROUP_OPTIONS, cutoff=0.85)):
            raise ValueError(f"overrides: a setting has the key {key!r}{hint}")
    if "params" in setting:
        raise ValueError("overrides: a setting cannot set 'params'; its matcher selects them")
    check_choice("overrides: role", setting.get("role", "auto"), ("auto", "matrix", "vector"))
    check_choice("overrides: layout", setting.get("layout", "auto"), get_args(Layout))
    return {key: plain(x) for key, x in setting.items()}


def _first_matches(
    argument: str,
    pairs: Iterable[tuple[Matcher, Any]],
    params: list[ModelParameter],
    eligible: list[ModelParameter],
) -> dict[ModelParameter, Any]:
    """The value of the first matcher that matches, for each eligible parameter that has one."""
    values: dict[ModelParameter, Any] = {}
    for matcher, value in pairs:
        found = _matches(argument, matcher, params)
        if found.isdisjoint(eligible):
            raise ValueError(
                f"{argument}: {matcher!r} matches no matrix, only parameters of the elementwise "
                f"method; give them the role 'matrix' in overrides, or remove it from {argument}"
            )
        new = found.intersection(eligible).difference(values)
        if not new:
            raise ValueError(
                f"{argument}: {matcher!r} has no effect, because earlier matchers match all of its "
                "parameters; put it before them"
            )
        values.update(dict.fromkeys(new, value))
    return values


def _matches(argument: str, matcher: Matcher, params: list[ModelParameter]) -> set[ModelParameter]:
    """The parameters that a matcher matches, at least one."""
    if isinstance(matcher, type):
        text = matcher.__name__
        found = {p for p in params if any(isinstance(module, matcher) for module in p.modules)}
    else:
        try:
            regex = re.compile(matcher)
        except (TypeError, re.error) as error:
            raise ValueError(
                f"{argument}: a matcher must be a regular expression or a module class, got "
                f"{matcher!r} ({error})"
            ) from None
        text = repr(regex.pattern)
        found = {p for p in params if any(regex.search(name) for name in p.names)}
    if not found:
        raise ValueError(f"{argument}: {text} matches no parameter; {_hint(matcher, params)}")
    return found


def _hint(matcher: Matcher, params: list[ModelParameter]) -> str:
    """What the user may have meant by a matcher that matches no parameter."""
    if isinstance(matcher, type):
        classes = sorted({type(module).__name__ for p in params for module in p.modules})
        return f"there are {', '.join(classes)}" if classes else "pass the module itself"
    # One name of each kind; otherwise all three could be the same layer of different blocks.
    names = {without_numbers(name): name for p in params for name in p.names if name}.values()
    pattern = matcher if isinstance(matcher, str) else matcher.pattern
    if not names:
        return "the parameters have no names, so pass the module itself"

    def common_length(name: str) -> int:
        both = difflib.SequenceMatcher(None, pattern, name, autojunk=False)
        return both.find_longest_match().size

    return f"the nearest names are {', '.join(sorted(names, key=common_length, reverse=True)[:3])}"


def layer_scales(
    params: list[ModelParameter], decay: float
) -> dict[ModelParameter, dict[str, Any]]:
    """For each parameter below the last layer its `lr_scale`, as an option of its group."""
    if not 0 < decay <= 1:
        raise ValueError(f"layer_decay must be above 0 and at most 1, got {decay!r}")
    if not any(p.names[0] for p in params):
        raise ValueError("layer_decay needs the names of the parameters; pass the model itself")
    pattern = _BLOCK if any(_BLOCK.match(p.names[0]) for p in params) else _NUMBERED
    if not any(pattern.match(p.names[0]) for p in params):
        raise ValueError("layer_decay found no repeated blocks in the names of the parameters")
    scales = {
        p: decay**layers
        for tower in _towers(params, pattern)
        for p, layers in _layers_after(tower, pattern).items()
    }
    return {p: {"lr_scale": scale} for p, scale in scales.items() if scale < 1}


def _towers(params: list[ModelParameter], pattern: re.Pattern[str]) -> list[list[ModelParameter]]:
    """The parameters of each of several networks beside each other; of most models there is one.

    A `logit_scale` outside the blocks, as in CLIP, multiplies the products of the outputs of the
    modules beside it. What is in none of these counts with the last one.
    """
    outside = (p.names[0].rpartition(".") for p in params if not pattern.match(p.names[0]))
    places = [place + dot for place, dot, own in outside if re.search("(^|_)logit_scale", own)]
    if not places:
        return [params]
    children = [p.names[0].removeprefix(places[0]).partition(".")[0] for p in params]
    towers: dict[str, list[ModelParameter]] = {
        child: [] for p, child in zip(params, children, strict=True) if pattern.match(p.names[0])
    }
    for p, child in zip(params, children, strict=True):
        towers.get(child, towers[next(reversed(towers))]).append(p)
    return list(towers.values())


def _layers_after(
    params: list[ModelParameter], pattern: re.Pattern[str]
) -> dict[ModelParameter, int]:
    """How many layers come after that of each parameter; what follows all blocks is the last."""
    blocks: dict[str, int] = {}
    layers: dict[ModelParameter, int] = {}
    since_block: list[ModelParameter] = []
    for p in params:
        if block := pattern.match(p.names[0]):
            layers[p] = blocks.setdefault(block[1], len(blocks) + 1)
            since_block = []
        else:
            layers[p] = len(blocks)
            since_block.append(p)
    last = dict.fromkeys(since_block, len(blocks) + 1)
    return {p: len(blocks) + 1 - layer for p, layer in {**layers, **last}.items()}
