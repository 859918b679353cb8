"""How parameters are read as matrices: a fold and its inverse, for every layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deva_optim.core.matrices import parts

CASES = [
    # shape, layout, split, split_dim → the batches of matrices
    ((6, 4), "auto", None, -2, [(6, 4)]),
    ((6, 4), "auto", 3, -2, [(3, 2, 4)]),
    ((6, 4), "auto", 2, -1, [(2, 6, 2)]),
    ((8, 4), "auto", (4, 2, 2), -2, [(4, 4), (2, 2, 4)]),
    ((4, 8), "auto", (4, 2, 2), -1, [(4, 4), (2, 4, 2)]),
    ((5, 6, 4), "auto", None, -2, [(5, 6, 4)]),
    ((5, 6, 4), "auto", 2, -2, [(5, 2, 3, 4)]),
    ((5, 6, 4), "auto", (4, 2), -1, None),
    ((5, 4, 6), "auto", (4, 2), -1, [(5, 4, 4), (5, 4, 2)]),
    ((6, 4, 3), "conv", None, -2, [(6, 12)]),
    ((6, 4, 3, 3), "auto", None, -2, [(6, 36)]),
    ((6, 4, 3, 3), "auto", 3, -2, [(3, 2, 36)]),
    ((6, 4, 3, 3), "auto", (4, 2), -2, [(4, 36), (2, 36)]),
    ((2, 6, 4, 3), "stack", None, -2, [(2, 6, 4, 3)][:1]),
    ((6, 4, 3, 3, 3), "auto", None, -2, [(6, 108)]),
    ((5,), "auto", None, -2, []),
    ((), "auto", None, -2, []),
    ((1, 7), "auto", None, -2, []),
    ((7, 1), "auto", None, -2, []),
    ((6, 4), "auto", 6, -2, []),  # six rows of their own: vectors
]


@pytest.mark.parametrize(("shape", "layout", "split", "dim", "expected"), CASES, ids=str)
def test_parts(shape, layout, split, dim, expected):
    if expected is None:
        with pytest.raises(ValueError, match="split must add up"):
            parts(shape, layout, split, dim)
        return
    assert [part.shape for part in parts(shape, layout, split, dim)] == expected


@pytest.mark.parametrize(("shape", "layout", "split", "dim", "expected"), CASES, ids=str)
@pytest.mark.parametrize("form", ["contiguous", "transposed"])
def test_unfold_is_the_inverse_of_fold(shape, layout, split, dim, expected, form):
    X = torch.randn(shape)
    if form == "transposed" and X.ndim > 1:
        X = torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
    copy = torch.zeros_like(X)
    for part in parts(shape, layout, split, dim) if expected else ():
        folded = part.fold(X)
        assert folded.shape == part.shape
        part.slice(copy).copy_(part.unfold(folded, X))
        if form == "contiguous":  # a step averages momenta in place through such views
            assert folded.untyped_storage().data_ptr() == X.untyped_storage().data_ptr()
    assert torch.equal(copy, X if expected else torch.zeros_like(X))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(2, 4), st.booleans())
def test_a_split_cuts_where_it_says(sizes, other, rows):
    shape = (sum(sizes), other) if rows else (other, sum(sizes))
    dim = -2 if rows else -1
    X = torch.randn(shape)
    expected = X.split(sizes, dim)
    found = parts(shape, "auto", tuple(sizes), dim)
    if min(*sizes, other) < 2:
        assert found == ()
        return
    cut = [M for part in found for M in part.fold(X).reshape(-1, *part.shape[-2:])]
    assert all(torch.equal(a, b) for a, b in zip(cut, expected, strict=True))
