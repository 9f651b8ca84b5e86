"""Slices of joined documents: nothing is lost or repeated, and labels mark what is learnt."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.data.token_table import SliceTable, TokenTable
from ddpsched.errors import DataError

# tokens of the prompt and of the text of each document
DOCUMENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 7)), min_size=1, max_size=12)
LENGTHS = st.integers(2, 9)


def joined(parts: list[tuple[int, int]]) -> TokenTable:
    """Return documents of these parts; token i of all has id 100 + i, which identifies its place."""
    lengths = np.array([prompt + text for prompt, text in parts], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.arange(100, 100 + offsets[-1], dtype=np.int32)
    return TokenTable(flat, offsets, 0, 64, np.array([prompt for prompt, _ in parts], dtype=np.int64))


def slices(parts: list[tuple[int, int]], length: int, within: bool = False) -> SliceTable:
    documents = joined(parts)
    return SliceTable(documents, length, within)


@given(DOCUMENTS, LENGTHS)
def test_every_token_once_and_in_order(parts: list[tuple[int, int]], length: int) -> None:
    total = sum(map(sum, parts))
    if total < 2:
        with pytest.raises(DataError, match="1 documents with 1 tokens in all make no slice"):
            slices(parts, length)
        return
    table = slices(parts, length)
    found = [table.row(i) for i in range(len(table))]
    kept = np.concatenate(found)
    assert table.num_dropped == (total % length == 1)
    assert kept.tolist() == list(range(100, 100 + total - table.num_dropped))
    assert all(len(row) == length for row in found[:-1])  # padding only in the last
    assert 2 <= len(found[-1]) <= length
    ids = np.arange(len(table))
    assert table.lengths(ids).tolist() == [len(row) for row in found]
    assert (table.max_length, table.num_truncated) == (length, 0)


@given(DOCUMENTS, LENGTHS, st.booleans())
def test_labels_are_the_documents_own(parts: list[tuple[int, int]], length: int, within: bool) -> None:
    """Each token's label is its document's, unless the context is outside the slice."""
    if sum(map(sum, parts)) < 2:
        return
    documents, table = joined(parts), slices(parts, length, within)
    learnt = np.concatenate([documents.labels(i) for i in range(len(documents))])
    begins = documents.offsets[:-1].tolist()
    for id in range(len(table)):
        row, labels = table.row(id), table.labels(id)
        assert labels.dtype == np.int32
        first = row[0] - 100
        expected = [
            -100 if within and (at in begins or at == first) else learnt[at] for at in range(first, first + len(row))
        ]
        assert labels.tolist() == expected
    ids = np.arange(len(table))
    counted = [np.count_nonzero(table.labels(i)[1:] != -100) for i in ids.tolist()]
    assert table.num_targets(ids).tolist() == counted
    assert table.num_targets(ids[:, None]).shape == (len(table), 1)
    parts_found = table.parts(ids)
    assert parts_found.sum(axis=1).tolist() == table.lengths(ids).tolist()
    assert parts_found[:, 1].sum() == np.count_nonzero(learnt[: len(learnt) - table.num_dropped] != -100)


@given(DOCUMENTS, LENGTHS)
def test_pieces_are_documents_or_what_is_left_of_them(parts: list[tuple[int, int]], length: int) -> None:
    if sum(map(sum, parts)) < 2:
        return
    documents, table = joined(parts), slices(parts, length, within=True)
    inner = {100 + int(at) for at in documents.offsets[1:-1]}
    for id in range(len(table)):
        (rows, labels, _), segments = table.pieces([id]), table.segments(id)
        assert segments.tolist() == [len(row) for row in rows] == [len(piece) for piece in labels]
        assert segments.min() > 0
        assert np.concatenate(rows).tolist() == table.row(id).tolist()
        assert np.concatenate(labels).tolist() == table.labels(id).tolist()
        assert all(int(piece[0]) == -100 for piece in labels)
        assert sum(np.count_nonzero(piece != -100) for piece in labels) == table.num_targets(id)
        # a piece ends where a document does, or where the slice does
        assert all(int(after[0]) in inner for _, after in pairwise(rows))
        assert not any(int(token) in inner for row in rows for token in row[1:])
    every = table.pieces(range(len(table)))
    assert [row.tolist() for row in every.rows] == [r.tolist() for i in range(len(table)) for r in table.pieces([i])[0]]
    assert every.slices.tolist() == [i for i in range(len(table)) for _ in table.segments(i)]


def test_a_rest_of_one_token_is_left_out_and_counted() -> None:
    """A single token has nothing to predict; a rest of two tokens has one target."""
    assert [slices([(0, 9)], length).num_dropped for length in (4, 7)] == [1, 0]
    assert [len(slices([(0, 9)], length)) for length in (4, 7)] == [2, 2]
    assert slices([(0, 9)], 7).num_targets([0, 1]).tolist() == [6, 1]


def test_what_is_learnt_where_documents_meet() -> None:
    """Two joined documents of 3 tokens: the second's first token is predicted from the first."""
    parts = [(0, 3), (0, 3)]
    assert slices(parts, 6).labels(0).tolist() == [100, 101, 102, 103, 104, 105]
    assert slices(parts, 6, within=True).labels(0).tolist() == [-100, 101, 102, -100, 104, 105]
    assert [int(slices(parts, 6, within).num_targets(0)) for within in (False, True)] == [5, 4]


def test_a_prompt_may_be_cut() -> None:
    """A prompt of 5 in slices of 4 leaves its last token at the second slice's start."""
    table = slices([(5, 3)], 4)
    assert [table.labels(i).tolist() for i in range(2)] == [[-100] * 4, [-100, 105, 106, 107]]
    assert table.num_targets([0, 1]).tolist() == [0, 3]
    assert table.parts([0, 1]).tolist() == [[4, 0], [1, 3]]


def test_ids_that_are_not_there() -> None:
    table = slices([(0, 9)], 4)
    for ask in (table.row, table.labels, table.lengths, table.num_targets, table.segments):
        with pytest.raises(IndexError, match=r"slice ids from 2 to 2; there are 2 slices, 0 to 1"):
            ask(2)


def test_rows_are_views() -> None:
    """Slices hold offsets alone, not a second copy of the data."""
    table = slices([(0, 9)], 4)
    assert table.row(0).base is not None
    assert not table.row(1).flags.writeable
