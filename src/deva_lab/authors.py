"""DeVA-S∞ with the bias correction of its authors' code, to measure what the exact one buys.

    authors' κ_t = √(1 − β₂ᵗ) / (1 − β₁ᵗ)     exact κ_t = √w_t / (1 − β₁ᵗ), see docs/maths.md

V is an average of r cᵀ, which starts as small as (1 − β₁)², so V needs more correction than an
average of something that is constant: the first steps are up to 20 times too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from deva_optim import METHODS, DeVASinf
from deva_optim.core.methods import Method
from deva_optim.core.variance import SPECTRAL, gradient_mass

# κ counts all steps, those without a gradient too.
AUTHORS: Final = METHODS["deva-sinf"]._replace(
    adaptation=SPECTRAL._replace(mass=gradient_mass, waits=False), rests=False
)


class AuthorsDeVASinf(DeVASinf):
    """`DeVASinf` but for κ: the same table of methods with one row replaced."""

    methods: ClassVar[Mapping[str, Method]] = {**METHODS, "deva-sinf": AUTHORS}
