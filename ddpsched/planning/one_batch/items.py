"""Items of a batch: samples, or groups of them, that stay together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.data.lengths import as_array
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
        return np.bincount(self.group, weights=each, minlength=len(self)).astype(np.int64)


def lengths_of(lengths: Any) -> Int:
    """Return lengths, of a list, array or tensor, as int64 (B,). Raises DataError where they are none."""
    if hasattr(lengths, "detach"):  # of torch, on any device
        lengths = lengths.detach().cpu().numpy()
    given = as_array(lengths)
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
    return given.astype(np.int64, copy=False)


def groups_of(groups: Any, size: int) -> Int | None:
    """Return the group of each sample, (B,), numbered from 0; None without groups.

    ``groups``: (B,) names, equal ones of one group; or a list of lists of positions, samples of none being alone.
    Raises DataError where they overlap, or are not of these samples.
    """
    if groups is None:
        return None
    if hasattr(groups, "detach"):
        groups = groups.detach().cpu().numpy()
    if len(groups) and all(isinstance(each, list | tuple | range | np.ndarray) for each in groups):
        return _of_lists(groups, size)
    names = np.asarray(groups)
    if names.shape != (size,):
        raise DataError(
            f"balance: groups of shape {names.shape}, but there are {size} lengths; give a name for each sample, or "
            "lists of positions"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _of_lists(groups: Sequence[Sequence[int]], size: int) -> Int:
    found = np.full(size, -1, dtype=np.int64)
    for number, group in enumerate(groups):
        for position in group:
            if not 0 <= position < size:
                raise DataError(f"balance: group {number} has position {position}, needs 0 to {size - 1}")
            if found[position] >= 0:
                raise DataError(
                    f"balance: groups {found[position]} and {number} overlap, in position {position}; join them, or "
                    "take it out of one"
                )
            found[position] = number
    alone = np.flatnonzero(found < 0)
    found[alone] = np.arange(len(groups), len(groups) + len(alone))
    return np.unique(found, return_inverse=True)[1].astype(np.int64)
