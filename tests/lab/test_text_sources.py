"""Texts are found by name and by path, and come out of every format as they went in."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from deva_lab.data import silent, text_sources
from deva_lab.data.corpus import check_corpus, load_corpus
from deva_lab.data.text_sources import (
    DOCUMENT_CHARACTERS,
    NAMES,
    Texts,
    cut_documents,
    find_texts,
    standard_library,
)
from deva_lab.errors import UsageError

needs_data = pytest.mark.skipif(
    "DEVA_DATA" not in os.environ, reason="DEVA_DATA names no folder with real data"
)


@needs_data
@pytest.mark.parametrize(("name", "count"), [("fineweb-sample", 2800), ("books", 90)])
def test_documents_in_the_data_folder(name: str, count: int, tmp_path: Path) -> None:
    check_corpus(name, 4096)
    assert sum(1 for _ in find_texts(name)(tmp_path, silent)) == count


@needs_data
@pytest.mark.parametrize("name", ["fineweb-edu-sample", "shakespeare"])
def test_plain_texts_in_the_data_folder_are_cut(name: str, tmp_path: Path) -> None:
    check_corpus(name, 4096)
    *documents, _ = map(len, find_texts(name)(tmp_path, silent))
    assert sum(documents) > 900_000
    assert all(10_000 <= size < 30_000 for size in documents)


@needs_data
def test_the_first_document_of_the_sample() -> None:
    first = next(iter(find_texts("fineweb-sample")(Path(), silent)))
    assert len(first.split()) > 20


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set laid out as on the hub: a card with a configuration, and parquet files."""
    folder = tmp_path / "hub"
    (folder / "sample").mkdir(parents=True)
    for part in range(2):
        texts = [f"web page {part} {number}, naïve" for number in range(50)]
        parquet.write_table(pyarrow.table({"text": texts}), folder / "sample" / f"{part}.parquet")
    card = (
        "configs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/*"
    )
    (folder / "README.md").write_text(f"---\n{card}\n---\n")
    monkeypatch.setitem(text_sources.ON_HUB, "fineweb", str(folder))
    return folder


def test_a_data_set_of_the_hub_is_fetched_once(hub: Path, tmp_path: Path) -> None:
    said: list[str] = []
    documents = list(find_texts("fineweb:60")(tmp_path / "c", said.append))
    assert documents[::59] == ["web page 0 0, naïve", "web page 1 9, naïve"]
    assert len(documents) == 60
    assert list(find_texts("fineweb:60")(tmp_path / "c", said.append)) == documents
    assert len(said) == 1
    assert len(list(find_texts("fineweb")(tmp_path / "c", silent))) == 100


def test_a_hub_out_of_reach_names_the_remedy(hub: Path, tmp_path: Path) -> None:
    (hub / "README.md").unlink()  # without the card there is no such configuration
    with pytest.raises(UsageError, match="cannot be fetched .* give the path of a .jsonl"):
        load_corpus("fineweb:60", cache=tmp_path / "c")
    assert not list((tmp_path / "c").iterdir())


@pytest.mark.parametrize("name", ["fineweb:", "fineweb:many", "fineweb-edu:1"])
def test_a_wrong_number_of_documents_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="how many documents to fetch, at least 2"):
        check_corpus(name, 4096)


def test_a_folder_is_read_in_order_and_a_glob_too(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.md", "deep/c.txt", "photo.png"):
        (tmp_path / name).write_text(name)
    assert list(find_texts(str(tmp_path))(tmp_path, silent)) == [
        "a.md",
        "b.txt",
        "deep/c.txt",
    ]
    texts = find_texts(str(tmp_path / "**" / "*.txt"))(tmp_path, silent)
    assert list(texts) == ["b.txt", "deep/c.txt"]


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown corpus 'pyhton', did you mean 'python'"):
        check_corpus("pyhton", 4096)


@pytest.mark.parametrize("name", ["absent.txt", "folder/absent", "*.nothing"])
def test_a_missing_path_is_said_at_once(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no text at"):
        check_corpus(str(tmp_path / name), 4096)


def test_an_impossible_vocabulary_is_said_at_once() -> None:
    with pytest.raises(UsageError, match="vocabulary must be at least 256"):
        check_corpus("python", 100)


def test_names_of_the_data_folder_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEVA_DATA", raising=False)
    with pytest.raises(
        UsageError, match=r"needs tinyshakespeare.txt in DEVA_DATA, .* set it to the folder"
    ):
        check_corpus("shakespeare", 4096)
    monkeypatch.setenv("DEVA_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="needs tinyshakespeare.txt in DEVA_DATA"):
        check_corpus("shakespeare", 4096)
    (tmp_path / "tinyshakespeare.txt").touch()
    check_corpus("shakespeare", 4096)


@pytest.mark.parametrize(("name", "package"), [("fineweb", "datasets"), ("a.parquet", "pyarrow")])
def test_a_missing_extra_is_said_at_once(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    if name not in NAMES:
        (tmp_path / name).touch()
        name = str(tmp_path / name)
    with pytest.raises(UsageError, match=rf"{package} is not installed: .*\[hub\]"):
        check_corpus(name, 256)


def test_a_parquet_file_does_without_the_library_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "a.parquet").touch()
    check_corpus(str(tmp_path / "a.parquet"), 256)


def test_the_standard_library_is_without_its_tests() -> None:
    files = standard_library()
    names = {file.name for file in files}
    assert {"argparse.py", "dataclasses.py", "ast.py"} <= names
    assert not any("test" in file.parts or "site-packages" in file.parts for file in files)
    assert 5e6 < sum(file.stat().st_size for file in files) < 40e6


def test_a_python_without_source_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(UsageError, match="ships no source .* give another corpus"):
        check_corpus("python", 4096)


# Out of files -------------------------------------------------------------------------------------

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
    find_texts(str(path))
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
        find_texts(str(tmp_path / "a.docx"))
