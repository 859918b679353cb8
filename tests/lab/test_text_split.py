"""The split is by document, by its content alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deva_lab.data.corpus import USUAL_SPLIT, find_split
from deva_lab.errors import UsageError
from deva_lab.files import number_of


def test_about_a_twentieth_is_held_out() -> None:
    held_out = sum(number_of(f"document {number}") < USUAL_SPLIT for number in range(20_000))
    assert 850 < held_out < 1150  # 1,000 ± five standard deviations


def test_the_split_does_not_change_from_version_to_version() -> None:
    held_out = [n for n in range(100) if number_of(f"document {n}") < USUAL_SPLIT]
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
