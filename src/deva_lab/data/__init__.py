"""Text and images: by name, by path, or out of what every Python has; and where they are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Where the file or folder `entry` of DEVA_DATA lies that data of this name is read from.

    Raises:
        UsageError: If it is not there.
    """
    folder = data_folder()
    if folder is None or not (folder / entry).exists():
        unset = "an environment variable that is not set: set it to the folder that has it"
        why = f"and {folder} has none" if folder else unset
        raise UsageError(f"{name} needs {entry} in DEVA_DATA, {why}")
    return folder / entry


@contextmanager
def fetching(what: str, remedy: str) -> Iterator[None]:
    """Turns whatever is raised on the way from the hub into a UsageError with a remedy.

    The libraries of the hub let through what their transports raise, of several packages.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{what} cannot be fetched ({type(error).__name__}: {error}); {remedy}"
        ) from error


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


def was_damaged(place: Path) -> str:
    """What is said of a place of the cache whose content cannot be used, if it has any."""
    return f": {place.name} was there and is damaged" if place.exists() else ""
