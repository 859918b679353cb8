"""The options of a parameter group, and what they are unless it says otherwise."""

from __future__ import annotations

from typing import Any, Final

DEFAULTS: Final[dict[str, Any]] = {
    "lr": 1e-3,
    "betas": (0.9, 0.99),
    "rest_betas": (0.9, 0.99),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "nesterov": False,
    "maximize": False,
    "foreach": None,
    "method": "adamw",
    "variant": "default",
    "rest": "adamw",
    "refresh_every": 10,
    "stagger": True,
    "sign_stabilize": False,
    "msign": "newton-schulz",
    "msign_dtype": None,
    "sides": "both",
    "max_dim": 10_000,
    "skip_first": False,
    "ema_rate": 0.999,
    "nonfinite": "skip",
    "state_dtype": None,
    "role": "auto",
    "layout": "auto",
    "split": None,
    "split_dim": -2,
}
"""What a group holds unless it says otherwise; the classes in `zoo` set their own."""
