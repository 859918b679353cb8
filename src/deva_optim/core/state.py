"""The state of a parameter: what it starts from, and how it comes back from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from .bases import BASES, SIDES
from .codes import CODED, zero_codes
from .linalg import HALF, compute_dtype
from .matrices import PARAMETER_SHAPED, Part
from .methods import Method, basis_sides
from .parameters import Reading
from .units import UNSET

# What steers the host, and so lives in its memory, also where another device is the default.
_HOST_STATE: Final = ("clock", "waiting", "exponent", "rounding")
# ρ A + (1 − ρ) X, as the average of the weights was once kept: without its bias correction.
FORMER_AVERAGE: Final = "iterate_avg"
DTYPES: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DTYPES: Final = {str(dtype): dtype for dtype in DTYPES}


def initial_state(
    param: Tensor, group: dict[str, Any], method: Method, parts: tuple[Part, ...], phase: int = 0
) -> dict[str, Tensor]:
    """The state of a parameter before its first step; nothing in it depends on a gradient."""
    wide = param.new_zeros((), dtype=compute_dtype(param))
    in_codes = group["state_dtype"] == "int8"
    small = wide if in_codes else wide.to(group["state_dtype"] or wide.dtype)
    momentum = (wide if method.rotated else small).new_zeros(param.shape)
    state = {"step": wide.float(), "exp_avg": momentum}
    if group["ema_rate"] is not None:
        state["weight_avg"] = wide.new_zeros(param.shape)
    if param.dtype in HALF:
        state["rounding"] = torch.tensor(0, device="cpu")
    waiting = 0
    for i, part in enumerate(parts):
        suffix = f".{i}" if len(parts) > 1 else ""
        matrices = part.shape[:-2] if method.vector is not None else ()
        state["exponent" + suffix] = torch.full(matrices, UNSET, device="cpu")
        moments = {} if method.adaptation is None else method.adaptation.moments(part.shape)
        for key, shape in moments.items():
            if key in PARAMETER_SHAPED:
                state[key] = small.new_zeros(param.shape)
            else:
                kept = wide if method.lean else small
                state[key + suffix] = kept.new_zeros(shape)
        basis = _basis(method, part, group, wide)
        if basis and (part.shape[:-2] or suffix):
            basis["idle"] = wide.float().new_zeros(part.shape[:-2])
        state.update({key + suffix: value for key, value in basis.items()})
        waiting += part.matrices if basis else 0
    if method.basis is not None:
        state["clock"] = torch.tensor(-1 - phase, device="cpu")
        state["waiting"] = torch.tensor(waiting, device="cpu")
    return _in_codes(state, method) if in_codes else state


def _in_codes(state: dict[str, Tensor], method: Method) -> dict[str, Tensor]:
    """A first state with M and V as codes and bases in bfloat16; that of a vector as it is."""
    found = dict(state)
    for key in CODED.keys() & state.keys():
        if state[key].ndim > 1 and not (method.rotated and key == "exp_avg"):
            found |= zero_codes(state[key], key)
    for key, x in state.items():
        if key.split(".")[0] in BASES:
            found[key] = x.bfloat16()
    return found


def on_host(key: str) -> bool:
    """Whether a state of this name lives in the memory of the host, whatever the device."""
    return key.split(".")[0] in _HOST_STATE


def _basis(method: Method, part: Part, group: dict[str, Any], like: Tensor) -> dict[str, Tensor]:
    """Zero covariances and identity bases for the sides of a part that have one."""
    if method.basis is None:
        return {}
    *lead, n, m = part.shape
    which = basis_sides(method, group, part.shape)
    found = {}
    for side, size, has_basis in zip(SIDES, (n, m), which, strict=True):
        if has_basis:
            found[f"covariance_{side}"] = like.new_zeros(*lead, size, size)
            identity = torch.eye(size, dtype=like.dtype, device=like.device)
            found[f"{method.basis.keeps}_{side}"] = identity.repeat(*lead, 1, 1)
    return found


def named_dtypes(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups with dtypes by name: torch's checkpoints of ranks take strings, but no dtypes."""
    return [
        {key: str(x) if isinstance(x, torch.dtype) else x for key, x in group.items()}
        for group in groups
    ]


def true_dtypes(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups with dtypes in the place of their names; undoes `named_dtypes`."""
    return [
        {key: _DTYPES.get(x, x) if key.endswith("_dtype") else x for key, x in group.items()}
        for group in groups
    ]


_REMEDY: Final = (
    "set options such as variant, role and sides before the first step, and load a state that was "
    "saved whole, by an optimizer with the same ones"
)


def check_loaded(readings: Iterable[Reading], state: Mapping[Tensor, dict[str, Any]]) -> None:
    """Raise an error if a state is not what the options ask for, or is of another shape."""
    for r in readings:
        like = torch.empty(r.param.shape, dtype=r.param.dtype, device="meta")
        values, first = state[r.param], initial_state(like, r.group, r.method, r.parts)
        for key in values:
            if key not in first and key.startswith(("covariance", "exponent")):
                raise ValueError(
                    f"the state of {r.name} has {key}, which the options of its group leave out; "
                    f"{_REMEDY}"
                )
        _bring_up_to_date_(values, first, r.group)
        for key, wanted in first.items():
            x = values.get(key)
            if x is None:
                raise ValueError(
                    f"the state of {r.name} has no {key}, which the options of its group ask for; "
                    f"{_REMEDY}"
                )
            if x.shape != wanted.shape:
                raise ValueError(
                    f"{key} of {r.name} must have shape {tuple(wanted.shape)}, got "
                    f"{tuple(x.shape)}; load the state of a model of the same shapes"
                )


def _bring_up_to_date_(
    values: dict[str, Any], first: Mapping[str, Tensor], group: Mapping[str, Any]
) -> None:
    """Make a state of an earlier version, or of torch, what it would be today."""
    for key, wanted in first.items():
        if key not in values and key.startswith("exponent"):
            values[key] = _former_exponents(values, key, wanted)
        elif key not in values and key == "rounding":  # saved before it was at random
            values[key] = wanted
        elif key == "weight_avg" and FORMER_AVERAGE in values:
            mass = 1 - group["ema_rate"] ** float(values["step"])
            values[key] = values.pop(FORMER_AVERAGE) / (mass or 1.0)
        elif isinstance(x := values.get(key), int | float):  # a count of steps, before torch 1.12
            values[key] = torch.tensor(x, dtype=wanted.dtype, device="cpu")


def _former_exponents(values: Mapping[str, Any], key: str, like: Tensor) -> Tensor:
    """The exponents of a state that was saved before there were any: 0 where there is a basis."""
    suffix = key.removeprefix("exponent")
    found = torch.zeros_like(like)
    for covariance in (f"covariance_{side}{suffix}" for side in SIDES):
        if (x := values.get(covariance)) is not None:
            whole = x.full_tensor() if hasattr(x, "full_tensor") else x
            found[whole.cpu().diagonal(dim1=-2, dim2=-1).sum(-1) == 0] = UNSET
    return found


def copied(x: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of its own, contiguous, so that the matrices in it are views."""
    return x.to(device, copy=True, memory_format=torch.contiguous_format)
