"""Warnings that point at the user's own line, not at one of this package."""

from __future__ import annotations

import sys
import warnings


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn in the line that has called into this package or, through it, into torch."""
    frame, level = sys._getframe(1), 2
    inside = ("deva_optim.", "torch.")
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith(inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
