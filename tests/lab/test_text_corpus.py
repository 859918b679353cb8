"""A corpus: split by document, tokenised once, whole whatever happens to its cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deva_lab import files
from deva_lab.data.corpus import USUAL_SPLIT, Corpus, check_corpus, find_split, load_corpus
from deva_lab.data.tokenizers import gpt2_folder
from deva_lab.errors import UsageError
from deva_lab.files import STALE_SECONDS, number_of
from helpers import needs_posix

# Each has its number at every place, so that no piece of one is in another.
DOCUMENTS = [f"<{number}> " * (20 + number % 7) for number in range(300)]
needs_data = pytest.mark.skipif(
    "DEVA_DATA" not in os.environ, reason="DEVA_DATA names no folder with real data"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    return path


def is_held_out(text: str) -> bool:
    return number_of(text) < USUAL_SPLIT


def text_of(ids: np.ndarray) -> str:
    """The text of bytes, without the ends."""
    return bytes(ids[ids != 255].tolist()).decode("utf-8", "replace")


def documents_of(tokens: np.ndarray, end: int) -> list[np.ndarray]:
    assert tokens[0] == end
    return np.split(tokens, np.flatnonzero(tokens == end))[1:]


def test_the_split_is_by_document_and_nothing_is_lost(path: Path, tmp_path: Path) -> None:
    corpus = load_corpus(str(path), vocabulary=256, cache=tmp_path)
    assert corpus.vocabulary == 256
    for tokens, held_out in ((corpus.train, False), (corpus.validation, True)):
        texts = [text_of(d) for d in documents_of(np.asarray(tokens), end=255)]
        assert texts == [text for text in DOCUMENTS if is_held_out(text) == held_out]


def test_long_documents_are_whole(tmp_path: Path) -> None:
    texts = ["".join(f"{side}{n} " for n in range(40_000)) for side in ("left ", "right ")]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = load_corpus(str(path), vocabulary=256, cache=tmp_path)
    sides = [documents_of(np.asarray(s), end=255) for s in (corpus.train, corpus.validation)]
    assert sorted(text_of(d) for (d,) in sides) == texts


def test_no_window_of_validation_is_in_training(path: Path, tmp_path: Path) -> None:
    corpus = load_corpus(str(path), vocabulary=300, cache=tmp_path)
    end = corpus.vocabulary - 1

    def windows(tokens: np.ndarray) -> set[bytes]:
        rows = [
            d[i : i + 16].tobytes() for d in documents_of(tokens, end) for i in range(len(d) - 15)
        ]
        return set(rows)

    held_out = windows(np.asarray(corpus.validation))
    assert len(held_out) > 10
    assert held_out.isdisjoint(windows(np.asarray(corpus.train)))


def test_copies_of_a_document_are_on_one_side(path: Path, tmp_path: Path) -> None:
    once = load_corpus(str(path), vocabulary=256, cache=tmp_path)
    twice_path = tmp_path / "twice.jsonl"
    twice_path.write_text(path.read_text() * 2)
    twice = load_corpus(str(twice_path), vocabulary=256, cache=tmp_path)
    assert np.array_equal(twice.validation, np.tile(once.validation, 2))
    assert np.array_equal(twice.train, np.tile(once.train, 2))


def test_a_text_is_tokenised_once(path: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = load_corpus(str(path), vocabulary=300, cache=tmp_path / "c", report=said.append)
    assert [line.split()[0] for line in said] == ["training", "tokenising"]
    (tmp_path / "moved").mkdir()
    moved = path.rename(tmp_path / "moved" / path.name)
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "c").rglob("*")}
    again = load_corpus(str(moved), vocabulary=300, cache=tmp_path / "c", report=said.append)
    assert len(said) == 2, "nothing is done again"
    assert stamps == {file: file.stat().st_mtime_ns for file in (tmp_path / "c").rglob("*")}
    assert same(first, again)
    assert isinstance(again.train, np.memmap)


def test_another_text_or_vocabulary_is_another_entry(path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    load_corpus(str(path), vocabulary=256, cache=cache)
    load_corpus(str(path), vocabulary=260, cache=cache)
    path.write_text(path.read_text() + json.dumps({"text": "one more"}) + "\n")
    load_corpus(str(path), vocabulary=256, cache=cache)
    assert len([entry for entry in cache.iterdir() if entry.is_dir()]) == 3


def same(one: Corpus, other: Corpus) -> bool:
    sides = ((one.train, other.train), (one.validation, other.validation))
    return all(np.array_equal(a, b) for a, b in sides)


def truncate(folder: Path) -> None:
    file = folder / "train.bin"
    file.write_bytes(file.read_bytes()[:-2])


def flip_a_bit(folder: Path) -> None:
    file = folder / "validation.bin"
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)


def lose_a_file(folder: Path) -> None:
    (folder / "train.bin").unlink()


def garble_the_note(folder: Path) -> None:
    file = folder / "shards.json"
    file.write_text(file.read_text().replace('"vocabulary": 3', '"vocabulary": 2'))


def empty_the_note(folder: Path) -> None:
    (folder / "shards.json").write_text("")


DAMAGES = [truncate, flip_a_bit, lose_a_file, garble_the_note, empty_the_note]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_again(
    damage: Callable[[Path], None], path: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "c"
    before = load_corpus(str(path), vocabulary=300, cache=cache)
    train, validation = np.array(before.train), np.array(before.validation)
    (folder,) = (entry for entry in cache.iterdir() if entry.is_dir())
    damage(folder)
    said: list[str] = []
    after = load_corpus(str(path), vocabulary=300, cache=cache, report=said.append)
    assert [line.split()[0] for line in said] == ["tokenising"], "the BPE is kept"
    assert np.array_equal(after.train, train)
    assert np.array_equal(after.validation, validation)
    assert not list(cache.glob(".partial*"))


def test_a_damaged_bpe_is_trained_again(path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    train = np.array(load_corpus(str(path), vocabulary=300, cache=cache).train)
    (folder,) = (entry for entry in cache.iterdir() if entry.is_dir())
    (bpe,) = cache.glob("bpe-*.json")
    bpe.write_text(bpe.read_text()[:-5])
    lose_a_file(folder)
    said: list[str] = []
    after = load_corpus(str(path), vocabulary=300, cache=cache, report=said.append)
    assert [line.split()[0] for line in said] == ["training", "tokenising"]
    assert np.array_equal(after.train, train)


LOAD = """
import sys
from pathlib import Path
from deva_lab.data.corpus import load_corpus
corpus = load_corpus(sys.argv[1], vocabulary=300, cache=Path(sys.argv[2]))
print(len(corpus.train), int(corpus.train[:].sum()))
"""


DIE = """
import os, signal, sys, threading
from pathlib import Path
from deva_lab.data.corpus import load_corpus
def report(said):
    if said.startswith(sys.argv[3]):
        threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGKILL)).start()
