"""Prefetch windows over one global order.

Ranks own no shards. Rank r's window is refilled, after each step, with as many
ids as that step took from it, cut from the global order in rank order; so the
cursor moves by what was consumed, each id is handed out once whatever the counts
are, and the whole state is (cursor, windows): constant in the length of the
epoch. Where the order runs out the rest is dealt so that windows stay even.
Windows are read-only: a plan's position hands them out.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpsched.plan import Ids


@dataclass(frozen=True)
class Windows:
    """``ids[r]``: rank r's next samples, first in first out; ``cursor``: ids of the order handed out so far."""

    cursor: int
    ids: tuple[Ids, ...]

    @property
    def sizes(self) -> list[int]:
        return [len(ids) for ids in self.ids]


def fill(order: Ids, world_size: int, prefetch: int) -> Windows:
    """The windows at the start of an epoch: ``prefetch`` ids each, or an even share of fewer."""
    empty = Windows(0, tuple(order[:0] for _ in range(world_size)))
    return _refill(empty, order, [prefetch] * world_size)


def advance(windows: Windows, order: Ids, counts: Sequence[int]) -> Windows:
    """The windows after a step that took ``counts[r]`` from the front of each."""
    left = tuple(ids[count:] for ids, count in zip(windows.ids, counts, strict=True))
    return _refill(Windows(windows.cursor, left), order, counts)


def _refill(windows: Windows, order: Ids, wanted: Sequence[int]) -> Windows:
    remaining = len(order) - windows.cursor
    shares = list(wanted) if sum(wanted) <= remaining else _even(windows.sizes, wanted, remaining)
    ends = windows.cursor + np.cumsum(shares)
    parts = tuple(
        np.concatenate([ids, order[end - share : end]])
        for ids, end, share in zip(windows.ids, ends, shares, strict=True)
    )
    for ids in parts:
        ids.setflags(write=False)
    return Windows(int(ends[-1]), parts)


def _even(sizes: Sequence[int], wanted: Sequence[int], available: int) -> list[int]:
    """Deal ``available`` ids one by one to the smallest window that still wants one."""
    shares = [0] * len(sizes)
    heap = [(size, rank) for rank, size in enumerate(sizes) if wanted[rank]]
    heapq.heapify(heap)
    for _ in range(available):
        size, rank = heap[0]
        shares[rank] += 1
        if shares[rank] < wanted[rank]:
            heapq.heapreplace(heap, (size + 1, rank))
        else:
            heapq.heappop(heap)
    return shares
