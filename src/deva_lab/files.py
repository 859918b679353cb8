"""Small files of a run: texts and records that are replaced whole, and records line by line."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from .atomic import flush, replacing
from .digests import sealed, unsealed
from .errors import warn


def write_text(path: Path, text: str) -> None:
    """Put a text in the place of what the file had, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Put a record and its digest in the place of what the file had."""
    write_text(path, json.dumps(sealed(record), indent=1, ensure_ascii=False) + "\n")


def read_record(path: Path, *, begins: Container[str]) -> dict[str, Any] | None:
    """The record of a file, or None if it is damaged; `begins` is as in `unsealed`."""
    return _parsed(path.read_bytes(), begins)


def write_lines(path: Path, records: Iterator[Mapping[str, Any]]) -> None:
    """Put records, a line each, in the place of what the file had."""
    write_text(path, "".join(map(_line, records)))


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to a file of lines, on the disk when this returns.

    A line cut short by a kill is ended first, so that it spoils itself alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            whole = file.read(1) == b"\n"
            file.write(b"" if whole else b"\n")
        file.write(_line(record).encode())
        file.flush()
        os.fsync(file.fileno())
    flush(path.parent)  # the name of a new file is there as well


def read_lines(path: Path, *, begins: Container[str]) -> list[dict[str, Any]]:
    """The records of a file of lines; one that is cut short or damaged is left out, aloud."""
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        record = _parsed(line, begins)
        if record is not None:
            records.append(record)
        elif line.strip():
            warn(f"line {number} of {path} is cut short or damaged, and left out")
    return records


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(sealed(record), allow_nan=False) + "\n"


def _parsed(data: bytes, begins: Container[str]) -> dict[str, Any] | None:
    try:
        return unsealed(json.loads(data), begins=begins)
    except (ValueError, RecursionError):
        return None
