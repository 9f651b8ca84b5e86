"""Items of a batch: samples, or groups of them, that stay together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.data.lengths import as_array
from ddpsched.denominators import as_numpy, group_numbers
from ddpsched.errors import DataError


@dataclass(frozen=True)
class Items:
    """Samples that stay together, as items.

    ``lengths``: (B,). ``cost``: of a sample, and of a micro-batch before its first one. ``group``: (B,), each sample's
    item, 0 to n - 1; None where each sample is one of its own. All arrays of an item are (n,).
    """

    lengths: Int
    cost: CostModel
    group: Int | None = None

    def __len__(self) -> int:
        return len(self.lengths) if self.group is None else int(self.group.max()) + 1

    @cached_property
    def costs(self) -> Int:
        """The cost of each item's samples without padding and without the fixed cost of a micro-batch."""
        return self._summed(self.cost.sample(self.lengths))

    @cached_property
    def tokens(self) -> Int:
        """The tokens of each item."""
        return self._summed(self.lengths)

    @cached_property
    def counts(self) -> Int:
        """The samples of each item."""
        return self._summed(np.ones(len(self.lengths), dtype=np.int64))

    @cached_property
    def longest(self) -> Int:
        """The longest sample of each item, in tokens."""
        if self.group is None:
            return self.lengths
        found = np.zeros(len(self), dtype=np.int64)
        np.maximum.at(found, self.group, self.lengths)
        return found

    def positions(self, items: Sequence[int]) -> Int:
        """Return the positions of these items' samples, rising."""
        if self.group is None:
            return np.sort(np.array(items, dtype=np.int64))
        return np.flatnonzero(np.isin(self.group, items))

    def within(self, outer: Items, item: Sequence[int]) -> list[int]:
        """Return the items that lie in these items of ``outer``, which no item of this one crosses."""
        positions = outer.positions(item)
        found: list[int] = (positions if self.group is None else np.unique(self.group[positions])).tolist()
        return found

    def _summed(self, each: Int) -> Int:
        if self.group is None:
            return each
        found = np.zeros(len(self), dtype=np.int64)
        np.add.at(found, self.group, each)  # whole numbers, which weights of bincount are not beyond 2**53
        return found


def lengths_of(lengths: Any) -> Int:
    """Return lengths, of a list, array or tensor, as int64 (B,). Raises DataError where they are none."""
    given = as_array(as_numpy(lengths) if hasattr(lengths, "detach") else lengths)
    if given.ndim != 1 or not len(given):
        raise DataError(
            f"balance: lengths of shape {given.shape}; give the tokens of each sample, shape (B,), B at least 1"
        )
    if given.dtype.kind not in "iu":
        raise DataError(f"balance: lengths are {given.dtype}, needs integers; give the tokens of each sample")
    wrong = (given < 1) | (given > 2**40)
    if wrong.any():
        where = int(wrong.argmax())
        raise DataError(
            f"balance: length {where} is {given[where]}, needs 1 to 2**40; {int(wrong.sum())} of {len(given)} are like "
            "this; leave these samples out"
        )
    found = given.astype(np.int64)  # a copy, which the caller's changes do not reach
    found.flags.writeable = False
    return found


def groups_of(groups: Any, size: int) -> tuple[Int, list[str]] | None:
    """Return the group of each sample, (B,), numbered from 0, and words for each group; None without groups.

    ``groups``: (B,) names, equal ones of one group; or a list of lists of positions, samples of none being alone.
    Raises DataError where they overlap, or are not of these samples.
    """
    if groups is None:
        return None
    if hasattr(groups, "detach") or isinstance(groups, np.ndarray):
        groups = as_numpy(groups).tolist()
    if isinstance(groups, list | tuple) and len(groups) and all(map(_is_list, groups)):
        return _of_lists([as_numpy(each).tolist() if hasattr(each, "ndim") else list(each) for each in groups], size)
    found, names = group_numbers(groups, size, "balance")
    return found, [f"group {name!r}" for name in names]


def _is_list(group: Any) -> bool:
    return isinstance(group, list | tuple | range | set | frozenset) or getattr(group, "ndim", 0) > 0


def _of_lists(groups: Sequence[Sequence[int]], size: int) -> tuple[Int, list[str]]:
    found = np.full(size, -1, dtype=np.int64)
    for number, group in enumerate(groups):
        for position in group:
            if not is_index(position, size):
                raise DataError(
                    f"balance: group {number} has position {position!r}, needs integers from 0 to {size - 1}; or name "
                    "each sample's group by a number or a text"
                )
            if found[position] >= 0:
                raise DataError(
                    f"balance: groups {found[position]} and {number} overlap, in position {position}; join them, or "
                    "take it out of one. A group that is a list is one of positions: name groups by numbers or texts"
                )
            found[position] = number
    alone = np.flatnonzero(found < 0)
    found[alone] = np.arange(len(groups), len(groups) + len(alone))
    kinds, numbers = np.unique(found, return_inverse=True)
    words = [f"group {kind}" for kind in range(len(groups))] + [f"sample {position}" for position in alone.tolist()]
    return numbers.astype(np.int64), [words[kind] for kind in kinds.tolist()]


def is_index(value: object, size: int) -> bool:
    """Return whether a value is a place in a list of this size."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= int(value) < size
