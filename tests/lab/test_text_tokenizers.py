"""Text becomes tokens and comes back."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from deva_lab.data.tokenizers import (
    BYTES,
    PIECE_CHARACTERS,
    Tokenizer,
    cut_words,
    gpt2,
    gpt2_folder,
    parse_vocabulary,
    train_byte_pairs,
)
from deva_lab.errors import UsageError

SAMPLE = [
    f"the {word} of the {word}s, again and again\n" for word in ("cat", "dog", "café", "日本")
]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
needs_gpt2 = pytest.mark.skipif(
    gpt2_folder() is None, reason="GPT-2's files are not here: set DEVA_DATA or DEVA_GPT2_BPE"
)


def trained(texts: list[str], vocabulary: int) -> Tokenizer:
    byte_pairs = train_byte_pairs(texts, vocabulary)
    return Tokenizer(byte_pairs.get_vocab_size() + 1, byte_pairs)


@cache
def learnt() -> Tokenizer:
    return trained(SAMPLE * 3, 300)


@cache
def known() -> Tokenizer:
    return gpt2()


def check_round_trip(tokenizer: Tokenizer, text: str) -> None:
    (ids,) = tokenizer.encode([text])
    assert not len(ids) or ids.max() < tokenizer.vocabulary - 1, "the end is in no text"
    if tokenizer.byte_pairs is None:
        assert bytes(ids.tolist()).decode() == text
    else:
        assert tokenizer.byte_pairs.decode(ids.tolist()) == text


@given(texts)
def test_bytes_come_back(text: str) -> None:
    check_round_trip(Tokenizer(BYTES), text)


@given(texts)
def test_byte_pairs_come_back(text: str) -> None:
    check_round_trip(learnt(), text)


@needs_gpt2
@given(texts)
def test_gpt2_tokens_come_back(text: str) -> None:
    check_round_trip(known(), text)


def check_pieces(tokenizer: Tokenizer, text: str, size: int) -> None:
    pieces = list(cut_words(text, size=size))
    assert "".join(pieces) == text
    (whole,) = tokenizer.encode([text])
    assert np.concatenate(tokenizer.encode(pieces)).tolist() == whole.tolist()


spaced = st.text(st.sampled_from("the cat's  \n\t\r\x1c\xa0\u2003日é1.<|"), max_size=80)


@given(spaced, st.integers(1, 9))
def test_pieces_have_the_byte_pairs_of_the_whole(text: str, size: int) -> None:
    check_pieces(learnt(), text, size)


@needs_gpt2
@given(spaced, st.integers(1, 9))
def test_pieces_have_the_gpt2_tokens_of_the_whole(text: str, size: int) -> None:
    check_pieces(known(), text, size)


def test_training_on_pieces_gives_the_byte_pairs_of_the_whole() -> None:
    whole = train_byte_pairs(["".join(SAMPLE) * 2000], 300)
    assert len("".join(SAMPLE) * 2000) > 3 * PIECE_CHARACTERS
    assert whole.to_str() == train_byte_pairs(SAMPLE * 2000, 300).to_str()


@pytest.mark.parametrize("text", ["<|endoftext|>", "a<|endoftext|>b"])
def test_what_looks_like_an_end_is_text(text: str) -> None:
    check_round_trip(learnt(), text)


def test_byte_pairs_shorten_what_they_have_learnt() -> None:
    tokenizer = learnt()
    (ids,) = tokenizer.encode([SAMPLE[0]])
    assert 270 < tokenizer.vocabulary <= 300
    assert len(ids) < len(SAMPLE[0]) / 2


def test_training_twice_gives_the_same_byte_pairs() -> None:
    first, second = (train_byte_pairs(SAMPLE * 3, 320).to_str() for _ in range(2))
    assert first == second


def test_a_short_text_gives_fewer_byte_pairs() -> None:
    tokenizer = trained(["ab ab"], 5000)
    assert 257 <= tokenizer.vocabulary < 270
    check_round_trip(tokenizer, "ab ba")


@needs_gpt2
def test_gpt2_ids_are_the_known_ones() -> None:
    ids_of = {
        "hello world": [31373, 995],
        "Hello, world!": [15496, 11, 995, 0],
        " the": [262],
        "\n\n": [628],
        "naïve": [2616, 38776],
    }
    for text, ids in ids_of.items():
        assert known().encode([text])[0].tolist() == ids
    assert known().vocabulary == 50257


@pytest.mark.parametrize("vocabulary", ["gpt3", "", 255, "-1", 0])
def test_an_impossible_vocabulary_names_the_possible(vocabulary: int | str) -> None:
    with pytest.raises(UsageError, match="256"):
        parse_vocabulary(vocabulary)


def test_gpt2_files_that_are_not_there_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVA_GPT2_BPE", str(tmp_path))
    with pytest.raises(UsageError, match="there is no encoder.json"):
        parse_vocabulary("gpt2")
    (tmp_path / "encoder.json").write_text(json.dumps({"a": 0}))
    with pytest.raises(UsageError, match="there is no vocab.bpe"):
        parse_vocabulary("gpt2")
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n")
    with pytest.raises(UsageError, match="is not GPT-2's: that has 50,257 tokens"):
        gpt2()
    (tmp_path / "encoder.json").write_text("{")
    with pytest.raises(UsageError, match=r"encoder.json and .*vocab.bpe cannot be read"):
        gpt2()


@needs_gpt2
def test_gpt2_of_the_hub_is_that_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's has its end among the added tokens, which a text must not be taken for."""
    local = gpt2()
    hub = tokenizers.Tokenizer.from_str(local.byte_pairs.to_str())
    hub.add_special_tokens(["<|endoftext|>"])
    assert hub.encode("<|endoftext|>").ids == [50256]
    monkeypatch.setattr("deva_lab.data.tokenizers.gpt2_folder", lambda: None)
    monkeypatch.setattr(tokenizers.Tokenizer, "from_pretrained", lambda name: hub, raising=False)
    for text in ("<|endoftext|>", "Hello, world! naïve"):
        assert gpt2().encode([text])[0].tolist() == local.encode([text])[0].tolist()
        check_round_trip(gpt2(), text)


def test_gpt2_that_cannot_be_downloaded_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str) -> tokenizers.Tokenizer:
        raise ConnectionError(f"no network for {name}")

    for variable in ("DEVA_DATA", "DEVA_GPT2_BPE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(tokenizers.Tokenizer, "from_pretrained", offline)
    with pytest.raises(UsageError, match="to a folder with its encoder.json and vocab.bpe"):
        gpt2()
