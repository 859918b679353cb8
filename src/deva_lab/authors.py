"""DeVA-S∞ with the bias correction of its authors' code, to measure what the exact one buys.

    authors' κ_t = √(1 − β₂ᵗ) / (1 − β₁ᵗ)     exact κ_t = √w_t / (1 − β₁ᵗ), see docs/maths.md

V is an average of r cᵀ, which starts as small as (1 − β₁)², so V needs more correction than an
average of something that is constant: the first steps are up to 20 times too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from deva_optim import DeVASinf
from deva_optim.core.batch import Entry
from deva_optim.core.variance import SPECTRAL, gradient_mass

AUTHORS: Final = SPECTRAL._replace(mass=gradient_mass, waits=False)


class AuthorsDeVASinf(DeVASinf):
    """`DeVASinf` but for κ, which counts all steps, those without a gradient too."""

    def _entries(self) -> Iterator[Entry]:
        for entry in super()._entries():
            method = entry.method
            if method.adaptation is SPECTRAL:
                method = method._replace(adaptation=AUTHORS, rests=False)
            yield replace(entry, method=method)
