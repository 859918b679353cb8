"""What the user says about parameters: overrides and splits, matched to them one by one.

A matcher that matches nothing is an error, because a typing error would otherwise go unseen.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ..validation import CHOICES, check_choice
from .layouts import Options, Split
from .modules import ModelParameter, without_numbers
from .rules import rule_of

Matcher = str | re.Pattern[str] | type[nn.Module]
Setting = str | Mapping[str, Any]
Checked = re.Pattern[str] | type[nn.Module]

KEYS = ("role", "layout", "split", "split_dim", "lr", "weight_decay")


def match_overrides(
    params: list[ModelParameter], overrides: Sequence[tuple[Matcher, Setting]]
) -> list[Options]:
    """For each p the options of the first override that matches, none if none does."""
    settings = [_checked_setting(setting) for _, setting in overrides]
    first = _first_matches("overrides", [matcher for matcher, _ in overrides], params)
    return [{} if i is None else settings[i] for i in first]


def match_splits(
    params: list[ModelParameter], settings: list[Options], splits: Mapping[str, Split]
) -> list[Split | None]:
    """For each p the parts of the first expression that matches, None if none does."""
    told = [_checked_parts(pattern, value) for pattern, value in splits.items()]
    first = _first_matches("split", list(splits), params)
    for k, (p, setting) in enumerate(zip(params, settings, strict=True)):
        if {**rule_of(p).options, **setting}["role"] == "vector":
            first[k] = None
    for i, pattern in enumerate(splits):
        if i not in first:
            raise ValueError(
                f"split: {pattern!r} matches no matrix, only parameters of the elementwise method; "
                "give them the role 'matrix' in overrides, or leave it out"
            )
    return [None if i is None else told[i] for i in first]


def _checked_setting(setting: Setting) -> Options:
    """A setting as options of a group."""
    if isinstance(setting, str):
        check_choice("the setting of an override", setting, ("matrix", "vector"))
        return {"role": setting}
    for key, value in setting.items():
        near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.85)
        if near and key not in KEYS:  # other keys may be an option of any optimizer
            raise ValueError(f"an override sets {key!r}; did you mean {near[0]!r}?")
        if key in ("role", "layout"):
            check_choice(key, value, CHOICES[key])
    if "params" in setting:
        raise ValueError("an override cannot set 'params': its matcher names them")
    return dict(setting)


def _checked_parts(pattern: str, value: Split) -> Split:
    """The parts that a split asks for: a whole number or a tuple of them, all at least 1."""
    sizes = list(value) if isinstance(value, (tuple, list)) else [value]
    if not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(
            f"split[{pattern!r}] must be a number of equal parts or a tuple of sizes, all at least "
            f"1, got {value!r}"
        )
    return value if isinstance(value, int) else tuple(sizes)


def _first_matches(
    argument: str, matchers: Iterable[Matcher], params: list[ModelParameter]
) -> list[int | None]:
    """For each p the index of the first matcher that matches; each matcher has to have one."""
    checked = [_checked_matcher(argument, matcher) for matcher in matchers]
    hits = [[_is_match(matcher, p) for matcher in checked] for p in params]
    first = [hit.index(True) if any(hit) else None for hit in hits]
    for i, matcher in enumerate(checked):
        text = matcher.__name__ if isinstance(matcher, type) else repr(matcher.pattern)
        if not any(hit[i] for hit in hits):
            raise ValueError(
                f"{argument}: {text} matches no parameter; {_nearest(matcher, params)}"
            )
        if i not in first:
            raise ValueError(
                f"{argument}: {text} has no effect, because earlier ones take all that it matches; "
                "put it before them"
            )
    return first


def _checked_matcher(argument: str, matcher: Matcher) -> Checked:
    if isinstance(matcher, type) and issubclass(matcher, nn.Module):
        return matcher
    try:
        return re.compile(matcher)
    except (TypeError, re.error) as error:
        raise ValueError(
            f"{argument}: a matcher must be a regular expression or a module class, got "
            f"{matcher!r} ({error})"
        ) from None


def _is_match(matcher: Checked, p: ModelParameter) -> bool:
    if isinstance(matcher, type):
        return any(isinstance(module, matcher) for module in p.modules)
    return any(matcher.search(name) for name in p.names)


def _nearest(matcher: Checked, params: list[ModelParameter]) -> str:
    """What the user may have meant by a matcher that matches nothing."""
    if isinstance(matcher, type):
        kinds = sorted({type(module).__name__ for p in params for module in p.modules})
        return f"there are {', '.join(kinds)}" if kinds else "pass the module itself"
    # one name of each kind, or the nearest three would be the same layer of three blocks
    names = list({without_numbers(name): name for p in params for name in p.names if name}.values())
    if not names:
        return "the parameters have no names, so pass the module itself"
    near = sorted(names, key=lambda name: -_overlap(matcher.pattern, name))[:3]
    return f"the nearest names are {', '.join(near)}"


def _overlap(pattern: str, name: str) -> int:
    """The length of the longest piece of text that both have."""
    return difflib.SequenceMatcher(None, pattern, name, autojunk=False).find_longest_match().size
