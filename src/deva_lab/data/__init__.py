"""Text and images: by name, by path, or out of what every Python has; and where they are kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..errors import UsageError

SHARD_TOKENS = 100_000_000  # in a shard, as modded-nanogpt cuts them

Report = Callable[[str], None]
"""Hears what takes time."""


def silent(message: str) -> None:
    """Nothing: for those who want no report."""


def data_folder() -> Path | None:
    """The folder of further data that DEVA_DATA names, if it is set."""
    folder = os.environ.get("DEVA_DATA")
    return Path(folder).expanduser() if folder else None


def in_data_folder(name: str, entry: str) -> Path:
    """Where the file or folder `entry` lies that data of this name is read from.

    Raises:
        UsageError: If DEVA_DATA is not set, or has no such entry.
    """
    folder = data_folder()
    if folder is None:
        raise UsageError(
            f"{name} is read from the folder that the environment variable DEVA_DATA names, "
            f"which is not set: set it to the folder that holds {entry}"
        )
    if not (folder / entry).exists():
        raise UsageError(f"{name} needs {entry} in DEVA_DATA, and {folder} has none")
    return folder / entry


def cache_folder(cache: Path | None = None) -> Path:
    """The folder for what is prepared, made if it is not there.

    Args:
        cache: The folder itself; unless given $DEVA_CACHE, $XDG_CACHE_HOME/deva or ~/.cache/deva.

    Raises:
        UsageError: If it cannot be made.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = (cache or Path(os.environ.get("DEVA_CACHE") or Path(home) / "deva")).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the cache {folder} cannot be made ({error.strerror}): set DEVA_CACHE to another"
        ) from error
    return folder
