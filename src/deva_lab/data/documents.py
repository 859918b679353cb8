"""Documents out of files: text, jsonl, parquet and archives of them, plain or compressed."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any, cast

from ..digests import file_digests, hasher
from ..errors import UsageError, require

DOCUMENT_CHARACTERS = 10_000  # a plain text is cut at the first paragraph's end after so many
TEXT = (".txt", ".md", ".rst", ".tex", ".py")
FORMATS = (*TEXT, ".jsonl", ".parquet", ".tar")
COMPRESSIONS = (".xz", ".gz", ".zst")


@dataclass(frozen=True)
class Texts:
    """The documents of some files, to be read as often as needed.

    Attributes:
        files: in the order in which they are read. Where there are several, each plain text is
            one document; a single one is cut into documents at paragraph borders.
        remedy: what to do about a file that is damaged, if there is something to be said.
    """

    files: tuple[Path, ...]
    remedy: str = ""

    def __iter__(self) -> Iterator[str]:
        for path in self.files:
            yield from _read_file(path, cut=len(self.files) == 1, remedy=self.remedy)

    def check(self) -> None:
        """Raise UsageError for a missing file, an unknown format or a missing extra."""
        for path in self.files:
            if not path.is_file():
                raise UsageError(f"there is no file {path}")
            _check_format(path)

    def fingerprint(self, notes: Path | None = None) -> str:
        """The hash of what the files hold, wherever they lie; `notes` is as in `file_digests`."""
        total = hasher()
        for path, digest in zip(self.files, file_digests(self.files, notes), strict=True):
            total.update("".join(format_of(path.name)).encode() + digest)
        return total.hexdigest()


def format_of(name: str) -> tuple[str, str]:
    """The format and the compression that a file's name tells, each "" if it tells none.

    >>> format_of("web.jsonl.xz"), format_of("A.MD"), format_of("photo.png")
    (('.jsonl', '.xz'), ('.md', ''), ('', ''))
    """
    path = PurePath(name.lower())
    compression = path.suffix if path.suffix in COMPRESSIONS else ""
    suffix = PurePath(path.stem).suffix if compression else path.suffix
    return (suffix, compression) if suffix in FORMATS else ("", "")


def _check_format(path: Path) -> None:
    kind, compression = format_of(path.name)
    if not kind:
        raise UsageError(
            f"{path} is of no known format: a text is one of {', '.join(FORMATS)}, "
            f"each also with {', '.join(COMPRESSIONS)} behind it, or modded-nanogpt shards (.bin)"
        )
    if kind == ".parquet":
        require("pyarrow")
    if compression == ".zst":
        require("zstandard")


def _read_file(path: Path, *, cut: bool, remedy: str) -> Iterator[str]:
    """The documents of one file that are not blank, as text that UTF-8 can hold."""
    hint = f"; {remedy}" if remedy else ""
    try:
        with path.open("rb") as file:
            for text in _read_stream(file, path.name, cut=cut):
                if text.strip():
                    yield text.encode("utf-8", "replace").decode("utf-8")
    except UsageError as error:
        raise UsageError(f"{path}: {error}{hint}") from error
    except _damages() as error:
        raise UsageError(f"{path} is damaged or not what its name says: {error}{hint}") from error


def _damages() -> tuple[type[Exception], ...]:
    known = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, tarfile.TarError)
    if "zstandard" in sys.modules:
        return (*known, cast("type[Exception]", sys.modules["zstandard"].ZstdError))
    return known


def _read_stream(stream: IO[bytes], name: str, *, cut: bool) -> Iterator[str]:
    kind, compression = format_of(name)
    plain = _decompressed(stream, compression)
    if kind in TEXT:
        return _read_text(plain, cut=cut)
    return {".jsonl": _read_jsonl, ".parquet": _read_parquet, ".tar": _read_tar}[kind](plain)


def _decompressed(stream: Any, compression: str) -> Any:
    """The stream that is inside; fsspec's reader of .zst would end with the first frame."""
    if compression == ".zst":
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
        return io.BufferedReader(cast("io.RawIOBase", reader))
    if compression == ".xz":
        return lzma.open(stream)
    return gzip.open(stream) if compression == ".gz" else stream


def _read_text(stream: IO[bytes], *, cut: bool) -> Iterator[str]:
    with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="") as text:
        yield from cut_documents(text) if cut else (text.read(),)


def cut_documents(lines: Iterable[str]) -> Iterator[str]:
    """The text in pieces of about 10,000 characters that end with a paragraph.

    Where no paragraph ends in time, a piece of twice that length ends with any line, and a line
    longer than that is cut where it must be. The pieces joined are the text.
    """
    piece, size = [], 0
    for line in _short_lines(lines):
        piece.append(line)
        size += len(line)
        at_border = not line.strip() or size >= 2 * DOCUMENT_CHARACTERS
        if size >= DOCUMENT_CHARACTERS and at_border:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


def _short_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        for start in range(0, len(line), DOCUMENT_CHARACTERS):
            yield line[start : start + DOCUMENT_CHARACTERS]


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
    require("pyarrow")
    from pyarrow import parquet  # type: ignore[import-untyped]

    with tempfile.TemporaryFile() as copy:
        if not isinstance(getattr(stream, "raw", None), io.FileIO):
            shutil.copyfileobj(stream, copy)  # parquet is read from its end, a stream cannot be
        table = parquet.ParquetFile(copy if copy.tell() else stream)
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
