"""Where texts come from: by name or by path."""

from __future__ import annotations

import glob
import gzip
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..atomic import replacing
from ..errors import UsageError, require, unknown
from . import Report, in_data_folder
from .documents import Texts, format_of

# Tests are not the library; _sysconfigdata differs between machines with the same Python.
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
SKIPPED_PREFIX = "_sysconfigdata"

IN_DATA_FOLDER = {
    "fineweb-sample": "fineweb_2800docs.jsonl.xz",
    "fineweb-edu-sample": "fineweb_edu_1mb.txt.xz",
    "books": "classic-books-40MB.tar.xz",
    "shakespeare": "tinyshakespeare.txt",
}
ON_HUB = {"fineweb": "HuggingFaceFW/fineweb", "fineweb-edu": "HuggingFaceFW/fineweb-edu"}
HUB_CONFIGURATION = "sample-10BT"
HUB_DOCUMENTS = 20_000  # about 60 MB of text
NAMES = ("python", *ON_HUB, *IN_DATA_FOLDER)


@dataclass(frozen=True)
class LocalSource:
    """Texts that are files of this machine."""

    name: str  # what the corpus is called in a report
    texts: Texts

    def check(self) -> None:
        """Raise UsageError where a file is missing or cannot be read for want of an extra."""
        self.texts.check()

    def fetch(self, cache: Path, report: Report) -> Texts:
        """The files as they are."""
        return self.texts


@dataclass(frozen=True)
class HubSource:
    """The first documents of a data set of the Hugging Face hub, kept in the cache once fetched."""

    name: str
    repository: str
    documents: int

    def check(self) -> None:
        """Raise MissingExtra without the library `datasets`."""
        require("datasets")

    def fetch(self, cache: Path, report: Report) -> Texts:
        """The documents in one file of the cache, which a kill leaves whole or absent."""
        head = self.name.partition(":")[0]
        path = cache / f"{head}-{HUB_CONFIGURATION}-{self.documents}.jsonl.gz"
        if not path.exists():
            report(f"fetching {self.documents:,} documents of {self.repository}")
            with replacing(path) as partial, gzip.open(partial, "wt", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in self._stream())
        # gzip has a checksum of its own: what is damaged is refused before it is tokenised.
        return Texts((path,), remedy="remove it, and it is fetched again")

    def _stream(self) -> Iterator[str]:
        import datasets  # type: ignore[import-untyped]

        try:
            rows = datasets.load_dataset(
                self.repository, name=HUB_CONFIGURATION, split="train", streaming=True
            )
            yield from (row["text"] for row in islice(rows, self.documents))
        # The library lets through whatever its transport raises, of several packages.
        except Exception as error:
            raise UsageError(
                f"{self.repository} cannot be fetched ({type(error).__name__}: {error}); "
                "without a network, give the path of a .jsonl, .parquet or .bin file instead"
            ) from error


def find_source(name: str) -> LocalSource | HubSource:
    """The source of that name or path, or a UsageError that names the nearest known one."""
    head, _, count = name.partition(":")
    if head in ON_HUB:
        return HubSource(name, ON_HUB[head], _documents(name, count))
    if name == "python":
        return LocalSource(name, Texts(standard_library()))
    if name in IN_DATA_FOLDER:
        return LocalSource(name, Texts((in_data_folder(name, IN_DATA_FOLDER[name]),)))
    if files := _find_files(Path(name).expanduser()):
        return LocalSource(Path(name).name, Texts(files))
    if os.sep in name or "." in name or glob.has_magic(name):
        raise UsageError(f"there is no text at {name}")
    raise unknown("corpus", name, NAMES)


def _find_files(path: Path) -> tuple[Path, ...]:
    """The files of a path: itself, the readable ones in a folder, or those that a glob matches."""
    if path.is_file():
        return (path,)
    if path.is_dir():
        found = (file for file in path.rglob("*") if format_of(file.name)[0])
    else:
        found = (Path(file) for file in glob.glob(str(path), recursive=True))
    return tuple(sorted(file for file in found if file.is_file()))


def standard_library() -> tuple[Path, ...]:
    """The source files of the running Python's standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(_library_files(root))
    if len(files) < 100:
        raise UsageError(
            f"this Python ships no source of its standard library in {root}: "
            "give another corpus by name or by path"
        )
    return tuple(files)


def _library_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - SKIPPED_FOLDERS  # site-packages may be large
        for name in names:
            if name.endswith(".py") and not name.startswith(SKIPPED_PREFIX):
                yield Path(folder, name)


def _documents(name: str, count: str) -> int:
    if ":" not in name:
        return HUB_DOCUMENTS
    if not count.isdecimal() or int(count) < 2:
        raise UsageError(f"{name}: behind the colon stands how many documents to fetch, at least 2")
    return int(count)
