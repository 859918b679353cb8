"""What a parameter group says of roles and rates, in our words or in those of other optimizers.

Trainers, schedulers and other Muons have names of their own for what we call a role. Known names
are read as what they mean there; an unknown key gives a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, get_args

from torch import Tensor

from ..core.matrices import matrices
from ..core.notices import warn_caller
from ..options import DEFAULTS, Rest, nearest
from .groups import grouped, routes
from .modules import tensor_of
from .rules import KINDS

_RATES: Final = {"rest": "rest_lr", "embedding": "embedding_lr", "head": "head_lr"}
# Keys with which others tell the parameters of a matrix method from the rest, in the groups of
# KellerJordan's Muon, Dion, nanochat and timm.
_FLAGS: Final = {"use_muon": ("vector", "matrix"), "use_fallback": (None, "vector")}
_WORDS: Final = ("algorithm", "kind")
_MATRIX_WORDS: Final = ("muon", "normuon", "adamuon", "dion", "dion2", "soap", "shampoo", "deva")
# Keys that mean nothing here: what schedulers and others keep in a group, and torch's options for
# how a step is computed.
_KEPT: Final = {
    *("params", "param_names", "name", "momentum", "initial_lr", "max_lr", "min_lr", "lr_factor"),
    *("base_momentum", "max_momentum", "fused", "capturable", "differentiable", "amsgrad"),
    *("swa_lr", "initial_weight_decay", "decoupled_weight_decay", *_FLAGS, *_WORDS),
}


class Rates:
    """The rates and the decay that an optimizer has for what is not a hidden matrix.

    Kinds of parameters are "rest", "embedding", "head" and, without settings, "matrix".
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        given = {kind: options.get(name) for kind, name in _RATES.items()}
        self._lr = {kind: lr for kind, lr in given.items() if lr is not None}
        self._decay = options.get("rest_weight_decay")
        self._seen: set[str] = set()

    def __bool__(self) -> bool:
        return self._decay is not None or bool(self._lr)

    def of(self, kind: str) -> dict[str, Any]:
        """The options of the group of such a parameter."""
        self._seen.add(kind)
        if kind == "matrix":
            return {}
        lr = self._lr.get(kind, self._lr.get("rest"))
        found = {"lr": lr, "weight_decay": self._decay}
        return {key: x for key, x in found.items() if x is not None}

    def warn_of_unused(self) -> None:
        """Warn of the rates for kinds of parameters that there are none of."""
        for kind in self._lr:
            reached = _RATES.keys() if kind == "rest" else {kind}
            if self._seen.isdisjoint(reached):
                warn_caller(
                    f"{_RATES[kind]} has no effect, because no parameter of that kind was found; "
                    "pass the model itself, by whose modules they are told apart"
                )


def assigned(group: Mapping[str, Any], *, by_model: bool, rates: Rates) -> list[dict[str, Any]]:
    """The group as one or several, cut by role and by rate.

    What the user says of the group stands above what is found out here.

    Args:
        group: As an optimizer takes it.
        by_model: Whether a group without a role is routed as a model is; otherwise it stays one.
        rates: Those of the optimizer.
    """
    named = {**group, "params": _members(group), **_role(group)}
    named.pop("param_names", None)
    params = [tensor_of(member) for member in named["params"]]
    own_betas = "role" not in named and not named.keys().isdisjoint(("betas", "momentum"))
    if own_betas and not by_model and not any(_is_matrix(p, named) for p in params):
        named["role"] = "vector"
    if "role" in named or not by_model or not params or len(set(map(id, params))) < len(params):
        return _by_rate(named, rates)  # nothing to route, or an error for the optimizer
    found = routes(named["params"])
    if not isinstance(named["params"][0], tuple):
        _warn_of_shapes(found)
    for p, (options, reason) in found.items():
        found[p] = {**rates.of(_kind(options["role"], reason)), **options}, reason
    routed = grouped(found)
    if len({r["role"] for r in routed}) == 1:
        of_vectors = named
    else:  # the betas of a group that has both are those of its matrices
        of_vectors = {key: x for key, x in named.items() if key not in ("betas", "momentum")}
    return [
        {**r, **(of_vectors if r["role"] == "vector" else named), "params": r["params"]}
        for r in routed
    ]


