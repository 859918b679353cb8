"""Shards are read as they were written, and batches are a function of the seed and the step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deva_lab.data.corpus import (
    Concatenated,
    Corpus,
    check_corpus,
    load_corpus,
    map_shard,
    prepare,
)
from deva_lab.errors import UsageError
from deva_lab.language import Windows, held_out


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "some texts.jsonl"
    texts = [f"document {number}, " * 30 for number in range(100)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.fixture
def shards(source: str, tmp_path: Path) -> Path:
    prepare(source, tmp_path / "out", 300, 1000, cache=tmp_path / "cache")
    return tmp_path / "out"


def write_by_hand(
    path: Path, tokens: list[int], *, magic: int = 20240520, version: int = 1
) -> None:
    header = np.zeros(256, dtype=np.int32)
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + np.array(tokens, dtype=np.uint16).tobytes())


def check_same(one: Corpus, other: Corpus) -> None:
    assert np.array_equal(one.train[:], other.train[:])
    assert np.array_equal(one.validation[:], other.validation[:])


def test_prepared_shards_are_read_back_equal(source: str, shards: Path, tmp_path: Path) -> None:
    direct = load_corpus(source, vocabulary=300, cache=tmp_path / "cache")
    read = load_corpus(str(shards))
    check_same(read, direct)
    assert read.vocabulary == direct.vocabulary
    one = Windows(direct.train, context=16, batch=4, seed=1)
    other = Windows(read.train, context=16, batch=4, seed=1)
    assert all(one.batch(step).equal(other.batch(step)) for step in range(50))


def test_the_files_are_as_modded_nanogpt_writes_them(source: str, tmp_path: Path) -> None:
    paths = prepare(source, tmp_path / "out", 300, 1000, cache=tmp_path / "cache")
    assert [path.name for path in paths[:2]] == [
        "some-texts_val_000000.bin",
        "some-texts_train_000001.bin",
    ]
    assert len(paths) > 3
    for path in paths:
        content = path.read_bytes()
        header, tokens = np.frombuffer(content[:1024], "<i4"), np.frombuffer(content[1024:], "<u2")
        assert header[:3].tolist() == [20240520, 1, len(tokens)]
        assert not header[3:].any()
        assert len(tokens) <= 1000
    assert {path.name for path in (tmp_path / "out").iterdir()} == {p.name for p in paths} | {
        "shards.json"
    }


def test_a_folder_a_glob_and_a_file_mean_the_same_shards(shards: Path) -> None:
    folder = load_corpus(str(shards))
    assert isinstance(folder.train, Concatenated)
    check_same(folder, load_corpus(str(shards / "*.bin")))
    check_same(folder, load_corpus(str(shards / "*_train_*.bin")))
    single = load_corpus(str(shards / "some-texts_train_000001.bin"))
    assert np.array_equal(single.train[:], folder.train[:1000])
    assert np.array_equal(single.validation[:], folder.validation[:])


def test_one_shard_is_mapped_and_not_copied(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "web_train_000001.bin", [50256, 1, 2, 3])
    write_by_hand(tmp_path / "web_val_000000.bin", [50256, 31373, 995])
    corpus = load_corpus(str(tmp_path))
    assert isinstance(corpus.train, np.memmap)
    assert corpus.train.tolist() == [50256, 1, 2, 3]
    assert corpus.vocabulary == 50257


def test_the_side_is_the_last_word_of_the_name(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "val-interval_train_1.bin", [1, 2])
    write_by_hand(tmp_path / "train_val_0.bin", [3, 4])
    corpus = load_corpus(str(tmp_path))
    assert (corpus.train[:].tolist(), corpus.validation[:].tolist()) == ([1, 2], [3, 4])


@pytest.mark.parametrize("key", [{"magic": 20240801}, {"version": 2}])
def test_another_header_is_refused(key: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "web_train.bin"
    write_by_hand(path, [1, 2], magic=key.get("magic", 20240520), version=key.get("version", 1))
    with pytest.raises(UsageError, match="must begin with 20240520 and version 1"):
        map_shard(path)


def test_a_shard_that_ends_within_its_header_is_refused(tmp_path: Path) -> None:
    for name in ("web_train.bin", "web_val.bin"):
        (tmp_path / name).write_bytes(bytes(1001))
    with pytest.raises(UsageError, match="web_train.bin is no token shard"):
        check_corpus(str(tmp_path), 4096)


@pytest.mark.parametrize("change", [-2, -1, 1, 2])
def test_a_shard_of_another_length_is_refused(change: int, tmp_path: Path) -> None:
    path = tmp_path / "web_train.bin"
    write_by_hand(path, [1, 2, 3])
    content = path.read_bytes() + b"\0\0"
    path.write_bytes(content[: len(content) - 2 + change])
    with pytest.raises(UsageError, match="damaged: its header says 3 tokens"):
        map_shard(path)
    write_by_hand(tmp_path / "web_val.bin", [1])
    with pytest.raises(UsageError, match="damaged"):
        check_corpus(str(tmp_path), 4096)


def test_a_missing_side_or_file_is_named(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \*train\*.bin to train on"):
        load_corpus(str(shards / "*val*.bin"))
    with pytest.raises(UsageError, match="there is no shard at .*nothing.bin"):
        check_corpus(str(tmp_path / "nothing.bin"), "gpt2")
    for path in shards.glob("*val*.bin"):
        path.unlink()
    with pytest.raises(UsageError, match=r"no \*val\*.bin to validate on"):
        load_corpus(str(shards))


def test_preparing_overwrites_nothing(source: str, shards: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not empty: give a new folder"):
        prepare(source, shards, 300, 1000, cache=tmp_path / "cache")
    shutil.rmtree(shards)
    shards.mkdir()
    assert prepare(source, shards, 300, 1000, cache=tmp_path / "cache")
    with pytest.raises(UsageError, match="shard_tokens must be at least 1, got 0"):
        prepare(source, tmp_path / "new", 300, 0)


def test_preparing_that_fails_leaves_no_folder(source: str, tmp_path: Path) -> None:
    def full(message: str) -> None:
        if "train" in message and "writing" in message:
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        prepare(source, tmp_path / "new", 300, 1000, full, cache=tmp_path / "cache")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".partial*"))


def test_a_damaged_note_is_named(shards: Path) -> None:
    (shards / "shards.json").write_text("{")
    with pytest.raises(UsageError, match="shards.json is damaged: remove it"):
        load_corpus(str(shards))


# Windows ------------------------------------------------------------------------------------------

sizes = st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(0, 200), st.integers(0, 9))


@given(sizes)
def test_an_epoch_goes_once_through_disjoint_windows(size: tuple[int, int, int, int]) -> None:
    context, batch, extra, seed = size
    tokens = np.arange((batch + 1) * context + extra)
    windows = Windows(tokens, context=context, batch=batch, seed=seed)
    steps = 3 * windows.windows // batch + 1
    rows = torch.cat([windows.batch(step) for step in range(steps)])
    assert rows.dtype == torch.int64
    assert rows.equal(rows[:, :1] + torch.arange(context + 1)), "each is a piece of the text"
    for epoch in range(2):
        starts = rows[epoch * windows.windows : (epoch + 1) * windows.windows, 0]
        first = int(starts.min())
        assert first < context
        assert starts.sort().values.equal(first + context * torch.arange(windows.windows))
        assert len(tokens) - int(starts.max()) - context - 1 <= 2 * context, "no more is left over"


def test_any_step_can_be_asked_for_at_any_time() -> None:
    tokens = np.arange(1000)
    in_order = Windows(tokens, context=7, batch=6, seed=3)
    batches = [in_order.batch(step) for step in range(80)]
    at_random = Windows(tokens, context=7, batch=6, seed=3)
    for step in np.random.default_rng(0).permutation(80):
        assert at_random.batch(int(step)).equal(batches[step])
    assert Windows(tokens, context=7, batch=6, seed=3).batch(79).equal(batches[79])


def test_the_order_depends_on_the_seed_and_the_epoch() -> None:
    tokens = np.arange(1001)
    windows = Windows(tokens, context=10, batch=99, seed=0)
    assert windows.windows == 99
    assert not windows.batch(0).equal(windows.batch(1))
    assert not windows.batch(0).equal(Windows(tokens, context=10, batch=99, seed=1).batch(0))


def test_the_order_does_not_change_from_version_to_version() -> None:
    windows = Windows(np.arange(50), context=4, batch=5, seed=0)
    assert windows.batch(0)[:, 0].tolist() == [43, 11, 7, 3, 31]
    assert windows.batch(7)[:, 0].tolist() == [15, 11, 23, 7, 43]


def test_tokens_in_parts_give_the_same_batches() -> None:
    tokens = np.arange(500, dtype=np.uint16)
    parts = Concatenated([tokens[:3], tokens[3:200], tokens[200:201], tokens[201:]])
    whole = Windows(tokens, context=8, batch=4, seed=5)
    joined = Windows(parts, context=8, batch=4, seed=5)
    assert all(whole.batch(step).equal(joined.batch(step)) for step in range(40))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 30), st.integers(0, 30))
def test_parts_are_sliced_like_the_whole(lengths: list[int], start: int, stop: int) -> None:
    whole = np.arange(sum(lengths))
    parts = Concatenated(np.split(whole, np.cumsum(lengths)[:-1]))
    assert len(parts) == len(whole)
    assert parts[start:stop].tolist() == whole[start:stop].tolist()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 100))
def test_held_out_windows_reach_from_end_to_end(context: int, windows: int, extra: int) -> None:
    tokens = np.arange(context + 1 + extra)
    rows = held_out(tokens, context=context, windows=windows)
    assert rows.shape == (windows, context + 1)
    assert rows[0, 0] == 0
    assert windows == 1 or rows[-1, -1] == tokens[-1]
    gaps = rows[:, 0].diff()
    assert windows == 1 or gaps.max() - gaps.min() <= 1
    assert len(tokens) < windows * (context + 1) or windows == 1 or gaps.min() >= context


def test_a_text_that_is_too_short_says_what_would_do() -> None:
    with pytest.raises(UsageError, match="has 35 tokens, but a batch of 3 windows of 9 needs 36"):
        Windows(np.arange(35), context=9, batch=3, seed=0)
    Windows(np.arange(36), context=9, batch=3, seed=0)
    with pytest.raises(
        UsageError, match="validation text has 9 tokens, fewer than one window of 10"
    ):
        held_out(np.arange(9), context=9, windows=1)
