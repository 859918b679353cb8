"""From a model to parameter groups."""

from .groups import describe, param_groups

__all__ = ["describe", "param_groups"]
