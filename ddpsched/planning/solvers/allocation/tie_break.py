"""The tie-break: of all allocations with the smallest maximum T*, the one that every rank picks.

That is the one of the smallest variance of the chosen costs; of these, of the lexicographically largest counts.

**Over the slack.** Let top_r be the largest count of rank r with c_r <= T*. Every candidate is top
minus some *removals* x_r >= 0 with sum_r x_r = slack = sum_r top_r - B. The slack is small where the
batch is not (it counts ties at T*), so the work is counted in slack, not in B.

**Variance made separable.** With n ranks and S = sum c, any integer s obeys

    n^3 Var(c)  =  sum (n c - S)^2  <=  sum (n c - s)^2,   equal if and only if s = S,

so an optimum minimises sum_r (n c_r - s)^2 at s = its S: a *fixed point* of s -> S(s), which does
not fall in s. Iterating from below and from above brackets all optima; where the two ends differ,
the optima lie on the lower convex hull of (sum c, sum c^2) between them, whose vertices are found by
minimising a sum c^2 - b sum c along chords. All of these are one separable problem,

    minimise sum_r w_r(x_r)  subject to  sum_r x_r = slack,   w = a c^2 - b c,

solved exactly by `minimise_separable` with the smallest removals first, which is the lexicographic rule.
"""

from functools import cache
from heapq import heapify, heapreplace
from itertools import combinations_with_replacement
from math import comb
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ddpsched.planning.solvers.allocation.problem import IntArray

# Steps of the dynamic program (ranks x slack x removals per rank) that are still worth their time.
STEP_LIMIT = 10_000_000
# Up to this many ways to remove the slack, looking at all of them is faster than anything clever.
FEW_WAYS = 40

Point = tuple[int, int]
# int64, or Python integers (dtype object) where int64 could overflow.
Weights = npt.NDArray[Any]


class OverLimit(Exception):
    """The dynamic program would take more than `STEP_LIMIT` steps."""


def break_ties(
    costs: IntArray, batch_size: int, makespan: int, reached: IntArray | None = None
) -> tuple[IntArray, Literal["exact", "best found"]]:
    """Return the counts of the smallest variance, then lexicographically largest, among those of `makespan`.

    Args:
        costs: int64 `(world_size, K)`; entries above `makespan` are never chosen.
        batch_size: the sum of the counts.
        makespan: the smallest possible largest cost, proved.
        reached: needed only if costs fall: counts that reach `makespan`.

    Returns:
        Counts, int64 `(world_size,)`, and "exact"; or, if the dynamic program would take more than
        `STEP_LIMIT` steps, "best found": samples removed one by one from the rank that is heaviest
        at the time (`reached` as it is if costs fall).
    """
    within = costs <= makespan
    # top: (world_size,), the largest count each rank can take
    top = within.sum(axis=1) if reached is None else costs.shape[1] - within[:, ::-1].argmax(axis=1)
    slack = int(top.sum()) - batch_size
    if slack == 0:
        return top, "exact"
    if comb(slack + len(top) - 1, slack) <= FEW_WAYS:
        return _best_of_all(costs, top, slack, makespan), "exact"
    start = _heaviest_first(costs, top, slack) if reached is None else reached
    try:
        return top - _smallest_variance(costs, top, top - start, makespan), "exact"
    except OverLimit:
        return start, "best found"


def scaled_variance(chosen: IntArray) -> npt.NDArray[Any]:
    """Return n^2 times the population variance of each row, n sum c^2 - (sum c)^2, exact.

    Args:
        chosen: int64 `(rows, n)`; shift it towards 0 to stay in int64, else Python integers take over.
    """
    n = chosen.shape[1]
    if n * n * int(np.abs(chosen).max()) ** 2 >= 2**62:
        chosen = chosen.astype(object)
    spread: npt.NDArray[Any] = n * (chosen * chosen).sum(axis=1) - chosen.sum(axis=1) ** 2
    return spread


