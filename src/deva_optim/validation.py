"""What a parameter group may hold: every value is checked once, when the group is added."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeGuard, get_args

import torch
from torch import Tensor

from .core.directions import MSIGN_KINDS
from .core.matrices import Layout, parts
from .core.methods import METHODS, RESTS, VARIANTS, method_of

NonFinite = Literal["skip", "raise"]
Sides = Literal["both", "short"]
Variant = Literal["default", "factored", "instantaneous", "whitened"]
Rest = Literal["deva-linf", "adamw", "signum", "lion"]

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "method": tuple(METHODS),
    "rest": RESTS,
    "variant": VARIANTS,
    "msign": MSIGN_KINDS,
    "sides": get_args(Sides),
    "nonfinite": get_args(NonFinite),
    "role": ("auto", "matrix", "vector"),
    "layout": get_args(Layout),
}
FLAGS: Final = (
    "nesterov",
    "maximize",
    "sign_stabilize",
    "skip_first",
    "stagger",
)
DTYPES: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_group(group: Mapping[str, Any]) -> None:
    """Raise an error that names the argument, its value and the remedy, if any is out of range."""
    for name, check in _CHECKS.items():
        check(name, group[name])
    for name, choices in CHOICES.items():
        check_choice(name, group[name], choices)
    for name in FLAGS:
        if not isinstance(group[name], bool):
            raise TypeError(f"{name} must be True or False, got {group[name]!r}")
    if group["variant"] != "default" and f"{group['method']}-{group['variant']}" not in METHODS:
        raise ValueError(f"variant {group['variant']!r} is none of {group['method']}'s")
    method = method_of(group)
    if group["skip_first"] and (method.basis is None or not method.basis.tracked):
        raise ValueError(
            f"skip_first is for DeVA-S∞ and SOAP alone, got True for {group['method']}"
        )
    if group["sign_stabilize"] and method.whitens:
        raise ValueError(
            f"sign_stabilize undoes variant {group['variant']!r}: the sign of Γ ⊙ M is that of M; "
            "leave it out, or take variant='default'"
        )


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise an error that names the nearest choice, if the value is none of them."""
    choices = tuple(choices)
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


def as_list(params: object) -> list[Any]:
    """The members of a group, in an order that a checkpoint can rely on."""
    if isinstance(params, set):
        raise TypeError("params must come in ordered collections, got a set; use a list")
    return [params] if isinstance(params, Tensor) else list(params)  # type: ignore[call-overload]


def check_parameter(param: Tensor, name: str, group: Mapping[str, Any]) -> None:
    """Raise an error if a parameter cannot be optimized as its group says."""
    if param.requires_grad:  # a frozen weight may be quantised, or a placeholder
        _check_trainable(param, name)
    try:
        found = parts(tuple(param.shape), group["layout"], group["split"], group["split_dim"])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if group["role"] == "matrix" and not found:
        raise ValueError(
            f"{name} is not a matrix (shape {tuple(param.shape)}), but its group has "
            "role='matrix'; use 'vector' or 'auto'"
        )


def _check_trainable(param: Tensor, name: str) -> None:
    if param.is_complex():
        raise TypeError(f"{name} is complex; optimize torch.view_as_real of it")
    if not param.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {param.dtype}")
    if param.numel() == 0:
        raise ValueError(f"{name} has no elements (shape {tuple(param.shape)}); leave it out")


def check_gradient(grad: Tensor, name: str) -> None:
    """Raise an error if a gradient is of a kind that no method here can take."""
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"the gradient of {name} is sparse ({grad.layout}), which is not supported; "
            "use sparse=False in the embedding or grad.to_dense()"
        )
    if grad.is_complex():
        raise RuntimeError(f"the gradient of {name} is complex, which is not supported")


def check_wire_dtype(value: object) -> None:
    """Raise an error if numbers cannot travel in this dtype."""
    if value not in (None, torch.bfloat16):  # float16 would overflow
        raise ValueError(
            f"wire_dtype must be torch.bfloat16, or None to send numbers as they are, got {value!r}"
        )


def _lr(name: str, value: object) -> None:
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise ValueError(
                f"{name} must be a float or a 0-D floating-point tensor, got a tensor of shape "
                f"{tuple(value.shape)} and {value.dtype}"
            )
        value = value.item()
    _not_negative(name, value)


def _not_negative(name: str, value: object) -> None:
    if not _is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value!r}")


def _betas(name: str, value: object) -> None:
    if not isinstance(value, tuple | list) or len(value) not in (2, 3):
        raise ValueError(f"{name} must be two or three numbers, got {value!r}")
    for i, beta in enumerate(value):
        _decay(f"{name}[{i}]", beta)


def _decay(name: str, value: object) -> None:
    if not _is_number(value) or not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")


def _positive_int(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def _split(name: str, value: object) -> None:
    sizes = value if isinstance(value, tuple) else () if value is None else (value,)
    for size in sizes:
        _positive_int(name, size)


def _split_dim(name: str, value: object) -> None:
    if value not in (-2, -1):
        raise ValueError(f"{name} must be -2 (rows) or -1 (columns), got {value!r}")


def _dtype(name: str, value: object) -> None:
    if value is not None and value not in DTYPES:
        names = ", ".join(str(dtype) for dtype in DTYPES)
        raise ValueError(f"{name} must be None or one of {names}, got {value!r}")


def _state_dtype(name: str, value: object) -> None:
    if value == torch.float16:
        raise ValueError(
            f"{name} must not be torch.float16, which cannot hold the square of a gradient above "
            "256; torch.bfloat16 is as small and has the range of float32"
        )
    _dtype(name, value)


def _foreach(name: str, value: object) -> None:
    if value not in (None, True, False):
        raise TypeError(f"{name} must be None, True or False, got {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_CHECKS: Final[Mapping[str, Callable[[str, object], None]]] = {
    "lr": _lr,
    "betas": _betas,
    "rest_betas": _betas,
    "eps": _not_negative,
    "weight_decay": _not_negative,
    "refresh_every": _positive_int,
    "max_dim": _positive_int,
    "ema_rate": _decay,
    "split": _split,
    "split_dim": _split_dim,
    "state_dtype": _state_dtype,
    "msign_dtype": _dtype,
    "foreach": _foreach,
}
