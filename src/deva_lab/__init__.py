"""The laboratory: compares optimizers on real training, measures them, and draws reports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import compare
    from .data.corpus import load_corpus
    from .data.images import load_images
    from .errors import UsageError
    from .render.pages import Comparison
    from .run.tasks import to_device

__all__ = ["Comparison", "UsageError", "compare", "load_corpus", "load_images", "to_device"]
_MODULES = {
    "Comparison": ".render.pages",
    "UsageError": ".errors",
    "compare": ".api",
    "load_corpus": ".data.corpus",
    "load_images": ".data.images",
    "to_device": ".run.tasks",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is asked for: `deva --help` needs no torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
