"""Documents, found by name or by path, out of files of many formats, plain or compressed."""

from __future__ import annotations

import glob
import gzip
import io
import json
import lzma
import os
import shutil
import sysconfig
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any, cast

import zstandard

from ..errors import UsageError, require, unknown
from ..files import file_digests, hasher, replacing
from . import Report, fetching, in_data_folder

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

# Tests are not the library; _sysconfigdata differs between machines with the same Python.
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
SKIPPED_PREFIX = "_sysconfigdata"

# What is raised for a file that is damaged.
DAMAGES = (
    *(OSError, EOFError, ValueError, tarfile.TarError),
    *(lzma.LZMAError, zlib.error, zstandard.ZstdError),
)

DOCUMENT_CHARACTERS = 10_000  # a plain text is cut at the first paragraph's end after so many

# By name or by path -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """The documents of some files, to be read as often as needed.

    Attributes:
        files: in the order in which they are read. Where there are several, each plain text is
            one document; a single one is cut into documents at paragraph borders.
        remedy: added to what is said of a file that is damaged.
    """

    files: tuple[Path, ...]
    remedy: str = ""

    def __iter__(self) -> Iterator[str]:
        for path in self.files:
            yield from _read_file(path, cut=len(self.files) == 1, remedy=self.remedy)

    def fingerprint(self, notes: Path) -> str:
        """The hash of what the files hold, wherever they lie; `notes` is as in `file_digests`."""
        total = hasher()
        for path, digest in zip(self.files, file_digests(self.files, notes), strict=True):
            total.update("".join(format_of(path.name)).encode() + bytes.fromhex(digest))
        return total.hexdigest()


def find_texts(name: str) -> Callable[[Path, Report], Texts]:
    """What reads the texts of a name or path; those of the hub it fetches into a cache, once.

    Raises:
        UsageError: At once, for an unknown name, a file or an extra that is missing.
    """
    head, colon, count = name.partition(":")
    if head in ON_HUB:
        if colon and (not count.isdecimal() or int(count) < 2):
            raise UsageError(
                f"{name}: behind the colon stands how many documents to fetch, at least 2"
            )
        require("hub")
        number = int(count) if colon else HUB_DOCUMENTS
        return lambda cache, report: _fetched(head, number, cache, report)
    files = _local_files(name)
    for path in files:
        kind, _ = format_of(path.name)
        if not kind:
            raise UsageError(
                f"{path} is of no known format: a text is one of {', '.join(FORMATS)}, each also "
                f"with {', '.join(COMPRESSIONS)} behind it, or modded-nanogpt shards (.bin)"
            )
        if kind == ".parquet":
            require("hub", "pyarrow")
    return lambda cache, report: Texts(files)


def _fetched(name: str, count: int, cache: Path, report: Report) -> Texts:
    """So many documents of the hub, which are fetched unless they are in the cache."""
    path = cache / f"{name}-{HUB_CONFIGURATION}-{count}.jsonl.gz"
    if not path.exists():
        import datasets  # type: ignore[import-untyped]

        report(f"fetching {count:,} documents of {ON_HUB[name]}")
        remedy = "without a network, give the path of a .jsonl, .parquet or .bin file instead"
        with (
            fetching(ON_HUB[name], remedy),
            replacing(path) as partial,
            gzip.open(partial, "wt", encoding="utf-8") as file,
        ):
            where = {"path": ON_HUB[name], "name": HUB_CONFIGURATION, "split": "train"}
            for row in islice(datasets.load_dataset(**where, streaming=True), count):
                file.write(json.dumps({"text": row["text"]}) + "\n")
    # gzip has a checksum of its own: what is damaged is refused before it is tokenised.
    return Texts((path,), remedy="; remove it, and it is fetched again")


def _local_files(name: str) -> tuple[Path, ...]:
    """The files of a name or a path: itself, the readable ones in a folder, or those of a glob."""
    if name == "python":
        return standard_library()
    path = Path(name).expanduser()
    if name in IN_DATA_FOLDER:
        path = in_data_folder(name, IN_DATA_FOLDER[name])
    if path.is_file():
        return (path,)
    if path.is_dir():
        found = [file for file in path.rglob("*") if format_of(file.name)[0]]
    else:
        found = [Path(file) for file in glob.glob(str(path), recursive=True)]
    if files := tuple(sorted(file for file in found if file.is_file())):
        return files
    if os.sep in name or "." in name or glob.has_magic(name):
        raise UsageError(f"there is no text at {name}")
    raise unknown("corpus", name, NAMES)


def standard_library() -> tuple[Path, ...]:
    """The source files of the running Python's standard library, without its tests."""
    root, files = Path(sysconfig.get_paths()["stdlib"]), list[Path]()
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - SKIPPED_FOLDERS  # site-packages may be large
        sources = (name for name in names if name.endswith(".py"))
        files += [Path(folder, name) for name in sources if not name.startswith(SKIPPED_PREFIX)]
    if len(files) < 100:
        raise UsageError(
            f"this Python ships no source of its standard library in {root}: "
            "give another corpus by name or by path"
        )
    return tuple(sorted(files))


