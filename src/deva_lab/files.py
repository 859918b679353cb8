"""Files that are there whole or not at all, and show whether they are as they were written.

What is replaced gets its name when all of it is on the disk, whatever is killed when. A record of
JSON has its digest as a field, and a file of bytes ends with it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from .errors import warn

SIZE: Final = 16  # bytes of a digest
hasher = functools.partial(hashlib.blake2b, digest_size=SIZE)  # what all digests are made with
BLOCK: Final = 1 << 20
FIELD: Final = "digest"  # of a record
SETTLED_SECONDS: Final = 2.0  # after which a change of a file shows in its times
PARTIAL: Final = ".partial-"
STALE_SECONDS: Final = 7 * 24 * 3600  # what a killed process left behind goes after a week

# Whole or not at all ------------------------------------------------------------------------------


@contextmanager
def replacing(
    path: Path, *, is_whole: Callable[[Path], bool] = lambda path: False
) -> Iterator[Path]:
    """The path for a temporary file or folder, which becomes `path` when the block ends well.

    Args:
        path: Where it goes. A folder goes only where nothing or another folder is.
        is_whole: Whether what is there by then is to be kept: another process was faster.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=path.parent) as folder:
        partial = Path(folder) / path.name
        yield partial
        for file in (*(partial.iterdir() if partial.is_dir() else ()), partial):
            flush(file)
        if not is_whole(path):
            _swap_in(partial, path, aside=Path(folder) / "old")
    flush(path.parent)


def _swap_in(partial: Path, path: Path, *, aside: Path) -> None:
    if not partial.is_dir():
        os.replace(partial, path)
        return
    with suppress(FileNotFoundError):
        os.rename(path, aside)  # a folder that is not empty cannot be renamed over
    try:
        os.rename(partial, path)
    except OSError:
        # Another process has put its folder there since; both hold the same.
        if not path.is_dir():
            raise


def remove(path: Path) -> None:
    """Remove a file or a folder, which is gone at once for all who look for its name."""
    with suppress(FileNotFoundError):
        if path.is_dir():
            aside = path.with_name(f"{PARTIAL}old-{path.name}")
            os.rename(path, aside)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            path.unlink()


def typed(path: Path) -> str:
    """A path as it is typed in any shell.

    >>> typed(Path("runs")), typed(Path("my runs"))
    ('runs', '"my runs"')
    """
    return f'"{path}"' if " " in str(path) else str(path)


def flush(path: Path) -> None:
    """Wait until a file or a folder's entries are on the disk.

    Windows opens no folders, and flushes a file only for those who may write to it.
    """
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path, *, older_than: float = STALE_SECONDS) -> None:
    """Remove what processes killed some time ago, a week unless given, left behind."""
    for partial in folder.glob(f"{PARTIAL}*"):
        with suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > older_than:
                shutil.rmtree(partial, ignore_errors=True)


# Digests of files ---------------------------------------------------------------------------------


def number_of(text: str) -> int:
    """A number below 2⁶⁴ that is spread evenly and depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def file_digest(path: Path) -> str:
    """The digest of a file, read a block at a time."""
    digest = hasher()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def file_digests(paths: Sequence[Path], notes: Path) -> list[str]:
    """The digests of files, which are read once as long as they do not change.

    Args:
        paths: The files.
        notes: The folder for a note of the digests and of what tells that a file has changed: its
            size, its times and its place on the disk. A file that has only just been written might
            change without its times doing so, and is not noted.
    """
    found = [path.stat() for path in paths]
    stamps = [[s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for s in found]
    places = hasher(repr([str(path.resolve()) for path in paths]).encode()).hexdigest()
    note = notes / f"digests-{places[:16]}.json"
    known = read_record(note)
    if known is not None and known["stamps"] == stamps:
        return list(known["digests"])
    digests = [file_digest(path) for path in paths]
    if time.time() - max((s.st_mtime for s in found), default=0.0) > SETTLED_SECONDS:
        with suppress(OSError):  # a folder that cannot be written to costs time alone
            write_record(note, {"stamps": stamps, "digests": digests})
    return digests


# Records ------------------------------------------------------------------------------------------


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as JSON has it, behind a field with its digest.

    >>> sealed({"id": "a", "losses": (1.5, 0.5)})
    {'digest': 'b8833c47e5e272c07a4ce1258d6517c1', 'id': 'a', 'losses': [1.5, 0.5]}
    """
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return {FIELD: _record_digest(plain), **plain}


def unsealed(record: Any, *, begins: Container[str] = ()) -> dict[str, Any] | None:
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
    words = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hasher(words.encode()).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Put a text in the place of what the file had, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Put a record and its digest in the place of what the file had."""
    write_text(path, json.dumps(sealed(record), indent=1, ensure_ascii=False) + "\n")


def read_record(path: Path, *, begins: Container[str] = ()) -> dict[str, Any] | None:
    """The record of a file, or None if it is missing or damaged; `begins` is as in `unsealed`."""
    try:
        return _parsed(path.read_bytes(), begins)
    except OSError:
        return None


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


# Files of bytes -----------------------------------------------------------------------------------


@contextmanager
def sealing(path: Path) -> Iterator[Path]:
    """The path for a temporary file, which gets its digest at its end and becomes `path`."""
    with replacing(path) as partial:
        yield partial
        digest = file_digest(partial)
        with partial.open("ab") as file:
            file.write(bytes.fromhex(digest))


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
