"""Rows sorted on all columns agree with numpy.lexsort, whatever the ranges and ties; unordered values are refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ddpsched.errors import DataError
from ddpsched.orders.lexicographic_sort import Span, WordLayout, integers, numbers, sort_rows, span_of

INT = np.iinfo(np.int64)
SMALL = st.integers(-3, 3)
WIDE = st.sampled_from([INT.min, INT.min + 1, -(2**62), -1, 0, 1, 2**40, 2**62, INT.max])
FLOATS = st.sampled_from([-np.inf, -1e300, -1.5, -0.0, 0.0, 5e-324, 0.25, 1.0, 7.0, np.inf])

KINDS = [(np.int64, SMALL), (np.int64, WIDE), (np.float64, FLOATS)]


@st.composite
def tables(draw: Any) -> list[np.ndarray]:
    """Return one to four columns of up to 60 rows, with many ties, wide ranges, integers and floats."""
    size = draw(st.integers(0, 60))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    return [draw(arrays(dtype, size, elements=elements)) for dtype, elements in kinds]


def lexsorted(columns: list[np.ndarray]) -> list[np.ndarray]:
    turn = np.lexsort(columns[::-1])
    return [column[turn] for column in columns]


@given(tables())
@example([np.array([INT.min, INT.max])])
@example([np.array([2.0, 1.0, 2.0]), np.array([INT.max, 0, INT.min])])
def test_as_lexsort(columns: list[np.ndarray]) -> None:
    before = [column.copy() for column in columns]
    for result, expected, given_, kept in zip(sort_rows(columns), lexsorted(columns), columns, before, strict=True):
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(given_, kept)
        assert not np.shares_memory(result, given_)


@given(tables())
def test_packing_is_undone_and_compares_alike(columns: list[np.ndarray]) -> None:
    if not len(columns[0]):
        return
    whole = [integers(column) for column in columns]
    packing = WordLayout.of([span_of(column) for column in whole])
    words = packing.pack(whole)
    for result, expected in zip(packing.unpack(words), whole, strict=True):
        np.testing.assert_array_equal(result, expected)
    turns = [np.lexsort([*table[::-1]]) for table in (words, whole)]
    for column in whole:
        np.testing.assert_array_equal(column[turns[0]], column[turns[1]])
    assert len(words) <= len(columns)


def test_what_fits_into_one_word() -> None:
    ids = np.arange(10**7)
    lengths, losses = ids % 500, (ids % 1000).astype(np.float32).astype(np.float64)
    for keys in (lengths, losses):
        packing = WordLayout.of([span_of(integers(keys)), span_of(ids)])
        assert len(packing.groups) == 1, packing
    assert len(WordLayout.of([Span(0, 2**62, 0), Span(0, 10**7, 0)]).groups) == 2
    assert Span(0, 2**62, 40).bits == 23, "low bits that are 0 in every value take no room"


@pytest.mark.parametrize("ties", ["none", "some", "all"])
def test_keys_of_a_words_width_beside_ids(ties: str) -> None:
    """The two-word sort settles ties with one more sort."""
    rng = np.random.default_rng(0)
    keys = {"none": rng.random(5000), "some": rng.choice(rng.random(300), 5000), "all": np.full(5000, 0.1)}[ties]
    ids = rng.permutation(5000)
    for result, expected in zip(sort_rows([keys, ids]), lexsorted([keys, ids]), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_the_sign_of_zero_is_lost() -> None:
    keys = sort_rows([np.array([0.0, -0.0]), np.array([1, 2])])
    assert keys[1].tolist() == [1, 2]
    assert not np.signbit(keys[0]).any()
    assert numbers(integers(np.array([-0.0])), True).tolist() == [0.0]


def test_what_cannot_be_sorted() -> None:
    ids = np.arange(3)
    for columns, words in (
        ([], "no columns"),
        ([np.array([1.0, np.nan, np.nan]), ids], "2 keys are NaN"),
        ([ids, ids[:2]], r"\[3, 2\] rows"),
        ([ids.astype(np.int32)], "column 0 is int32 of shape"),
        ([ids.astype(np.float32)], "float32"),
        ([np.array([1, "a", 2.5], dtype=object), ids], "object"),
        ([ids.reshape(1, 3)], r"shape \(1, 3\)"),
    ):
        with pytest.raises(DataError, match=words):
            sort_rows(columns)
