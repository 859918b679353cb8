"""Files and folders that are there whole or not at all, whatever is killed when."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial-"
STALE_SECONDS = 7 * 24 * 3600  # what a killed process left behind goes after a week


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a temporary file that becomes `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=path.parent) as folder:
        partial = Path(folder) / path.name
        yield partial
        flush(partial)
        os.replace(partial, path)
    flush(path.parent)


@contextmanager
def replacing_folder(path: Path, *, is_whole: Callable[[Path], bool]) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well.

    What stands there is removed, unless it is whole: then another process has been faster, and its
    work is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=path.parent) as folder:
        partial = Path(folder) / path.name
        partial.mkdir()
        yield partial
        for file in (*partial.iterdir(), partial):
            flush(file)
        if not is_whole(path):
            _swap_in(partial, path, aside=Path(folder) / "old")
    flush(path.parent)


def _swap_in(partial: Path, path: Path, *, aside: Path) -> None:
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
        try:
            stale = time.time() - partial.stat().st_mtime > older_than
        except FileNotFoundError:
            continue
        if stale:
            shutil.rmtree(partial, ignore_errors=True)