load_corpus(sys.argv[1], vocabulary=300, cache=Path(sys.argv[2]), report=report)
"""


@pytest.mark.slow
def test_processes_at_once_all_get_the_corpus(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(path), str(tmp_path / "c")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    train = np.asarray(load_corpus(str(path), vocabulary=300, cache=tmp_path / "c").train)
    assert printed == {f"{len(train)} {int(train.sum())}\n"}
    assert not list((tmp_path / "c").glob(".partial*"))


@needs_posix
@pytest.mark.slow
@pytest.mark.parametrize("line", ["training", "tokenising"])
def test_a_kill_leaves_nothing_broken(line: str, path: Path, tmp_path: Path) -> None:
    # It dies in the midst of the work that the line announces.
    more = (json.dumps({"text": f"{number} " * 300}) + "\n" for number in range(1000))
    path.write_text(path.read_text() + "".join(more))
    cache = tmp_path / "c"
    command = [sys.executable, "-c", DIE, str(path), str(cache), line]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -9
    corpus = load_corpus(str(path), vocabulary=300, cache=cache)
    assert same(corpus, load_corpus(str(path), vocabulary=300, cache=tmp_path / "other"))


def test_what_a_killed_process_left_is_swept_after_a_week(path: Path, tmp_path: Path) -> None:
    old, young = tmp_path / "c" / ".partial-old", tmp_path / "c" / ".partial-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    stamp = time.time() - STALE_SECONDS - 60
    os.utime(old, (stamp, stamp))
    load_corpus(str(path), vocabulary=256, cache=tmp_path / "c")
    assert not old.exists()
    assert young.exists()


def test_the_cache_is_where_the_environment_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEVA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    load_corpus(str(path), vocabulary=256)
    assert len(list((tmp_path / "xdg" / "deva").iterdir())) == 1
    monkeypatch.setenv("DEVA_CACHE", str(tmp_path / "own"))
    load_corpus(str(path), vocabulary=256)
    assert len(list((tmp_path / "own").iterdir())) == 1
    monkeypatch.setenv("DEVA_CACHE", str(path))
    with pytest.raises(UsageError, match="set DEVA_CACHE to another"):
        load_corpus(str(path), vocabulary=256)


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path) -> None:
    path = tmp_path / "words.jsonl"
    words = np.random.default_rng(0).integers(97, 123, size=(2, 90_000, 5), dtype=np.uint8)
    texts = ["".join(f" {bytes(w).decode()}" for w in side) * 2 for side in words]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = load_corpus(str(path), vocabulary=70_000, cache=tmp_path)
    assert corpus.vocabulary == 70_000
    assert np.asarray(corpus.train).dtype == np.uint32
    assert corpus.train[:1].tolist() == [69_999]


def test_one_document_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("too short")
    with pytest.raises(UsageError, match="needs two different documents"):
        load_corpus(str(tmp_path / "a.txt"), cache=tmp_path)


@pytest.mark.slow
def test_the_standard_library_is_the_default_corpus(tmp_path: Path) -> None:
    check_corpus("python", 4096)
    corpus = load_corpus("python", vocabulary=256, cache=tmp_path)
    size = len(corpus.train) + len(corpus.validation)
    assert 5e6 < size < 40e6
    assert 0.01 < len(corpus.validation) / size < 0.15
    text = text_of(corpus.validation[:20_000])
    assert "import" in text
    assert "def " in text


@needs_data
def test_the_sample_of_fineweb_in_gpt2_tokens(tmp_path: Path) -> None:
    if gpt2_folder() is None:
        pytest.skip("DEVA_DATA has no gpt2-bpe")
    corpus = load_corpus("fineweb-sample", vocabulary="gpt2", cache=tmp_path)
    assert corpus.vocabulary == 50257
    ends = sum(
        int(np.count_nonzero(np.asarray(side) == 50256))
        for side in (corpus.train, corpus.validation)
    )
    assert ends == 2800
    assert len(corpus.train) + len(corpus.validation) - ends == pytest.approx(4.36e6, rel=0.005)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are hashed."""
    names: list[str] = []
    original = files.file_digest

    def file_digest(path: Path) -> str:
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(files, "file_digest", file_digest)
    return names


