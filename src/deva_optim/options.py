"""Every option once: its check, its default in a parameter group, and what it is.

The signature of a class says which options an optimizer takes, and with which defaults. The
docstrings, the parameter groups and the errors are made from the table here.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor

from .core.directions import JORDAN, MSIGN_KINDS
from .core.matrices import Layout, matrices
from .core.methods import ELEMENTWISE, METHODS, VARIANTS, method_of
from .core.state import DTYPES

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

NonFinite = Literal["skip", "raise"]
Ranks: TypeAlias = "ProcessGroup | DeviceMesh | None"
StateDType: TypeAlias = "torch.dtype | Literal['int8'] | None"
Rest = Literal["deva-linf", "adamw", "signum", "lion"]
Sides = Literal["both", "short"]
Variant = Literal["default", "factored", "instantaneous", "whitened", "lean"]

# Checks: a name and a value → an error that says what the value must be --------------------------

Check = Callable[[str, object], None]


def _check(
    requirement: str, holds: Callable[[Any], bool], error: type[Exception] = ValueError
) -> Check:
    def check(name: str, value: object) -> None:
        if not holds(value):
            raise error(f"{name} {requirement}, got {value!r}")

    return check


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise an error that names the nearest choice, if the value is none of them."""
    choices = tuple(choices)
    if value not in choices:
        hint = nearest(str(value), choices, cutoff=0.4)
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


