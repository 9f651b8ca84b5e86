"""The tie-break: the one that every rank picks of all allocations with the smallest maximum T*.

Smallest variance of the chosen costs first, then the lexicographically largest counts, both exact.

**Over the slack.** Let top_r be the largest count of rank r with c_r <= T*. Every candidate is top
minus some *removals* x_r >= 0 with sum_r x_r = slack = sum_r top_r - B. The slack is small where the
batch is not (it counts ties at T*), so the work is counted in slack, not in B.

**Variance made separable.** With n ranks and S = sum c, any integer s obeys

    n^3 Var(c)  =  sum (n c - S)^2  <=  sum (n c - s)^2,   equal if and only if s = S,

so an optimum minimises sum_r (n c_r - s)^2 at s = its own S: a *fixed point* of s -> S(s), which does
not fall in s. Iterating from below and from above brackets all optima; where the two ends differ,
the optima lie on the lower convex hull of (sum c, sum c^2) between them, whose vertices are found by
minimising a sum c^2 - b sum c along chords. All of these are one separable problem,

    minimise sum_r w_r(x_r)  subject to  sum_r x_r = slack,   w = a c^2 - b c,

solved in `separable.py` with the smallest removals first, which is the lexicographic rule.
"""

from functools import cache
from heapq import heapify, heapreplace
from itertools import combinations_with_replacement
from math import comb
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.allocation.separable import OverLimit, minimise_separable

# Up to this many ways to remove the slack, looking at all of them is faster than anything clever.
FEW_WAYS = 40

Point = tuple[int, int]


def break_ties(
    costs: IntArray, batch_size: int, makespan: int, found: IntArray | None = None
) -> tuple[IntArray, Literal["exact", "best found"]]:
    """Counts of the smallest variance, then lexicographically largest, among those of `makespan`.

    Args:
        costs: int64 `(world_size, K)`; entries above `makespan` are never chosen.
        batch_size: the sum of the counts.
        makespan: the smallest possible largest cost, proved.
        found: needed only if costs fall: counts that reach `makespan`.

    Returns:
        Counts, int64 `(world_size,)`, and "exact"; or, if the dynamic program would take more than
        `STEP_LIMIT` steps, "best found": samples removed one by one from the rank that is heaviest
        at the time (`found` as it is if costs fall).
    """
    within = costs <= makespan
    # top: (world_size,), the largest count each rank can take
    top = within.sum(axis=1) if found is None else costs.shape[1] - within[:, ::-1].argmax(axis=1)
    slack = int(top.sum()) - batch_size
    if slack == 0:
        return top, "exact"
    if comb(slack + len(top) - 1, slack) <= FEW_WAYS:
        return _best_of_all(costs, top, slack, makespan), "exact"
    start = _heaviest_first(costs, top, slack) if found is None else found
    try:
        return top - _smallest_variance(costs, top, top - start, makespan), "exact"
    except OverLimit:
        return start, "best found"


def scaled_variance(chosen: IntArray) -> npt.NDArray[Any]:
    """n^2 times the population variance of each row, n sum c^2 - (sum c)^2, exact.

    Args:
        chosen: int64 `(rows, n)`; shift it towards 0 to stay in int64, else Python integers take over.
    """
    n = chosen.shape[1]
    if n * n * int(np.abs(chosen).max()) ** 2 >= 2**62:
        chosen = chosen.astype(object)
    return n * (chosen * chosen).sum(axis=1) - chosen.sum(axis=1) ** 2


def _best_of_all(costs: IntArray, top: IntArray, slack: int, makespan: int) -> IntArray:
    """Looks at every way to remove `slack` samples."""
    rows, highest = costs.tolist(), top.tolist()
    best: tuple[int, list[int]] | None = None
    for picks in combinations_with_replacement(range(len(rows)), slack):
        counts = highest.copy()
        for rank in picks:
            counts[rank] -= 1
        if min(counts) < 1:
            continue
        chosen = [row[count - 1] for row, count in zip(rows, counts, strict=True)]
        if max(chosen) > makespan:
            continue
        variance = len(rows) * sum(c * c for c in chosen) - sum(chosen) ** 2
        # The largest of (-variance, counts) has the smallest variance, then the largest counts.
        if best is None or (-variance, counts) > best:
            best = (-variance, counts)
    assert best is not None, "makespan is not reachable"
    return np.array(best[1], dtype=np.int64)