# Out of files -------------------------------------------------------------------------------------


def format_of(name: str) -> tuple[str, str]:
    """The format and the compression that a file's name tells, each "" if it tells none.

    >>> format_of("web.jsonl.xz"), format_of("A.MD"), format_of("photo.png")
    (('.jsonl', '.xz'), ('.md', ''), ('', ''))
    """
    path = PurePath(name.lower())
    compression = path.suffix if path.suffix in COMPRESSIONS else ""
    suffix = PurePath(path.stem).suffix if compression else path.suffix
    return (suffix, compression) if suffix in FORMATS else ("", "")


def _read_file(path: Path, *, cut: bool, remedy: str) -> Iterator[str]:
    """The documents of one file that are not blank, as text that UTF-8 can hold."""
    try:
        with path.open("rb") as file:
            for text in _read_stream(file, path.name, cut=cut):
                if text.strip():
                    yield text.encode("utf-8", "replace").decode("utf-8")
    except UsageError as error:
        raise UsageError(f"{path}: {error}{remedy}") from error
    except DAMAGES as error:
        raise UsageError(f"{path} is damaged or not what its name says: {error}{remedy}") from error


def _read_stream(stream: IO[bytes], name: str, *, cut: bool) -> Iterator[str]:
    kind, compression = format_of(name)
    plain = COMPRESSIONS[compression](stream) if compression else stream
    if kind in READERS:
        yield from READERS[kind](plain)
        return
    with io.TextIOWrapper(plain, encoding="utf-8-sig", errors="replace", newline="") as text:
        yield from cut_documents(text) if cut else (text.read(),)


def cut_documents(lines: Iterable[str]) -> Iterator[str]:
    """The text in pieces of about 10,000 characters that end with a paragraph.

    Where no paragraph ends in time, a piece of twice that length ends with any line, and a line
    longer than that is cut where it must be. The pieces joined are the text.
    """
    piece, size, most = [], 0, DOCUMENT_CHARACTERS
    short = (line[at : at + most] for line in lines for at in range(0, len(line), most))
    for line in short:
        piece.append(line)
        size += len(line)
        if size >= 2 * most or (size >= most and not line.strip()):
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


def _read_jsonl(stream: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(f"line {number} is not JSON: {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise UsageError(f'line {number} has no field "text" that holds a string')
        yield record["text"]


def _read_parquet(stream: IO[bytes]) -> Iterator[str]:
    require("hub", "pyarrow")
    from pyarrow import parquet  # type: ignore[import-untyped]

    # Parquet is read from its end, which is far for what is inside of a compressed file.
    is_file = isinstance(getattr(stream, "raw", None), io.FileIO)
    table = parquet.ParquetFile(stream if is_file else io.BytesIO(stream.read()))
    if "text" not in table.schema_arrow.names:
        found = ", ".join(table.schema_arrow.names)
        raise UsageError(f'there is no column "text", only {found}')
    for batch in table.iter_batches(batch_size=256, columns=["text"]):
        yield from (text for text in batch.column(0).to_pylist() if text is not None)


def _read_tar(stream: IO[bytes]) -> Iterator[str]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and format_of(member.name)[0]:
                with tempfile.TemporaryFile() as copy:
                    shutil.copyfileobj(content, copy)  # in a member one cannot go back and forth
                    copy.seek(0)
                    yield from _read_stream(copy, member.name, cut=False)


def _open_zst(stream: IO[bytes]) -> Any:
    """The stream that is inside, of all frames; fsspec's reader would end with the first."""
    reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    return io.BufferedReader(cast("io.RawIOBase", reader))


READERS: Mapping[str, Callable[[IO[bytes]], Iterator[str]]] = {
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".tar": _read_tar,
}
FORMATS = (".txt", ".md", ".rst", ".tex", ".py", *READERS)
COMPRESSIONS: Mapping[str, Callable[[Any], Any]] = {
    ".xz": lzma.open,
    ".gz": gzip.open,
    ".zst": _open_zst,
}