def _best_of_all(costs: IntArray, top: IntArray, slack: int, makespan: int) -> IntArray:
    """Return the best counts of all ways to remove `slack` samples."""
    rows, highest = costs.tolist(), top.tolist()
    ways: list[tuple[int, list[int]]] = []
    for picks in combinations_with_replacement(range(len(rows)), slack):
        counts = highest.copy()
        for rank in picks:
            counts[rank] -= 1
        if min(counts) < 1:
            continue
        chosen = [row[count - 1] for row, count in zip(rows, counts, strict=True)]
        if max(chosen) <= makespan:
            ways.append((sum(chosen) ** 2 - len(rows) * sum(c * c for c in chosen), counts))
    assert ways, "makespan is not reachable"
    # The largest of (-variance, counts) has the smallest variance, then the largest counts.
    return np.array(max(ways)[1], dtype=np.int64)


def _heaviest_first(costs: IntArray, top: IntArray, slack: int) -> IntArray:
    """Remove samples, one by one, from the rank that pays most (the last of equals); needs costs that do not fall."""
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
    """Return the removals `(world_size,)` of the smallest variance, the lexicographically smallest of these.

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
        """Return the point (sum c, sum c^2) and the removals that minimise a sum c^2 - b sum c."""
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
        """Return the vertices of the lower hull strictly between two of its points."""
        a, b = right[0] - left[0], right[1] - left[1]
        middle = minimise(a, b)[0]
        if a * (middle[1] - left[1]) == b * (middle[0] - left[0]):
            return []
        return [*hull(left, middle), middle, *hull(middle, right)]

    above = fixed_point(int(chosen.max(axis=1, where=allowed, initial=-largest).sum()))
    below = fixed_point(_least_sum(chosen, slack))
    vertices = [below] if below == above else [below, above, *hull(below, above)]
    smallest = min(n * squares - total**2 for total, squares in vertices)
    # At its own sum, a best point's minimisers all share that sum and so its variance.
    optima = [minimise(n, 2 * total)[1] for total, squares in vertices if n * squares - total**2 == smallest]
    return min(optima, key=lambda removals: removals.tolist())


def _least_sum(chosen: IntArray, slack: int) -> int:
    """Return a lower bound of sum c: every single removal loses at most the steepest loss per removal."""
    loss = chosen[:, :1] - chosen[:, 1:]
    steepest = int((-(-loss // np.arange(1, loss.shape[1] + 1))).max())
    return int(chosen[:, 0].sum()) - slack * max(steepest, 0)


def minimise_separable(weights: Weights, allowed: npt.NDArray[np.bool_], slack: int, start: IntArray) -> IntArray:
    """Return the x that minimises sum_r weights[r, x_r] subject to sum_r x_r = slack, the lexicographically smallest.

    First fixes by reduced costs. For any price p, with floor_r = min_x (w_r(x) - p x),

        sum_r w_r(x_r)  >=  p slack + sum_r floor_r  =  bound,

    and choosing x_r costs w_r(x_r) - p x_r - floor_r on top of it. A choice that costs more than the gap
    between `start` and the bound is in no optimum. What remains, usually a few ranks with two choices
    each, is left to dynamic programming.

    Args:
        weights: integers `(n, depth + 1)`, magnitudes below 2**62, one function a row.
        allowed: bool `(n, depth + 1)`; x = 0 is always allowed.
        slack: the sum of x.
        start: int64 `(n,)`, any x that is allowed; the better it is, the more is fixed.

    Returns:
        int64 `(n,)`.

    Raises:
        OverLimit: too much remains.

    Reference:
        T. Ibaraki and N. Katoh, *Resource Allocation Problems*, MIT Press, 1988, chapters 3 and 9.
    """
    n, choices = weights.shape
    # Relative to x = 0, so that totals stay small.
    weights = np.where(allowed, weights - weights[:, :1], 0)
    size = np.abs(weights).max(axis=1).tolist()
    # Above every total, reduced cost and gap below: prices are slopes of rows, so at most max(size).
    infinity = 4 * (sum(size) + max(size) * (slack + choices) + 1)
    if infinity >= 2**62:
        weights = weights.astype(object)
    weights[~allowed] = infinity

    # reduced: (n, depth + 1)
    price, near = _best_price(weights, allowed, slack)
    reduced = weights - price * np.arange(choices).astype(weights.dtype)
    reduced -= reduced.min(axis=1)[:, None]
    # Bound and floors cancel: the gap is what a feasible x pays above the floors.
    rows = np.arange(n)
    gap = min(reduced[rows, x].sum() for x in (start, _repair(reduced, near, slack)) if x is not None)
    keep = reduced <= gap

    # fewest, width: the kept choices of rank r lie in fewest[r] .. fewest[r] + width - 1
    fewest = keep.argmax(axis=1)
    spread = choices - 1 - keep[:, ::-1].argmax(axis=1) - fewest
    active = np.flatnonzero(spread)
    surplus = slack - int(fewest.sum())
    width = min(int(spread.max()), surplus) + 1
    if len(active) * (surplus + 1) * width > STEP_LIMIT:
        raise OverLimit
    column = np.minimum(fewest[active, None] + np.arange(width), choices - 1)
    inside = keep[active[:, None], column] & (fewest[active, None] + np.arange(width) < choices)
    x: IntArray = fewest.copy()
    x[active] += _dynamic_program(np.where(inside, weights[active[:, None], column], infinity), surplus, infinity)
    return x


def _best_price(weights: Weights, allowed: npt.NDArray[np.bool_], slack: int) -> tuple[int, IntArray]:
    """Return the price of the largest bound, rounded down, and an x of sum <= slack that attains the floors there.

    The points (sum x, sum w) of the floors trace the lower hull of all x: chords close in on `slack`.
    """
    rows, steps = np.arange(len(weights)), np.arange(weights.shape[1]).astype(weights.dtype)

    def totals(x: IntArray) -> tuple[int, int]:
        return int(x.sum()), int(weights[rows, x].sum())

    left, right = np.zeros(len(weights), dtype=np.int64), len(steps) - 1 - allowed[:, ::-1].argmax(axis=1)
    low, high = totals(left), totals(right)
    price = 0
    while low[0] < high[0]:
        price = (high[1] - low[1]) // (high[0] - low[0])
        x = (weights - price * steps).argmin(axis=1)
        total, weight = totals(x)
        if weight - price * total >= low[1] - price * low[0]:
            break
        if total <= slack:
            left, low = x, (total, weight)
        else:
            high = total, weight
    return price, left


def _repair(reduced: Weights, x: IntArray, slack: int) -> IntArray | None:
    """Return x with the missing removals added, one each where that is cheapest, or None if one each is too few."""
    missing = slack - int(x.sum())
    can = np.flatnonzero(x + 1 < reduced.shape[1])
    if missing > len(can):
        return None
    rise = reduced[can, x[can] + 1] - reduced[can, x[can]]
    repaired = x.copy()
    repaired[can[rise.argsort(kind="stable")[:missing]]] += 1
    return repaired


def _dynamic_program(weights: Weights, slack: int, infinity: int) -> IntArray:
    """Return the same minimum by a table over the slack: O(n slack width) steps, smallest x first."""
    n, width = weights.shape
    # padded: (width - 1 + slack + 1,); behind[s] is the least weight of the ranks behind for s removals
    padded = np.full(width + slack, infinity, dtype=weights.dtype)
    behind = padded[width - 1 :]
    behind[0] = 0
    # shifted: (slack + 1, width), a view: shifted[s, x] = behind[s - x]
    shifted = sliding_window_view(padded, width)[:, ::-1]
    best = np.zeros((n, slack + 1), dtype=np.int64)
    for rank in range(n - 1, -1, -1):
        totals = shifted + weights[rank]
        best[rank] = totals.argmin(axis=1)
        behind[:] = np.minimum(totals.min(axis=1), infinity)
    x = np.zeros(n, dtype=np.int64)
    for rank in range(n):
        x[rank] = best[rank, slack]
        slack -= int(x[rank])
    return x
