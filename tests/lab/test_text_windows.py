"""Batches are a function of the seed and the step, and go once through the text an epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deva_lab.data.shards import Concatenated, Windows, held_out
from deva_lab.errors import UsageError

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
