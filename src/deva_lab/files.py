"""Small files of a run: texts that are replaced whole, and records that are added line by line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .atomic import replacing


def write_text(path: Path, text: str) -> None:
    """Put a text in the place of what the file had, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Add a line of JSON to a file, on the disk when this returns.

    A line cut short by a kill is ended first, so that it spoils itself alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            whole = file.read(1) == b"\n"
            file.write(b"" if whole else b"\n")
        file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
