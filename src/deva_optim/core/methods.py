"""The table of methods: a basis, a direction, a variance adaptation and a scale, one row each.

An update is X ← (1 − ηλ) X − η · s · restore(Γ ⊙ direction(project(M))).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from torch import Tensor

from ..averages import average_iterates_
from .directions import rms_scale, spectral_scale, unit_scale
from .linalg import Number, Term
from .step import (
    adapted_first_,
    composed_,
    ema_,
    lion_,
    mean_side_rate,
    plain_ema_,
    shampoo_,
    unit_rate,
    vector_rate,
)
from .upkeep import DECOMPOSED, INVERSE_ROOT, TRACKED, Basis
from .variance import (
    ADAM,
    DIRECTION,
    FACTORED,
    INSTANTANEOUS,
    LINF,
    SPECTRAL,
    WHITENING,
    Adaptation,
)

if TYPE_CHECKING:
    from .batch import Stack


class Method(NamedTuple):
    """One row of the table.

    Attributes:
        name: Its key in METHODS.
        basis: How its bases are kept; None is the identity.
        direction: The sign of what is in the basis, or its matrix sign.
        adaptation: Γ; None is 1.
        scale: s, from the update.
        vector: The method for what is not a matrix; None if this one is elementwise.
        paper: Where it comes from.
        momentum: How the momentum takes in a gradient, and what it shows the direction.
        update: What computes the update and the number that multiplies it: for most the composition
            above, for some Γ comes before the direction, and Shampoo has neither.
        rate: What multiplies the learning rate, decay included, from the shape; SPlus has one.
        after: What follows the update of the weights; SPlus averages its iterates.
        beta3: Decay of the covariances unless betas has three values; None takes betas[1].
        rests: Whether a step has its full length however small the momentum is: then a matrix whose
            gradient is exactly zero is left as it is, but for weight decay.
        whitens: Whether Γ comes before the direction: direction(Γ ⊙ M) in place of Γ ⊙ direction(M).
        rotated: Whether M is kept in the coordinates of the basis, for those that need G there in
            any case: that spares them the projection of M. Such an M keeps full precision whatever
            `state_dtype` says. It is divided by a variance that its rounding is no part of: along
            directions without gradient that would make large steps of it.
    """

    name: str
    basis: Basis | None
    direction: Literal["sign", "msign"]
    adaptation: Adaptation | None
    scale: Callable[[Term], Tensor | float]
    vector: str | None
    paper: str
    momentum: Callable[[Stack], Tensor] = ema_
    update: Callable[[Stack], tuple[Term, Number]] = composed_
    rate: Callable[[tuple[int, ...]], float] = unit_rate
    after: Callable[[Stack], None] | None = None
    beta3: float | None = 0.95
    rests: bool = False
    whitens: bool = False
    rotated: bool = False

    @property
    def waits(self) -> bool:
        """Whether its count of steps starts at the first gradient that is not zero."""
        return self.adaptation is not None and self.adaptation.waits


_DEVA = "Song et al. 2026, Decoupling Variance and Scale-Invariant Updates"
_ADAM = "Loshchilov & Hutter 2019, Decoupled Weight Decay Regularization"
_SIGNUM = "Bernstein et al. 2018, signSGD"
_LION = "Chen et al. 2023, Symbolic Discovery of Optimization Algorithms"
_MUON = "Jordan et al. 2024, Muon; scale of Liu et al. 2025, Muon is Scalable"
_ADAMUON = "Si et al. 2025, AdaMuon"
_SHAMPOO = "Gupta et al. 2018, Shampoo; grafting of Agarwal et al. 2020"
_SPLUS = "Frans et al. 2025, A Stable Whitening Optimizer"
_SOAP = "Vyas et al. 2024, SOAP"

# fmt: off
_ROWS: Final = (
    #      name                       basis    direction Γ            s               vector
    Method("adamw",                   None,    "sign",  ADAM,         unit_scale,     None, _ADAM,
           momentum=plain_ema_),
    Method("signum",                  None,    "sign",  None,         unit_scale,     None, _SIGNUM),
    Method("lion",                    None,    "sign",  None,         unit_scale,     None, _LION,
           momentum=lion_),
    Method("deva-linf",               None,    "sign",  LINF,         unit_scale,     None, _DEVA),
    Method("muon",                    None,    "msign", None,         spectral_scale, "adamw", _MUON, rests=True),
    Method("adamuon",                 None,    "msign", DIRECTION,    rms_scale,      "adamw", _ADAMUON, rests=True),
    Method("soap",                    TRACKED, "sign",  ADAM,         unit_scale,     "adamw", _SOAP,
           momentum=plain_ema_, rotated=True),
    Method("deva-sinf",               TRACKED, "msign", SPECTRAL,     spectral_scale, "deva-linf", _DEVA,
           rests=True),
    Method("deva-sinf-factored",      TRACKED, "msign", FACTORED,     spectral_scale, "deva-linf", _DEVA,
           rests=True),
    Method("deva-sinf-instantaneous", TRACKED, "msign", INSTANTANEOUS, spectral_scale, "deva-linf", _DEVA,
           rests=True),
    Method("deva-sinf-whitened",      TRACKED, "msign", WHITENING,    spectral_scale, "deva-linf", _DEVA,
           update=adapted_first_, rests=True, whitens=True, rotated=True),
    # Not of the common form: Shampoo multiplies by roots, SPlus averages its iterates.
    Method("shampoo",            INVERSE_ROOT, "sign",  ADAM,         unit_scale,     "adamw", _SHAMPOO,
           update=shampoo_),
    Method("shampoo-ungrafted",  INVERSE_ROOT, "sign",  None,         unit_scale,     "adamw", _SHAMPOO,
           update=shampoo_),
    Method("splus",              DECOMPOSED,   "sign",  None,         unit_scale,     "splus-vector", _SPLUS,
           rate=mean_side_rate, after=average_iterates_, beta3=None, rests=True),
    Method("splus-vector",       None,         "sign",  None,         unit_scale,     None, _SPLUS,
           rate=vector_rate, after=average_iterates_),
)
# fmt: on

METHODS: Final[Mapping[str, Method]] = MappingProxyType({row.name: row for row in _ROWS})
"""Every method by name, in the order of the table of the documentation."""

VARIANTS: Final = (
    "default",
    "factored",
    "instantaneous",
    "whitened",
    "ungrafted",
)


def method_of(group: Mapping[str, Any]) -> Method:
    """The row that a parameter group asks for."""
    variant = group["variant"]
    return METHODS[group["method"] + ("" if variant == "default" else f"-{variant}")]


RESTS: Final = tuple(name for name, row in METHODS.items() if row.vector is None)
"""The elementwise methods: what may take the parameters that are not matrices."""
