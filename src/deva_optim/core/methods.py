"""The table of methods: a basis, a direction, a variance adaptation and a scale, one row each.

An update is X ← (1 − ηλ) X − η · s · restore(Γ ⊙ direction(project(M))). `step.py` computes it;
what distinguishes one method from another is a field of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from .directions import rms_scale, shape_scale, spectral_scale, unit_scale
from .linalg import Number, Term
from .variance import (
    ADAM,
    DIRECTION,
    FACTORED,
    INSTANTANEOUS,
    LEAN,
    LINF,
    ROWS,
    SPECTRAL,
    WHITENING,
    Adaptation,
)

Shape = tuple[int, ...]


class Basis(NamedTuple):
    """What a method makes of its covariances, and when.

    Attributes:
        label: What the table of methods calls it.
        keeps: The name of the state: a basis or an inverse root.
        tracked: Whether the first gradient chooses the basis it is projected onto, and a power
            iteration renews it; otherwise the first step has the identity, and a full
            decomposition renews it.
        includes_gradient: Whether the gradient of a step is in the roots that are applied to it.
    """

    label: str
    keeps: str
    tracked: bool = False
    includes_gradient: bool = False


TRACKED: Final = Basis("eigenvectors, tracked", "basis", tracked=True)
DECOMPOSED: Final = Basis("eigenvectors", "basis")
INVERSE_ROOT: Final = Basis("inverse roots", "root", includes_gradient=True)


class Method(NamedTuple):
    """One row of the table.

    Attributes:
        name: Its key in METHODS.
        basis: What it makes of its covariances; None is the identity.
        direction: The sign of what is in the basis, or its matrix sign.
        adaptation: Γ; None is 1.
        scale: s, from the update and the shape of its matrices.
        vector: The method for what is not a matrix; None if this one is elementwise.
        paper: Where it comes from.
        whitens: Whether Γ comes before the direction: direction(Γ ⊙ M).
        momentum: `"ema"` shows the direction M, or with Nesterov β₁ M + (1 − β₁) G; `"plain"` shows
            M whatever the group says of Nesterov; `"lion"` shows β₁ M + (1 − β₁) G, then averages
            with β₂.
        rate: What multiplies the learning rate, decay included, from the shape; SPlus has one.
        beta3: Decay of the covariances unless betas has three values; None takes betas[1].
        rests: Whether a step has its full length however small the momentum is: then a matrix whose
            gradient is exactly zero is left as it is, but for weight decay.
        rotated: Whether M is kept in the coordinates of the basis, for those that need G there in
            any case: that spares them the projection of M. Such an M keeps full precision whatever
            `state_dtype` says. It is divided by a variance that its rounding is no part of: along
            directions without gradient that would make large steps of it.
        lean: Whether Γ is a product r cᵀ and the basis that of the short side alone, so that all
            but two products of a step are those of its Gram matrix; nothing is projected.
        covariance_every: Steps between two gradients that the covariances take in, unless the group
            says it.
    """

    name: str
    basis: Basis | None
    direction: Literal["sign", "msign"]
    adaptation: Adaptation | None
    scale: Callable[[Term, Shape], Number]
    vector: str | None
    paper: str
    whitens: bool = False
    momentum: Literal["ema", "plain", "lion"] = "ema"
    rate: Callable[[Shape], float] | None = None
    beta3: float | None = 0.95
    rests: bool = False
    rotated: bool = False
    lean: bool = False
    covariance_every: int = 1

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
_NORMUON = "Li et al. 2025, NorMuon"
_SHAMPOO = "Gupta et al. 2018, Shampoo; grafting of Agarwal et al. 2020"
_SPLUS = "Frans et al. 2025, A Stable Whitening Optimizer"
_SOAP = "Vyas et al. 2024, SOAP"

# fmt: off
_ROWS: Final = (
    #      name                       basis         direction  Γ              s               vector       paper
    Method("adamw",                   None,         "sign",    ADAM,          unit_scale,     None,        _ADAM,    momentum="plain"),
    Method("signum",                  None,         "sign",    None,          unit_scale,     None,        _SIGNUM),
    Method("lion",                    None,         "sign",    None,          unit_scale,     None,        _LION,    momentum="lion"),
    Method("deva-linf",               None,         "sign",    LINF,          unit_scale,     None,        _DEVA),
    Method("muon",                    None,         "msign",   None,          spectral_scale, "adamw",     _MUON,    rests=True),
    Method("muon-original",           None,         "msign",   None,          shape_scale,    "adamw",     _MUON,    rests=True),
    Method("adamuon",                 None,         "msign",   DIRECTION,     rms_scale,      "adamw",     _ADAMUON, rests=True),
    Method("normuon",                 None,         "msign",   ROWS,          rms_scale,      "adamw",     _NORMUON, rests=True),
    Method("soap",                    TRACKED,      "sign",    ADAM,          unit_scale,     "adamw",     _SOAP,    momentum="plain", rotated=True),
    Method("deva-sinf",               TRACKED,      "msign",   SPECTRAL,      spectral_scale, "deva-linf", _DEVA,    rests=True),
    Method("deva-sinf-factored",      TRACKED,      "msign",   FACTORED,      spectral_scale, "deva-linf", _DEVA,    rests=True),
    Method("deva-sinf-instantaneous", TRACKED,      "msign",   INSTANTANEOUS, spectral_scale, "deva-linf", _DEVA,    rests=True),
    Method("deva-sinf-whitened",      TRACKED,      "msign",   WHITENING,     spectral_scale, "deva-linf", _DEVA,    rests=True, rotated=True, whitens=True),
    Method("deva-sinf-lean",          TRACKED,      "msign",   LEAN,          spectral_scale, "deva-linf", _DEVA,    rests=True, whitens=True, lean=True, covariance_every=5),
    Method("shampoo",                 INVERSE_ROOT, "sign",    ADAM,          unit_scale,     "adamw",     _SHAMPOO),
    Method("shampoo-ungrafted",       INVERSE_ROOT, "sign",    None,          unit_scale,     "adamw",     _SHAMPOO),
    Method("splus",                   DECOMPOSED,   "sign",    None,          unit_scale,     "splus-vector", _SPLUS, rests=True,
           rate=lambda shape: 2 / (shape[-2] + shape[-1]), beta3=None),
    Method("splus-vector",            None,         "sign",    None,          unit_scale,     None,        _SPLUS,
           rate=lambda shape: 1e-3),
)
# fmt: on

METHODS: Final[Mapping[str, Method]] = MappingProxyType({row.name: row for row in _ROWS})
"""Every method by name, in the order of the table of the documentation."""

VARIANTS: Final = (
    *("default", "factored", "instantaneous", "whitened", "lean"),
    *("ungrafted", "original"),
)

ELEMENTWISE: Final = tuple(name for name, row in METHODS.items() if row.vector is None)
"""The elementwise methods: what may take the parameters that are not matrices."""


def method_of(group: Mapping[str, Any], methods: Mapping[str, Method] = METHODS) -> Method:
    """The row that a parameter group asks for."""
    name, variant = group["method"], group["variant"]
    row = name if variant == "default" else f"{name}-{variant}"
    if row not in methods:
        raise ValueError(f"variant {variant!r} is none of {name}'s")
    return methods[row]


def covariance_period(method: Method, group: Mapping[str, Any]) -> int:
    """Steps between two gradients that the covariances take in."""
    return group["covariance_every"] or method.covariance_every


def basis_sides(method: Method, group: Mapping[str, Any], shape: Shape) -> tuple[bool, bool]:
    """Whether the left and the right side of matrices of a shape …, n, m get a basis.

    The lean variant has one basis: that of the short side, and of a square the left one.
    """
    *_, n, m = shape
    both, most = group["sides"] == "both" and not method.lean, group["max_dim"]
    right = both or m < n or (m == n and not method.lean)
    return n <= most and (both or n <= m), m <= most and right
