"""Documents come out of every format as they went in."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from deva_lab.data.text_sources import DOCUMENT_CHARACTERS, Texts, check_texts, cut_documents
from deva_lab.errors import UsageError

DOCUMENTS = [
    "The first.\n\nTwo paragraphs.",
    "Second: naïve café, 日本, 🙂",
    "a third\twith a tab\r\n",
]


def jsonl(documents: list[str]) -> bytes:
    return "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in documents).encode()


def parquet_table(documents: list[str]) -> bytes:
    sink = io.BytesIO()
    table = pyarrow.table({"id": list(range(len(documents))), "text": documents})
    parquet.write_table(table, sink)
    return sink.getvalue()


def tar(
    documents: list[str], encode: Callable[[str], bytes] = str.encode, suffix: str = ".md"
) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number, text in enumerate(documents):
            member = tarfile.TarInfo(f"folder/{number}{suffix}")
            content = encode(text)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        archive.addfile(tarfile.TarInfo("folder/photo.png"))
    return sink.getvalue()


FORMATS = {".jsonl": jsonl, ".parquet": parquet_table, ".tar": tar}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_back_the_documents(kind: str, compression: str, tmp_path: Path) -> None:
    path = tmp_path / f"texts{kind}{compression}"
    path.write_bytes(COMPRESSIONS[compression](FORMATS[kind](DOCUMENTS)))
    texts = Texts((path,))
    check_texts(str(path))
    assert list(texts) == DOCUMENTS
    assert list(texts) == DOCUMENTS, "to be read as often as needed"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_short_text_is_one_document(compression: str, tmp_path: Path) -> None:
    path = tmp_path / f"note.txt{compression}"
    path.write_bytes(COMPRESSIONS[compression](DOCUMENTS[1].encode()))
    assert list(Texts((path,))) == [DOCUMENTS[1]]


def test_an_archive_may_hold_any_format(tmp_path: Path) -> None:
    path = tmp_path / "texts.tar.xz"
    tables = tar(DOCUMENTS, encode=lambda text: parquet_table([text]), suffix=".parquet")
    path.write_bytes(lzma.compress(tables))
    assert list(Texts((path,))) == DOCUMENTS


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_members_of_an_archive_may_be_compressed(compression: str, tmp_path: Path) -> None:
    compress = COMPRESSIONS[compression]
    members = tar(DOCUMENTS, lambda text: compress(jsonl([text])), f".jsonl{compression}")
    path = tmp_path / "texts.tar.gz"
    path.write_bytes(gzip.compress(members))
    assert list(Texts((path,))) == DOCUMENTS


def test_frames_behind_one_another_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl.zst"
    path.write_bytes(b"".join(zstandard.compress(jsonl([text])) for text in DOCUMENTS))
    assert list(Texts((path,))) == DOCUMENTS


def test_several_text_files_are_a_document_each_and_one_is_cut(tmp_path: Path) -> None:
    paragraphs = "".join(f"Paragraph {number}. {'word ' * 50}\n\n" for number in range(200))
    files = (tmp_path / "a.txt", tmp_path / "b.md")
    for file in files:
        file.write_text(paragraphs)
    assert list(Texts(files)) == [paragraphs, paragraphs]
    pieces = list(Texts(files[:1]))
    assert "".join(pieces) == paragraphs
    assert len(pieces) > 3
    assert all(piece.endswith("\n\n") for piece in pieces)


@given(st.text(st.sampled_from("ab \n\r"), max_size=300), st.integers(1, 400))
def test_cutting_loses_nothing_and_bounds_the_pieces(text: str, repeats: int) -> None:
    whole = text * repeats
    pieces = list(cut_documents(io.StringIO(whole, newline="")))
    assert "".join(pieces) == whole
    assert all(len(piece) < 3 * DOCUMENT_CHARACTERS for piece in pieces)


def test_blank_documents_are_left_out_and_what_utf8_cannot_hold_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_bytes(jsonl(["", " \n", "half \ud800 a pair"]) + b"\n")
    assert list(Texts((path,))) == ["half ? a pair"]


def test_the_fingerprint_is_of_the_content_alone(tmp_path: Path) -> None:
    here, there, other = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"
    here.write_text("same")
    there.write_text("same")
    other.write_text("samf")
    prints = [Texts((path,)).fingerprint(tmp_path) for path in (here, there, other)]
    assert prints[0] == prints[1] != prints[2]
    assert Texts((here, other)).fingerprint(tmp_path) != Texts((other, here)).fingerprint(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text":', "a.jsonl: line 2 is not JSON"),
        ("a.jsonl", b'{"body": "a"}', 'line 1 has no field "text"'),
        ("a.jsonl.xz", lzma.compress(jsonl(DOCUMENTS))[:-20], "a.jsonl.xz is damaged"),
        ("a.jsonl.gz", gzip.compress(jsonl(DOCUMENTS))[:-12], "a.jsonl.gz is damaged"),
        ("a.jsonl.zst", b"no such thing", "a.jsonl.zst is damaged"),
        ("a.tar", b"no archive, but long enough" * 40, "a.tar is damaged"),
        ("a.parquet", b"no table", "a.parquet is damaged"),
    ],
)
def test_what_is_damaged_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        list(Texts((path,)))


def test_a_table_without_text_names_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["a"]}), path)
    with pytest.raises(UsageError, match='no column "text", only body'):
        list(Texts((path,)))


def test_an_unknown_format_names_the_known(tmp_path: Path) -> None:
    (tmp_path / "a.docx").touch()
    with pytest.raises(UsageError, match=r"a.docx is of no known format: .* \.jsonl"):
        check_texts(str(tmp_path / "a.docx"))
