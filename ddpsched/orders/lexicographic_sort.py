"""Rows sorted on all their columns, packed into as few 64-bit words as they need.

Sorting one word is an order of magnitude faster than ``numpy.lexsort`` of two
columns, so columns are turned into integers that compare alike, and neighbours
share a word where their ranges fit into 63 bits. All arithmetic is by operators
that numpy's arrays and torch's tensors share; no torch is imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.errors import DataError

WORD_BITS = 63  # words stay positive
LOW_63 = 2**63 - 1
Words = list[Any]  # of columns or words: int64 (n,) each, arrays or tensors


@dataclass(frozen=True)
class Span:
    """The least and largest value of an integer column, and the number of low bits that are 0 in all its values."""

    low: int
    high: int
    zeros: int

    @property
    def bits(self) -> int:
        """The bits that a value above ``low`` takes, less ``zeros`` where the value fits into a word."""
        needed = (self.high - self.low).bit_length()
        return needed if needed > WORD_BITS else max(0, needed - self.zeros)


@dataclass(frozen=True)
class WordLayout:
    """An assignment of columns to words: ``groups[w]`` are the columns of word w, ``spans[c]`` the span of column c."""

    spans: tuple[Span, ...]
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "WordLayout":
        """Return a packing of neighbours while their bits fit; a column of more bits than a word stays as it is.

        >>> WordLayout.of([Span(3, 66, 0), Span(0, 10**7, 0), Span(-(2**63), 2**63 - 1, 0)]).groups
        ((0, 1), (2,))
        """
        groups: list[tuple[int, ...]] = []
        room = 0
        for column, span in enumerate(spans):
            if groups and span.bits <= room:
                groups[-1] = (*groups[-1], column)
            else:
                groups.append((column,))
                room = WORD_BITS
            room -= span.bits
        return cls(tuple(spans), tuple(groups))

    def word_bits(self, word: int) -> int:
        """Return the bits of the largest value of a word; more than 63 where it may be negative."""
        return sum(self.spans[column].bits for column in self.groups[word])

    def pack(self, columns: Words) -> Words:
        """Return the words of integer columns, new arrays, except for a column that is a word as it is."""
        return [self._word(word, columns) for word in range(len(self.groups))]

    def _word(self, word: int, columns: Words) -> Any:
        first, *others = self.groups[word]
        if self.word_bits(word) > WORD_BITS:
            return columns[first]
        packed = columns[first] - self.spans[first].low
        packed >>= self.spans[first].zeros
        for column in others:
            span = self.spans[column]
            packed <<= span.bits
            packed |= (columns[column] - span.low) >> span.zeros
        return packed

    def unpack(self, words: Words) -> Words:
        """Return the integer columns of words."""
        columns: dict[int, Any] = {}
        for number, (word, group) in enumerate(zip(words, self.groups, strict=True)):
            if self.word_bits(number) > WORD_BITS:
                columns[group[0]] = word
                continue
            shift = 0
            for column in reversed(group):
                span = self.spans[column]
                value = word >> shift
                value &= (1 << span.bits) - 1
                value <<= span.zeros
                value += span.low
                columns[column] = value
                shift += span.bits
        return [columns[column] for column in range(len(self.spans))]


def ordered_bits(bits: Any) -> Any:
    """Return the bits of float64 numbers, int64, as integers in the numbers' order; a second call undoes it.

    >>> ordered_bits(np.array([-2.0, -1.0, 0.0, 0.5]).view(np.int64)).argsort().tolist()
    [0, 1, 2, 3]
    """
    turned = bits >> 63  # one new array: rows are many
    turned &= LOW_63
    turned ^= bits
    return turned


def joined(spans: Sequence[Span]) -> Span:
    """Return the span of a column from the spans of its parts."""
    return Span(min(span.low for span in spans), max(span.high for span in spans), min(span.zeros for span in spans))


def span_of(column: npt.NDArray[np.int64]) -> Span:
    """Return the span of an integer column of at least one row."""
    union = int(np.bitwise_or.reduce(column))
    return Span(int(column.min()), int(column.max()), trailing_zeros(union))


def trailing_zeros(value: int) -> int:
    """Return the number of low bits that are 0; for 0, all bits of a word."""
    return (value & -value).bit_length() - 1 if value else WORD_BITS


def sort_words(words: list[npt.NDArray[np.int64]], second_bits: int) -> list[npt.NDArray[np.int64]]:
    """Return rows of one or more words in rising order. ``words`` is emptied to free memory for the result.

    ``second_bits``: bits of the second of two words. Where the first has few enough values, ties are resolved by one
    more sort of (number of the value, second word), packed; else by ``numpy.lexsort``.
    """
    if len(words) == 1:
        words[0].sort()
        return [words.pop()]
    if len(words) > 2 or second_bits + len(words[0]).bit_length() > WORD_BITS:
        turn = np.lexsort(words[::-1])
        return [words.pop(0)[turn] for _ in range(len(words))]
    turn = words[0].argsort()
    first, second = words.pop(0)[turn], words.pop(0)[turn]
    del turn
    number = np.empty(len(first), dtype=np.int64)
    number[:1] = 0
    np.cumsum(first[1:] != first[:-1], out=number[1:])
    if len(number) and number[-1] + 1 < len(number):  # else no two are equal
        number <<= second_bits
        number |= second
        number.sort()
        number &= (1 << second_bits) - 1
        second = number
    return [first, second]


def sort_rows(columns: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Return rows ``(columns[0][i], columns[1][i], ...)`` in rising order, compared on all columns; new arrays.

    Columns are (n,), int64 or float64. Raises DataError for others, for columns of unequal length, and for NaN,
    which cannot be ordered. -0.0 becomes 0.0.

    >>> keys, ids = sort_rows([np.array([7.5, 3.0, 7.5]), np.array([9, 8, 2])])
    >>> keys.tolist(), ids.tolist()
    ([3.0, 7.5, 7.5], [8, 2, 9])
    """
    floats = checked(columns)
    refuse_nan(sum(int(np.isnan(column).sum()) for column in columns))
    whole = [integers(column) for column in columns]
    if len(columns) == 1:  # what is sorted in place is not the caller's
        whole = [whole[0].copy()]
    if not len(whole[0]):
        return [column.copy() for column in columns]
    packing = WordLayout.of([span_of(column) for column in whole])
    words = packing.pack(whole)
    del whole
    words = sort_words(words, packing.word_bits(1) if len(words) > 1 else 0)
    return [numbers(column, is_float) for column, is_float in zip(packing.unpack(words), floats, strict=True)]


