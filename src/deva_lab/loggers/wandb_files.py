"""What W&B has written on this machine, offline, read with its own messages.

A file has a head of seven bytes, and then blocks of 32 kB. A record is in one piece or cut at the
ends of blocks; each piece has a checksum, its length and what it is of the record.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

BLOCK: Final = 1 << 15
HEAD: Final = 7  # bytes, of a file and of a piece
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def files_of(folder: Path, id_: str = "*") -> list[Path]:
    """The files of all lives of a run, the first one first."""
    return sorted(folder.glob(f"wandb/offline-run-*-{id_}/run-{id_}.wandb"))


def steps_in(folder: Path, id_: str) -> set[int]:
    """The steps that the files of a run have."""
    rows = (
        row
        for path in files_of(folder, id_)
        for record in records(path)
        for row in record.history.item
        if record.WhichOneof("record_type") == "history"
    )
    return {int(json.loads(row.value_json)) for row in rows if name_of(row) == "_step"}


def name_of(item: Any) -> str:
    """The name of a value."""
    return item.key or "/".join(item.nested_key)


def records(path: Path) -> Iterator[Any]:
    """The messages of a file, up to where a kill has cut it off."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # which are made at run time
    for data in _whole(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        yield record


def _whole(data: bytes) -> Iterator[bytes]:
    place, record = HEAD, b""
    while place + HEAD <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEAD:  # too little for a piece
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEAD])
        end = place + HEAD + length
        if kind not in (FULL, FIRST, MIDDLE, LAST) or end > len(data):
            return
        part = data[place + HEAD : end]
        record = part if kind in (FULL, FIRST) else record + part
        place = end
        if kind in (FULL, LAST):
            yield record
