"""Samples of which some are split over ranks: which ranks run which parts and which whole samples, in which order.

A sample is split over as few ranks as its tokens and an even share of the cost ask for, its *degree*:

    d(i)  =  max( ceil(tokens_i / max_tokens),  ceil(cost_i / share) ),        share = ceil(sum of all costs / G)

Split samples come first, the largest degree first, each on the ``d`` neighbouring ranks whose latest is done first. Its
parts begin together, so a rank that is done earlier waits; that gap is kept. Then the whole samples, the costliest
first: each into the smallest gap that holds it, or else to the rank that is done first, as longest processing time
first does. Neighbours make few different groups of ranks, as each needs a process group of its own.

No rank waits for ever. All ranks run the split samples in the order in which they were placed. Of those not yet begun,
take the first in that order: each of its ranks has nothing before it but whole samples, which wait for nobody, and
split samples placed earlier, which are done. So it begins, and by induction so do all.

A lower bound of the makespan is the even share with the fixed cost of one micro-batch: every rank has at least one.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

import numpy as np

from ddpsched.costs.cost_model import Int


@dataclass
class Row:
    """Whole samples of one rank that run together: their positions, tokens and cost, without the fixed cost."""

    members: list[int] = field(default_factory=list)
    tokens: int = 0


@dataclass(frozen=True)
class Share:
    """Part ``index`` of the sample at ``position``, of ``degree`` parts."""

    position: int
    index: int
    degree: int


Item = Row | Share
"""A micro-batch of a rank."""
Rows = list[Row]  # that follow each other
Gap = tuple[int, int, int]  # what is left of it, its rank, and the place of its rows among what the rank runs


def degrees(tokens: Int, weights: Int, world_size: int, max_tokens: int | None) -> Int:
    """Return over how many ranks each sample is split, (n,); 1 where it is not, at most ``world_size``.

    ``weights``: (n,), costs without the fixed cost of a micro-batch.

    >>> degrees(np.array([9, 2, 1]), np.array([9, 2, 1]), 3, None).tolist()
    [3, 1, 1]
    """
    share = max(1, -(-int(weights.sum()) // world_size))
    by_cost = -(-weights // share)
    found = by_cost if max_tokens is None else np.maximum(by_cost, -(-tokens // max_tokens))
    return np.clip(found, 1, world_size)


def place(
    tokens: Int, weights: Int, degree: Int, world_size: int, max_tokens: int | None, fixed: int = 0
) -> list[list[Item]]:
    """Return the micro-batches of each rank, in order; ``degree``: of each sample, as of :func:`degrees`.

    ``fixed``: the cost of a micro-batch beside that of its samples.

    >>> ranks = place(np.array([6, 2, 1]), np.array([6, 2, 1]), np.array([2, 1, 1]), 2, None)
    >>> [[getattr(item, "members", item) for item in rank] for rank in ranks]
    [[Share(position=0, index=0, degree=2), [1]], [Share(position=0, index=1, degree=2), [2]]]
    """
    order = np.argsort(-weights, kind="stable")
    split = order[degree[order] > 1]
    split = split[np.argsort(-degree[split], kind="stable")]
    loads = np.zeros(world_size, dtype=np.int64)
    ranks: list[list[Share | Rows]] = [[] for _ in range(world_size)]
    gaps: list[Gap] = []
    for position in split.tolist():
        count = int(degree[position])
        first = _window(loads, count)
        start = int(loads[first : first + count].max())
        for index, rank in enumerate(range(first, first + count)):
            if start > loads[rank]:
                gaps.append((start - int(loads[rank]), rank, len(ranks[rank])))
                ranks[rank].append([])
            ranks[rank].append(Share(position, index, count))
            loads[rank] = start + fixed - (-int(weights[position]) // count)
    ends = [(int(load), rank) for rank, load in enumerate(loads)]
    for items in ranks:
        items.append([])
    room = max_tokens or int(tokens.sum())
    _fill(tokens, weights, order[degree[order] == 1], ranks, ends, sorted(gaps), room, fixed)
    return [[item for each in rank for item in (each if isinstance(each, list) else [each])] for rank in ranks]


def _window(loads: Int, count: int) -> int:
    """Return the first of ``count`` neighbouring ranks whose latest is done first; of equals, those with most to do."""
    windows = np.lib.stride_tricks.sliding_window_view(loads, count)
    return int(np.lexsort((-windows.sum(1), windows.max(1)))[0])


def _fill(
    tokens: Int, weights: Int, whole: Int, ranks: Sequence[Sequence[Share | Rows]], ends: list[tuple[int, int]],
    gaps: list[Gap], room: int, fixed: int,
) -> None:  # fmt: skip
    """Put the samples at ``whole``, the costliest first, into rows in gaps and at ranks' ends, in place.

    ``ends``: when each rank is done. ``room``: the most tokens of a row.
    """
    heapify(ends)
    for position, length, weight in zip(whole.tolist(), tokens[whole].tolist(), weights[whole].tolist(), strict=True):
        found = bisect_left(gaps, (weight, -1, -1))
        while found < len(gaps):
            left, rank, at = gaps[found]
            rows = _rows(ranks, rank, at)
            price = weight + fixed * _needs_row(rows, length, room)
            if price <= left:
                break
            found += 1
        if found < len(gaps):
            del gaps[found]
            insort(gaps, (left - price, rank, at))
        else:
            load, rank = ends[0]
            rows = _rows(ranks, rank, -1)
            heapreplace(ends, (load + weight + fixed * _needs_row(rows, length, room), rank))
        if _needs_row(rows, length, room):
            rows.append(Row())
        rows[-1].members.append(position)
        rows[-1].tokens += length


def _rows(ranks: Sequence[Sequence[Share | Rows]], rank: int, at: int) -> Rows:
    rows = ranks[rank][at]
    assert isinstance(rows, list), "gaps and ends are of rows"
    return rows


def _needs_row(rows: Rows, length: int, room: int) -> bool:
    """Return whether a sample of ``length`` tokens needs a new row."""
    return not rows or rows[-1].tokens + length > room