def checked(columns: Sequence[Any]) -> list[bool]:
    """Return which columns are float64. Raises DataError where one is neither that nor int64, or is not as long."""
    if not columns:
        raise DataError("sorting: no columns were given; give at least a key, and an id that makes rows unique")
    floats = []
    for number, column in enumerate(columns):
        kind = str(column.dtype).removeprefix("torch.")
        if column.ndim != 1 or kind not in ("int64", "float64"):
            raise DataError(
                f"sorting: column {number} is {kind} of shape {tuple(column.shape)}; columns are flat, int64 or float64"
            )
        floats.append(kind == "float64")
    sizes = [len(column) for column in columns]
    if len(set(sizes)) > 1:
        raise DataError(f"sorting: columns have {sizes} rows; each row needs a value in every column")
    return floats


def refuse_nan(count: int) -> None:
    """Raise DataError where ``count`` keys are NaN."""
    if count:
        raise DataError(f"sorting: {count} keys are NaN, which cannot be ordered; correct or leave out their samples")


def integers(column: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return a column as integers in the same order; a view or a copy."""
    if column.dtype == np.int64:
        return column
    return np.asarray(ordered_bits((column + 0.0).view(np.int64)))  # + 0.0: -0.0 equals 0.0


def numbers(column: npt.NDArray[np.int64], is_float: bool) -> npt.NDArray[Any]:
    """Return the column that :func:`integers` was given."""
    return ordered_bits(column).view(np.float64) if is_float else column