def _members(group: Mapping[str, Any]) -> list[Any]:
    """The parameters of a group, as pairs with their names if it has any."""
    members, names = group["params"], group.get("param_names")
    if isinstance(members, set):
        raise TypeError("params must come in ordered collections, got a set; use a list")
    members = [members] if isinstance(members, Tensor) else list(members)
    if names is None or any(isinstance(member, tuple) for member in members):
        return members
    if len(names) != len(members):
        raise ValueError(
            f"param_names has {len(names)} names for the {len(members)} parameters of its group; "
            "give each parameter one"
        )
    return list(zip(names, members, strict=True))


def _role(group: Mapping[str, Any]) -> dict[str, str]:
    """The role that a group has by the key of another optimizer."""
    if "role" in group:
        return {}
    for key, roles in _FLAGS.items():
        if key in group and (role := roles[bool(group[key])]):
            return {"role": role}
    for key in _WORDS:
        word = str(group.get(key, "")).lower()
        word = {"adam": "adamw"}.get(word, word)
        if word in get_args(Rest):
            return {"role": "vector", "rest": word}
        if word in _MATRIX_WORDS:
            return {"role": "matrix"}
    return {}


def _by_rate(group: Mapping[str, Any], rates: Rates) -> list[dict[str, Any]]:
    """The group cut into kinds that have rates of their own."""
    if not rates:
        return [dict(group)]
    kinds: dict[str, list[Any]] = {}
    for member in group["params"]:
        role = group.get("role", "auto")
        if role == "auto":
            role = "matrix" if _is_matrix(tensor_of(member), group) else "vector"
        kinds.setdefault(_kind(role, getattr(member, "reason", "")), []).append(member)
    cut = [{**rates.of(kind), **group, "params": some} for kind, some in kinds.items()]
    if "name" in group and len(cut) > 1:
        for kind, one in zip(kinds, cut, strict=True):
            one["name"] += f", {kind}" if kind in ("embedding", "head") else ""
    return cut


def _is_matrix(p: Any, group: Mapping[str, Any]) -> bool:
    """Whether a parameter has the shape of a matrix, by the layout of its group."""
    return isinstance(p, Tensor) and bool(matrices(tuple(p.shape), group))


def _kind(role: str, reason: str) -> str:
    return KINDS.get(reason, "rest") if role == "vector" else "matrix"


def warn_of_unknown(group: Mapping[str, Any], told: set[str]) -> None:
    """Warn of the keys of a group that mean nothing here, but for those that were named before."""
    for key in group.keys() - DEFAULTS.keys() - _KEPT - told:
        hint = nearest(key, [*DEFAULTS, *_KEPT, "lr_scale"], cutoff=0.6)
        if key == "lr_scale":
            hint = " once the group has been added; multiply group['lr'] by it"
        warn_caller(f"a parameter group has the key {key!r}, which means nothing here{hint}")
        told.add(key)


def _warn_of_shapes(found: Mapping[Any, tuple[dict[str, Any], str]]) -> None:
    """Warn that shapes alone have decided the roles, if there are several to decide."""
    lines = Counter(
        f"  {'×'.join(map(str, p.shape)):<16} {options['role']:<7} {reason}"
        for p, (options, reason) in found.items()
        if len(p.shape) > 1
    )
    if sum(lines.values()) < 2:
        return
    table = "\n".join(f"{line}, {n} times" if n > 1 else line for line, n in lines.items())
    warn_caller(
        "the parameters have no names, so that their shapes alone have decided which are hidden "
        f"matrices and which are embeddings, tables or heads:\n{table}\nPass the model itself, "
        "DeVA(model, …), its named_parameters(), or groups with a role"
    )
