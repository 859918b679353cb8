"""Digests, by which what the laboratory writes shows whether it is whole when it is read again.

A text stands behind its digest, a record of JSON has it as a field, and a file of bytes ends with
it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from .atomic import replacing

if TYPE_CHECKING:
    from hashlib import blake2b

    from typing_extensions import Buffer

SIZE: Final = 16  # bytes of a digest
BLOCK: Final = 1 << 20
FIELD: Final = "digest"  # of a record
SETTLED_SECONDS: Final = 2.0  # after which a change of a file shows in its times


def hasher() -> blake2b:
    """What all digests are made with."""
    return hashlib.blake2b(digest_size=SIZE)


def number_of(text: str) -> int:
    """A number below 2⁶⁴ that is spread evenly and depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def file_digest(path: Path) -> bytes:
    """The digest of a file, read a block at a time."""
    digest = hasher()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.digest()


def file_digests(paths: Sequence[Path], notes: Path | None = None) -> list[bytes]:
    """The digests of files, which are read once as long as they do not change.

    Args:
        paths: The files.
        notes: The folder for a note of the digests and of what tells that a file has changed: its
            size, its times and its place on the disk. A file that has only just been written might
            change without its times doing so, and is not noted; without a folder, none is.
    """
    if notes is None:
        return [file_digest(path) for path in paths]
    found = [path.stat() for path in paths]
    stamp = _hex(
        repr([(s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for s in found]).encode()
    )
    note = notes / f"digests-{_hex(repr([str(path.resolve()) for path in paths]).encode())[:16]}"
    known, *digests = (read_sealed(note) or "").split("\n")
    if known == stamp:
        return [bytes.fromhex(digest) for digest in digests]
    fresh = [file_digest(path) for path in paths]
    if time.time() - max((s.st_mtime for s in found), default=0.0) > SETTLED_SECONDS:
        with suppress(OSError):  # a folder that cannot be written to costs time alone
            write_sealed(note, "\n".join([stamp, *(digest.hex() for digest in fresh)]))
    return fresh


# --- Texts ---------------------------------------------------------------------------------------


def read_sealed(path: Path) -> str | None:
    """The text of a file written by `write_sealed`, or None if it is missing or damaged."""
    try:
        seal, _, text = path.read_bytes().partition(b"\n")
        return text.decode() if seal.decode() == _hex(text) else None
    except (OSError, UnicodeDecodeError):
        return None


def write_sealed(path: Path, text: str) -> None:
    """Write a text behind its own digest."""
    data = text.encode()
    with replacing(path) as partial:
        partial.write_bytes(_hex(data).encode() + b"\n" + data)


def _hex(data: bytes) -> str:
    digest = hasher()
    digest.update(data)
    return digest.hexdigest()


# --- Records -------------------------------------------------------------------------------------


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as JSON has it, behind a field with its digest.

    >>> sealed({"id": "a", "losses": (1.5, 0.5)})
    {'digest': 'b8833c47e5e272c07a4ce1258d6517c1', 'id': 'a', 'losses': [1.5, 0.5]}
    """
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return {FIELD: _record_digest(plain), **plain}


def unsealed(record: Any, *, begins: Container[str]) -> dict[str, Any] | None:
    """The record without its digest, or None if that does not fit.

    Args:
        record: What JSON had.
        begins: The first fields of records that were written before there were digests, and are
            believed without. One whose digest lost its name to damage begins with none of them.
    """
    if not isinstance(record, dict):
        return None
    rest = {key: value for key, value in record.items() if key != FIELD}
    if FIELD in record:
        return rest if record[FIELD] == _record_digest(rest) else None
    return rest if next(iter(rest), "") in begins else None


def _record_digest(plain: dict[str, Any]) -> str:
    """The digest of what a record says, however it is laid out."""
    return _hex(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


# --- Files of bytes ------------------------------------------------------------------------------


@contextmanager
def sealing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, front to back, that becomes `path` with its digest at its end."""
    with replacing(path) as partial, partial.open("wb") as file:
        sealing = _Sealing(file)
        yield cast("IO[bytes]", sealing)
        file.write(sealing.digest.digest())


class _Sealing(io.RawIOBase):
    """Passes on what is written, and hashes it on the way."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file, self.digest = file, hasher()

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        self.digest.update(data)
        return self._file.write(data)


def is_whole(path: Path) -> bool:
    """Whether a file is as `sealing` wrote it; formats that are read from their end ignore its."""
    digest = hasher()
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size - SIZE
            while left > 0 and (block := file.read(min(left, BLOCK))):
                digest.update(block)
                left -= len(block)
            return left == 0 and file.read() == digest.digest()
    except OSError:
        return False
