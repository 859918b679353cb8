"""Where the laboratory keeps what it has prepared: tokenised text, decoded images."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(cache: Path | None = None) -> Path:
    """The folder for prepared data, which is made if it is not there.

    Args:
        cache: The folder itself; unless given $DEVA_CACHE, $XDG_CACHE_HOME/deva or ~/.cache/deva.
    """
    folder = cache or _default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _default_folder() -> Path:
    if own := os.environ.get("DEVA_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "deva"