def test_files_that_have_settled_are_hashed_once(
    path: Path, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED_SECONDS", -1.0)  # as if all had been written long ago
    cache = tmp_path / "c"
    first = np.array(load_corpus(str(path), vocabulary=256, cache=cache).validation)
    load_corpus(str(path), vocabulary=256, cache=cache)
    read.clear()
    again = load_corpus(str(path), vocabulary=256, cache=cache)
    assert np.array_equal(again.validation, first)
    assert read == []
    (folder,) = (entry for entry in cache.iterdir() if entry.is_dir())
    flip_a_bit(folder)
    os.utime(folder / "validation.bin", ns=(0, 0))  # clocks of files are coarse
    made = load_corpus(str(path), vocabulary=256, cache=cache)
    assert np.array_equal(made.validation, first)
    assert {"train.bin", "validation.bin"} <= set(read)


def test_files_that_were_written_just_now_are_hashed_again(
    path: Path, tmp_path: Path, read: list[str]
) -> None:
    for _ in range(2):
        read.clear()
        load_corpus(str(path), vocabulary=256, cache=tmp_path / "c")
        assert {path.name, "train.bin", "validation.bin"} <= set(read)
    assert not list((tmp_path / "c").glob("digests-*"))


def test_a_damaged_note_of_digests_is_not_believed(
    path: Path, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED_SECONDS", -1.0)
    first = load_corpus(str(path), vocabulary=256, cache=tmp_path)
    for note in tmp_path.glob("digests-*"):
        note.write_bytes(note.read_bytes()[:-3])
    read.clear()
    assert same(first, load_corpus(str(path), vocabulary=256, cache=tmp_path))
    assert {path.name, "train.bin", "validation.bin"} <= set(read)


# The split ----------------------------------------------------------------------------------------


def test_about_a_twentieth_is_held_out() -> None:
    held_out = sum(is_held_out(f"document {number}") for number in range(20_000))
    assert 850 < held_out < 1150  # 1,000 ± five standard deviations


def test_the_split_does_not_change_from_version_to_version() -> None:
    held_out = [n for n in range(100) if is_held_out(f"document {n}")]
    assert held_out == [40, 70]


@given(
    st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=60).filter(
        lambda d: len({*d}) > 1
    )
)
def test_both_sides_have_a_document_whatever_the_order(documents: list[str]) -> None:
    split = find_split(documents)
    sides = {number_of(text) < split for text in documents}
    assert sides == {True, False}
    assert find_split(reversed(documents)) == split


@pytest.mark.parametrize("documents", [[], ["only"], ["same", "same"]])
def test_what_cannot_be_split_says_so(documents: list[str]) -> None:
    with pytest.raises(UsageError, match="needs two different documents"):
        find_split(documents)
