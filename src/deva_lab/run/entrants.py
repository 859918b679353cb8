"""Optimizers as the command line names them: "deva", "muon:nesterov=true"."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, get_args, get_origin

import torch
from torch import nn
from torch.optim import Optimizer

import deva_optim
from deva_optim.core.methods import Method
from deva_optim.core.variance import SPECTRAL, gradient_mass
from deva_optim.optimizer import BaseOptimizer

from ..errors import UsageError, unknown
from .settings import OPTIMIZERS, TUNED

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


# κ counts all steps, those without a gradient too.
_AUTHORS: Final = deva_optim.METHODS["deva-sinf"]._replace(
    adaptation=SPECTRAL._replace(mass=gradient_mass, waits=False), rests=False
)


class AuthorsDeVASinf(deva_optim.DeVASinf):
    """DeVA-S∞ with the bias correction of its authors' code, to measure what the exact one buys.

        authors' κ_t = √(1 − β₂ᵗ) / (1 − β₁ᵗ)     exact κ_t = √w_t / (1 − β₁ᵗ), see docs/maths.md

    V is an average of r cᵀ, which starts as small as (1 − β₁)², so V needs more correction than an
    average of something that is constant: the first steps are up to 20 times too long.
    """

    methods: ClassVar[Mapping[str, Method]] = {**deva_optim.METHODS, "deva-sinf": _AUTHORS}


class Known(NamedTuple):
    """An optimizer that can be asked for by name, and the rate that it has unless one is given."""

    build: Callable[..., Optimizer]
    lr: float
    options: Mapping[str, Any]


_OTHERS: Final = {"AuthorsDeVASinf": AuthorsDeVASinf, "torch.optim.AdamW": torch.optim.AdamW}
ENTRANTS: Final[Mapping[str, Known]] = {
    name: Known(_OTHERS.get(of) or getattr(deva_optim, of), lr, options)
    for name, (of, lr, options) in OPTIMIZERS.items()
}

_DTYPES: Final = ("float16", "bfloat16", "float32", "float64")
_NOT_OPTIONS: Final = ("self", "params", "process_group")


@dataclass(frozen=True)
class Entrant:
    """An optimizer with settings.

    Attributes:
        name: Its name in `ENTRANTS`.
        options: What is set apart from the learning rate, in the order of the alphabet.
        lr: Its own learning rate, if one was given.

    >>> Entrant.parse("deva:variant=factored,lr=3e-3")
    Entrant(name='deva', options=(('variant', 'factored'),), lr=0.003)
    >>> Entrant.parse("deva:nesterov=true,sides=short").label
    'deva:nesterov=true,sides=short'
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    lr: float | None = None

    @classmethod
    def parse(cls, text: str) -> Entrant:
        """The entrant that a text names.

        Raises:
            UsageError: If there is no such optimizer or option, or a value does not fit.
        """
        name, _, settings = text.strip().partition(":")
        if name.lower() not in ENTRANTS:
            raise unknown("optimizer", name, ENTRANTS)
        options = dict(_setting(name.lower(), item) for item in settings.split(",") if item)
        lr = options.pop("lr", None)
        if lr is not None and not _positive(lr):
            raise UsageError(f"the lr of {text!r} must be a positive number, got {lr!r}")
        entrant = cls(name.lower(), tuple(sorted(options.items())), lr)
        entrant.check()
        return entrant

    @property
    def label(self) -> str:
        """The entrant as text, without its learning rate; `parse` reads it."""
        options = ",".join(f"{key}={_written(value)}" for key, value in self.options)
        return f"{self.name}:{options}" if options else self.name

    @property
    def default_lr(self) -> float:
        """Its own learning rate, or what was found for its settings, or the optimizer's usual."""
        usual = TUNED.get(self.label, ENTRANTS[self.name].lr)
        return usual if self.lr is None else self.lr

    @property
    def has_telemetry(self) -> bool:
        """Whether its steps can be recorded: those of PyTorch's optimizers cannot."""
        build = ENTRANTS[self.name].build
        return isinstance(build, type) and issubclass(build, BaseOptimizer)

    def build(self, model: nn.Module, lr: float, ranks: ProcessGroup | None = None) -> Optimizer:
        """The optimizer for a model, its parameters routed to matrices and the rest.

        Ranks that have the same weights share out its updates, if it has any to share.
        """
        known = ENTRANTS[self.name]
        options = {**known.options, **dict(self.options)}
        if ranks is not None and "process_group" in inspect.signature(known.build).parameters:
            options["process_group"] = ranks
        if known.build is torch.optim.AdamW:
            return known.build(model.parameters(), lr=lr, **options)
        return known.build(model, lr=lr, **options)

    def check(self) -> None:
        """Raises what the optimizer has to say against the options."""
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        try:
            self.build(model, self.default_lr)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self.label}: {error}") from error


def entrants(names: str | Iterable[str]) -> list[Entrant]:
    """The entrants of a list, or of a text of them separated by commas.

    What has a "=" in the text belongs to the one before it.

    >>> [entrant.label for entrant in entrants("deva:sides=short,eps=1e-6,muon")]
    ['deva:eps=1e-06,sides=short', 'muon']
    """
    parts = [] if isinstance(names, str) else list(names)
    for item in names.split(",") if isinstance(names, str) else ():
        if "=" in item and ":" not in item and parts:
            parts[-1] += f",{item.strip()}"
        elif item.strip():
            parts.append(item)
    if not parts:
        raise UsageError(f"no optimizer in {names!r}: name at least one, for example deva,muon")
    return list(dict.fromkeys(map(Entrant.parse, parts)))


def label_of(text: str) -> str:
    """The label of the entrant that a text names; the text itself if it names none.

    >>> label_of("muon:nesterov=true,momentum=0.8"), label_of("mine")
    ('muon:momentum=0.8,nesterov=true', 'mine')
    """
    try:
        return Entrant.parse(text).label
    except UsageError:
        return text


class Option(NamedTuple):
    """An option of an optimizer: its type, its default as one would type it, and what it is."""

    type: str
    default: str
    text: str


def options_of(name: str) -> dict[str, Option]:
    """The options that an optimizer has in the laboratory, by name."""
    known = ENTRANTS[name]
    texts: Mapping[str, str] = getattr(known.build, "arguments", {})  # PyTorch's have none
    usual = {"lr": known.lr, **known.options}
    return {
        key: Option(
            _type(parameter.annotation),
            _written(usual.get(key, parameter.default)),
            texts.get(key, "See the documentation of PyTorch."),
        )
        for key, parameter in inspect.signature(known.build, eval_str=True).parameters.items()
        if key not in _NOT_OPTIONS
    }


def _type(annotation: Any) -> str:
    """A type as one reads it, a literal by its values."""
    if get_origin(annotation) is Literal:
        return " | ".join(get_args(annotation))
    return inspect.formatannotation(annotation)


def _setting(name: str, item: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in item.partition("="))
    if not equals or not value:
        raise UsageError(f"{name}: a setting looks like key=value, got {item!r}")
    if key not in options_of(name):
        raise unknown(f"option of {name}", key, options_of(name))
    written = value in options_of(name)[key].type.split(" | ")  # a word such as none
    return key, value if written else _value(value)


def _value(text: str) -> Any:
    """A number, a truth value, a dtype, a tuple written with slashes, or the text itself."""
    if "/" in text:
        return tuple(_value(part) for part in text.split("/"))
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text in _DTYPES:  # not any dtype of torch: "short" is one
        return getattr(torch, text)
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_written, value))
    if isinstance(value, float):
        return repr(value)
    return str(value).lower().removeprefix("torch.")


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0