def _heaviest_first(costs: IntArray, top: IntArray, slack: int) -> IntArray:
    """Takes samples, one by one, from the rank that pays most (the last of equals); needs costs that do not fall."""
    counts = top.copy()
    heap = [(-int(costs[rank, count - 1]), -rank) for rank, count in enumerate(top) if count > 1]
    heapify(heap)
    for _ in range(slack):
        rank = -heap[0][1]
        counts[rank] -= 1
        # A rank at its last sample stays in the heap, behind all others.
        cost = int(costs[rank, counts[rank] - 1]) if counts[rank] > 1 else -1
        heapreplace(heap, (-cost, -rank))
    return counts


def _smallest_variance(costs: IntArray, top: IntArray, start: IntArray, makespan: int) -> IntArray:
    """Removals `(world_size,)` of the smallest variance, the lexicographically smallest of these.

    `start` holds any removals that reach `makespan`; raises `OverLimit`.
    """
    n, slack = len(top), int(start.sum())
    depth = min(slack, int(top.max()) - 1)
    # column, allowed, chosen: (n, depth + 1), by removals; costs relative to T* keep squares small
    column = top[:, None] - 1 - np.arange(depth + 1)
    chosen = np.take_along_axis(costs, np.maximum(column, 0), axis=1) - makespan
    allowed = (column >= 0) & (chosen <= 0)
    chosen[~allowed] = 0
    largest = -int(chosen.min())
    if n * largest >= 2**62:
        chosen = chosen.astype(object)

    @cache
    def minimise(a: int, b: int) -> tuple[Point, IntArray]:
        """The point (sum c, sum c^2) and the removals that minimise a sum c^2 - b sum c."""
        nonlocal start
        table = chosen if a * largest**2 + abs(b) * largest < 2**62 else chosen.astype(object)
        start = minimise_separable(a * table * table - b * table, allowed, slack, start)
        picked = chosen[np.arange(n), start].tolist()
        return (sum(picked), sum(c * c for c in picked)), start

    def fixed_point(total: int) -> Point:
        while (point := minimise(n, 2 * total)[0])[0] != total:
            total = point[0]
        return point

    def hull(left: Point, right: Point) -> list[Point]:
        """The vertices of the lower hull strictly between two of its points."""
        a, b = right[0] - left[0], right[1] - left[1]
        middle = minimise(a, b)[0]
        if a * (middle[1] - left[1]) == b * (middle[0] - left[0]):
            return []
        return [*hull(left, middle), middle, *hull(middle, right)]

    above = fixed_point(int(chosen.max(axis=1, where=allowed, initial=-largest).sum()))
    below = fixed_point(_least_sum(chosen, slack))
    ends = [below, above] if below != above else [below]
    vertices = ends if len(ends) == 1 else [*ends, *hull(below, above)]
    smallest = min(n * squares - total**2 for total, squares in vertices)
    # At its own sum, a best point's minimisers all share that sum and so its variance.
    optima = [minimise(n, 2 * total)[1] for total, squares in vertices if n * squares - total**2 == smallest]
    return min(optima, key=lambda removals: removals.tolist())


def _least_sum(chosen: IntArray, slack: int) -> int:
    """At most sum c of any removals: every single removal loses at most the steepest loss per removal."""
    loss = chosen[:, :1] - chosen[:, 1:]
    steepest = int((-(-loss // np.arange(1, loss.shape[1] + 1))).max())
    return int(chosen[:, 0].sum()) - slack * max(steepest, 0)