def nearest(word: str, choices: Iterable[str], cutoff: float) -> str:
    """What the user may have meant, as the end of an error; nothing if no choice is that near."""
    near = difflib.get_close_matches(word, choices, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def _one_of(*choices: str) -> Check:
    return lambda name, value: check_choice(name, value, choices)


def _optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


_any = _check("", lambda x: True)
_flag = _check("must be True or False", lambda x: isinstance(x, bool), TypeError)
_flag_or_none = _check("must be None, True or False", lambda x: x in (None, True, False), TypeError)
_unsupported = _check("is not supported, and must be False", lambda x: x is False)
_amount = _check("must be at least 0 and finite", lambda x: _is_number(x) and 0 <= x < math.inf)
_decay = _check("must be in [0, 1)", lambda x: _is_number(x) and 0 <= x < 1)
_count = _check("must be a whole number of at least 1", lambda x: type(x) is int and x >= 1)
_rows_or_columns = _check("must be -2 (rows) or -1 (columns)", lambda x: x in (-2, -1))
_quintic = _check(
    "must be three numbers",
    lambda x: isinstance(x, tuple) and len(x) == 3 and all(map(_is_number, x)),
)
_scale = _check(
    "must be 'match_rms_adamw', 'original' or None",
    lambda x: x in (None, "original", "match_rms_adamw"),
)
_compile = _check(
    "must be True, False or the name of a backend of torch.compile",
    lambda x: isinstance(x, bool) or x in torch.compiler.list_backends(exclude_tags=()),
)
_dtype = _check(
    f"must be None or one of {', '.join(map(str, DTYPES))}", lambda x: x in (None, *DTYPES)
)
_wire_dtype = _check(  # float16 would overflow
    "must be torch.bfloat16, or None to send numbers as they are",
    lambda x: x in (None, torch.bfloat16),
)
_state_dtype = _check(
    "must be None, 'int8' or one of torch.float64, torch.float32, torch.bfloat16 (torch.float16 "
    "cannot hold the square of a gradient above 256)",
    lambda x: x in (None, "int8", *DTYPES) and x != torch.float16,
)


def _lr(name: str, value: object) -> None:
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise ValueError(
                f"{name} must be a float or a 0-D floating-point tensor, got a tensor of shape "
                f"{tuple(value.shape)} and {value.dtype}"
            )
        value = value.item()
    _amount(name, value)


def _betas(name: str, value: object) -> None:
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        raise ValueError(f"{name} must be two or three numbers, got {value!r}")
    for i, beta in enumerate(value):
        _decay(f"{name}[{i}]", beta)


def _split(name: str, value: object) -> None:
    for size in value if isinstance(value, tuple) else () if value is None else (value,):
        _count(name, size)


# The table ---------------------------------------------------------------------------------------

ABSENT: Final = object()  # the default of an argument that no group holds


class Option(NamedTuple):
    """One row of the table.

    Attributes:
        check: Raises an error, with the option, its value and the requirement, if that is not met.
        default: What a group holds unless the user or the class says otherwise.
        text: What it is. A class for which it is something else says so in its docstring.
    """

    check: Check
    default: Any
    text: str


# fmt: off
OPTIONS: Final[Mapping[str, Option]] = {
    "params": Option(_any, ABSENT,
        "A model, whose parameters are routed by `param_groups`, or parameters, named parameters "
        "or parameter groups. A tensor that is a matrix and has no `role` counts as a hidden one."),
    "lr": Option(_lr, 1e-3,
        "Learning rate η, a float or a 0-D tensor."),
    "betas": Option(_betas, (0.9, 0.99),
        "Decay of M, of V and of the covariances; the last is 0.95 unless given."),
    "momentum": Option(_decay, ABSENT,
        "Decay β₁ of M."),
    "eps": Option(_amount, 1e-8,
        "ε, relative to the mean of V."),
    "weight_decay": Option(_amount, 0.0,
        "Decoupled weight decay λ."),
    "nesterov": Option(_flag, False,
        "Take the direction of β₁ M + (1 − β₁) G in place of that of M."),
    "maximize": Option(_flag, False,
        "Maximize the objective instead of minimizing it."),
    "foreach": Option(_flag_or_none, None,
        "False updates one tensor at a time. True and None update tensors of one shape together, "
        "where they are small enough for that to be faster."),
    "compile": Option(_compile, False,
        "Compute the update of each shape by a graph of `torch.compile`: True, or the name of a "
        "backend. The first steps take longer, by some seconds for each shape. Betas and ε are "
        "constants of it; from the ninth value of them on the update is not compiled."),
    "fused": Option(_flag_or_none, ABSENT,
        "Accepted for the sake of code that was written for `torch.optim`; it changes nothing."),
    "amsgrad": Option(_unsupported, ABSENT,
        "Not supported: True is an error."),
    "capturable": Option(_unsupported, ABSENT,
        "Not supported: True is an error."),
    "differentiable": Option(_unsupported, ABSENT,
        "Not supported: True is an error."),
    "method": Option(_one_of(*METHODS), "adamw",
        "The row of `METHODS` that takes the matrices, or everything if it is elementwise."),
    "refresh_every": Option(_count, 10,
        "Steps between two refreshes of a basis."),
    "covariance_every": Option(_optional(_count), None,
        "Steps between two gradients that the covariances take in; their decay is that of as many "
        'steps. None is 5 for `variant="lean"` and 1 for all others.'),
    "stagger": Option(_flag, True,
        "Refresh the bases of different parameters at different steps; False refreshes all of them "
        "at the same step."),
    "variant": Option(_one_of(*VARIANTS), "default",
        '`"default"` is the paper\'s Γ ⊙ msign(M′). `"factored"` keeps V in n + m numbers. '
        '`"instantaneous"` measures the variance of the gradient in place of the momentum\'s. '
        '`"whitened"` is msign(Γ ⊙ M′), with V the average of the squared gradient. `"lean"` is '
        "that with V in n + m numbers and a basis on the short side alone, whatever `sides` says."),
    "sign_stabilize": Option(_flag, False,
        "Take the matrix sign of sign(M′) in place of that of M′."),
    "msign": Option(_one_of(*MSIGN_KINDS), "newton-schulz",
        'How the matrix sign is computed: `"newton-schulz"`, `"polar-express"`, `"svd"`, `"soft"`, '
        'which does not lift the smaller singular values to one, or `"firm"`, which does so in '
        "small matrices (see `deva_optim.msign`)."),
    "ns_steps": Option(_count, 5,
        'How many steps `msign="newton-schulz"` takes.'),
    "ns_coefficients": Option(_quintic, JORDAN,
        "a, b and c of a step: X ← a X + (b X Xᵀ + c (X Xᵀ)²) X."),
    "adjust_lr_fn": Option(_scale, ABSENT,
        '`"match_rms_adamw"` scales the update of an n×m matrix by 0.2 √max(n, m), which gives it '
        'the RMS of AdamW\'s. `"original"` or None scales it by √max(1, n/m), as '
        "`torch.optim.Muon` does by default."),
    "msign_dtype": Option(_dtype, None,
        "dtype of the products of the matrix sign. None is bfloat16 where the GPU has units for "
        'it, but for `variant="lean"` with `msign="soft"` or `"firm"`, and the dtype of the '
        'computation elsewhere. `"svd"` does not use it.'),
    "graft": Option(_one_of("adam", "none"), ABSENT,
        '`"adam"` gives the update the norm of Adam\'s, `"none"` leaves it its own.'),
    "sides": Option(_one_of(*get_args(Sides)), "both",
        '`"both"` keeps a basis for each side of a matrix, `"short"` for the shorter side of a '
        "rectangle alone."),
    "max_dim": Option(_count, 10_000,
        "A side that is longer than this keeps the identity as its basis."),
    "skip_first": Option(_flag, False,
        "Let the first gradient choose the bases and do nothing else."),
    "rest": Option(_one_of(*ELEMENTWISE), "adamw",
        'The method for what is not a matrix: `"adamw"`, `"deva-linf"`, `"signum"` or `"lion"`. '
        "Embeddings and output heads are among it if the model is given."),
    "rest_betas": Option(_betas, (0.9, 0.99),
        "The betas of the method for the rest. A scheduler that cycles the momentum, such as "
        "`OneCycleLR`, sets the first of them, too."),
    "rest_lr": Option(_optional(_lr), ABSENT,
        "Learning rate of what is not a hidden matrix. None is `lr`. Each rate is the `lr` of "
        "groups of its own, so that a scheduler multiplies all of them."),
    "rest_weight_decay": Option(_optional(_amount), ABSENT,
        "Weight decay of what is not a hidden matrix and is decayed at all. None is "
        "`weight_decay`."),
    "embedding_lr": Option(_optional(_lr), ABSENT,
        "Learning rate of embeddings. None is `rest_lr`."),
    "head_lr": Option(_optional(_lr), ABSENT,
        "Learning rate of output heads. None is `rest_lr`."),
    "nonfinite": Option(_one_of(*get_args(NonFinite)), "skip",
        'What a NaN or an infinity in a gradient does: `"skip"` leaves out the step of that '
        'parameter, `"raise"` raises an error before anything is changed.'),
    "state_dtype": Option(_state_dtype, None,
        "dtype of the momentum and of the second moment, where there is one. None is float32, and "
        "float64 for float64 parameters. A momentum that is kept in the coordinates of a basis, "
        'that of SOAP or of `variant="whitened"`, has that precision whatever is given. `"int8"` '
        "keeps those of weights with two dimensions or more as codes of one byte, with a scale for "
        "each block of 256, and bases in bfloat16."),
    "stochastic_rounding": Option(_flag, True,
        "Round weights in bfloat16 and float16 up or down at random, so that they are right on "
        "average and updates below half a unit are not lost. False rounds them to the nearest "
        "number. Other weights are not rounded."),
    "ema_rate": Option(_optional(_decay), None,
        "Decay ρ of an average of the weights, in float32 and as large as they are, which "
        "`averaged()` shows in their place. None keeps none."),
    "role": Option(_one_of("auto", "matrix", "vector"), "auto",
        '`"vector"` is for the method of the rest, `"matrix"` for matrices alone; `"auto"` goes by '
        "the shape of each parameter."),
    "layout": Option(_one_of(*get_args(Layout)), "auto",
        '`"conv"` flattens all dimensions but the first, `"stack"` reads the last two as a matrix; '
        '`"auto"` flattens from four dimensions on.'),
    "split": Option(_split, None,
        "The number of equal parts, or the sizes of the parts, that a fused weight is cut into."),
    "split_dim": Option(_rows_or_columns, -2,
        "The dimension along which it is cut: -2 for rows, -1 for columns."),
    "process_group": Option(_any, ABSENT,
        "The ranks that hold copies of the parameters (a process group or a device mesh), to share "
        "the work among them. DTensors know their ranks by themselves."),
    "wire_dtype": Option(_wire_dtype, ABSENT,
        "torch.bfloat16 halves what ranks send each other for matrices in float32, by rounding it; "
        "state and arithmetic stay as they are. None sends numbers as they are."),
}
# fmt: on

DEFAULTS: Final[Mapping[str, Any]] = {
    name: option.default for name, option in OPTIONS.items() if option.default is not ABSENT
}
"""What a group holds unless the user or the class says otherwise."""


# What is made of it: groups, and the documentation of classes ------------------------------------


def group_defaults(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the groups of an optimizer hold unless they say otherwise.

    Args:
        method: The row of `METHODS`.
        options: The `locals()` of the `__init__` of a class. What no group holds is checked here
            and left out; the rest is checked with each group.
    """
    given = {name: value for name, value in options.items() if name in OPTIONS}
    held = dict(DEFAULTS)
    if "momentum" in given:  # in the place of betas, so that schedules of momentum find it
        held["momentum"] = held.pop("betas")[0]
    for name in given.keys() - held.keys():
        OPTIONS[name].check(name, given.pop(name))
    return {**held, **given, "method": method}


def checked_group(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A group with all its options, or an error that says what is wrong with one of them."""
    group = {**defaults, **given}
    for name in OPTIONS:
        if name in group and name != "params":
            group[name] = plain(group[name])
            OPTIONS[name].check(name, group[name])
    _settle_betas(group, defaults, given)
    if "lr_scale" in group:  # of a layer, in fine-tuning
        _amount("lr_scale", scale := plain(group.pop("lr_scale")))
        if isinstance(group["lr"], Tensor):  # which may be changed in place
            group["lr_factor"] = scale
        else:
            group["lr"] *= scale
    _check_method(group)
    return group


def check_options(group: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise an error if some options of a group, written into it later, make no sense."""
    for name in names:
        if name in OPTIONS:
            OPTIONS[name].check(name, plain(group[name]))


def plain(value: Any) -> Any:
    """Sequences as tuples and numbers as Python's, which `torch.load` reads by default.

    Those of NumPy, of OmegaConf and others have classes of their own.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(plain, value))
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _check_method(group: Mapping[str, Any]) -> None:
    """Raise an error if the method of a group does not have what its options ask for."""
    name, method = group["method"], method_of(group)
    if group["skip_first"] and not (method.basis and method.basis.tracked):
        raise ValueError(f"skip_first is for DeVA-S∞ and SOAP alone, got True for {name}")
    every = group["covariance_every"] or 1
    if every > 1 and (method.basis is None or method.basis.includes_gradient):
        raise ValueError(
            f"covariance_every is for methods that work in a basis, got {every} for {name}; leave "
            "it out"
        )
    if group["sign_stabilize"] and method.whitens:
        raise ValueError(
            f"sign_stabilize undoes variant {group['variant']!r}: the sign of Γ ⊙ M is that of M; "
            "leave it out, or take variant='default'"
        )


def complete_(group: dict[str, Any]) -> None:
    """Give a group what it lacks, from a checkpoint that is older than an option."""
    group.pop("lr_scale", None)  # of another optimizer, whose rate was saved with it
    if _holds_rest(group) and "rest_betas" in group:
        group["betas"] = group.pop("rest_betas")
    absent = {"betas" if "momentum" in group else "", "rest_betas" if _holds_rest(group) else ""}
    for key in DEFAULTS.keys() - absent:
        group.setdefault(key, DEFAULTS[key])


def _holds_rest(group: Mapping[str, Any]) -> bool:
    """Whether a group has the role of vectors, in an optimizer of matrices."""
    method = METHODS[group.get("method", "adamw")]  # of torch's AdamW there is no name
    return group.get("role") == "vector" and method.vector is not None


def _settle_betas(
    group: dict[str, Any], defaults: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """Leave one name for the decay of the momentum in the group, to be changed at any time.

    It is `momentum` in the groups of an optimizer with that argument, and else the first of
    `betas`. In a group of vectors `betas` are those of the method for the rest.
    """
    if _holds_rest(group):
        rest, first = group.pop("rest_betas"), group.pop("momentum", None)
        betas = given.get("betas", rest)
        group["betas"] = (first, *betas[1:]) if "momentum" in given else betas
    elif "momentum" in defaults and "betas" in group:
        betas = group.pop("betas")
        group["momentum"] = given.get("momentum", betas[0])
    elif "momentum" in group and "betas" in group:
        group["betas"] = (group.pop("momentum"), *group["betas"][1:])


def settle_momentum_(groups: Iterable[dict[str, Any]], defaults: Mapping[str, Any]) -> bool:
    """Make a `momentum` that was written into a group with `betas` the first of them.

    It would stand above all betas that are written later. Returns whether there was any. Where the
    name is `momentum`, schedulers of torch write it into groups of vectors, too, and it does.
    """
    found = False
    for group in groups:
        if "momentum" not in group or "betas" not in group:
            continue
        if "momentum" not in defaults:
            group["betas"] = (group.pop("momentum"), *group["betas"][1:])
            found = True
        elif not _holds_rest(group):
            raise ValueError(
                f"a parameter group has betas {group['betas']} beside its momentum "
                f"{group['momentum']}, which alone counts here; write group['momentum']"
            )
    return found


_T = TypeVar("_T")
_SECTION: Final = re.compile(r"^Args:\n((?: {4}.*\n)+)", re.MULTILINE)
_ARGUMENT: Final = re.compile(r"^ {4}(\w+): (.*\n(?: {8}.*\n)*)", re.MULTILINE)


def documented(cls: type[_T]) -> type[_T]:
    """The class, its docstring completed by every argument, in the order of the signature.

    In the source the section `Args:` has the sentences that are particular to the class; the table
    has the others. All of them are in `cls.arguments`, too.
    """
    signature = inspect.signature(cls).parameters
    doc = inspect.cleandoc(cls.__doc__ or "") + "\n"  # python -OO has none
    section = _SECTION.search(doc)
    own = {} if section is None else dict(_ARGUMENT.findall(section[1]))
    if own.keys() - signature.keys():
        raise TypeError(f"{cls.__name__} has no argument {min(own.keys() - signature.keys())}")
    texts = {name: " ".join(own.get(name, OPTIONS[name].text).split()) for name in signature}
    cls.arguments = texts  # type: ignore[attr-defined]  # `BaseOptimizer` declares it
    if section is not None:
        lines = [_entry(name, text, signature[name].default) for name, text in texts.items()]
        cls.__doc__ = doc[: section.start(1)] + "".join(lines) + doc[section.end(1) :]
    return cls


def _entry(name: str, text: str, default: object) -> str:
    shown = f'"{default}"' if isinstance(default, str) else repr(default)
    text = f"{name}: {text}" + ("" if default is inspect.Parameter.empty else f" Default: {shown}.")
    lines = textwrap.wrap(
        text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
    )
    return "\n".join(lines) + "\n"


# What a parameter must be ------------------------------------------------------------------------


def check_parameter(param: Tensor, name: str, group: Mapping[str, Any]) -> None:
    """Raise an error if a parameter cannot be optimized as its group says."""
    if param.requires_grad:  # a frozen weight may be quantised, or a placeholder
        if param.is_complex():
            raise TypeError(f"{name} is complex; optimize torch.view_as_real of it")
        if param.dtype not in DTYPES:
            kinds = ", ".join(map(str, DTYPES))
            raise TypeError(f"{name} must be a tensor of {kinds}, got {param.dtype}")
        if param.numel() == 0:
            raise ValueError(f"{name} has no elements (shape {tuple(param.shape)}); leave it out")
    matrices(tuple(param.shape), group, name)
