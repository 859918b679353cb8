"""The folder of further data, which the environment variable DEVA_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UsageError


def data_folder() -> Path | None:
    """The folder that DEVA_DATA names, if it is set."""
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
