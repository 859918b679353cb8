"""Texts are found by name and by path, and what is missing is said at once."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from importlib.machinery import ModuleSpec
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from deva_lab.data import silent, text_sources
from deva_lab.data.corpus import check_corpus, load_corpus
from deva_lab.data.text_sources import NAMES, find_texts, standard_library
from deva_lab.errors import MissingExtra, UsageError

needs_data = pytest.mark.skipif(
    "DEVA_DATA" not in os.environ, reason="DEVA_DATA names no folder with real data"
)


@needs_data
@pytest.mark.parametrize(("name", "count"), [("fineweb-sample", 2800), ("books", 90)])
def test_documents_in_the_data_folder(name: str, count: int, tmp_path: Path) -> None:
    check_corpus(name, 4096)
    assert sum(1 for _ in find_texts(name, tmp_path, silent)) == count


@needs_data
@pytest.mark.parametrize("name", ["fineweb-edu-sample", "shakespeare"])
def test_plain_texts_in_the_data_folder_are_cut(name: str, tmp_path: Path) -> None:
    check_corpus(name, 4096)
    *documents, _ = map(len, find_texts(name, tmp_path, silent))
    assert sum(documents) > 900_000
    assert all(10_000 <= size < 30_000 for size in documents)


@needs_data
def test_the_first_document_of_the_sample() -> None:
    first = next(iter(find_texts("fineweb-sample", Path(), silent)))
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
    documents = list(find_texts("fineweb:60", tmp_path / "c", said.append))
    assert documents[::59] == ["web page 0 0, naïve", "web page 1 9, naïve"]
    assert len(documents) == 60
    assert list(find_texts("fineweb:60", tmp_path / "c", said.append)) == documents
    assert len(said) == 1
    assert len(list(find_texts("fineweb", tmp_path / "c", silent))) == 100


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
    assert list(find_texts(str(tmp_path), tmp_path, silent)) == [
        "a.md",
        "b.txt",
        "deep/c.txt",
    ]
    texts = find_texts(str(tmp_path / "**" / "*.txt"), tmp_path, silent)
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
        UsageError, match=r"DEVA_DATA .* set it to the folder that holds tinyshakespeare.txt"
    ):
        check_corpus("shakespeare", 4096)
    monkeypatch.setenv("DEVA_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="needs tinyshakespeare.txt in DEVA_DATA"):
        check_corpus("shakespeare", 4096)
    (tmp_path / "tinyshakespeare.txt").touch()
    check_corpus("shakespeare", 4096)


@pytest.mark.parametrize(
    ("name", "vocabulary", "package", "extra"),
    [
        ("python", 4096, "tokenizers", "lab"),
        ("python", "gpt2", "tokenizers", "lab"),
        ("fineweb", 256, "datasets", "hub"),
        ("a.parquet", 256, "pyarrow", "hub"),
        ("a.txt.zst", 256, "zstandard", "lab"),
    ],
)
def test_a_missing_extra_is_said_at_once(
    name: str,
    vocabulary: int | str,
    package: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec

    def without(wanted: str) -> ModuleSpec | None:
        return None if wanted == package else found(wanted)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    if name not in NAMES:
        (tmp_path / name).touch()
        name = str(tmp_path / name)
    with pytest.raises(MissingExtra, match=rf"{package} is not installed: .*\[{extra}\]"):
        check_corpus(name, vocabulary)


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
