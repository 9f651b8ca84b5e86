"""Minimise a sum of one function per rank under one sum constraint, exactly, in integers."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ddpsched.planning.solvers.allocation.problem import IntArray

# Steps of the dynamic program (ranks x slack x removals per rank) that are still worth their time.
STEP_LIMIT = 10_000_000

# int64, or Python integers (dtype object) where int64 could overflow.
Weights = npt.NDArray[Any]


class OverLimit(Exception):
    """The dynamic program would take more than `STEP_LIMIT` steps."""


def minimise_separable(weights: Weights, allowed: npt.NDArray[np.bool_], slack: int, start: IntArray) -> IntArray:
    """x that minimises sum_r weights[r, x_r] subject to sum_r x_r = slack; the lexicographically smallest such x.

    First fixes by reduced costs. For any price p, with floor_r = min_x (w_r(x) - p x),

        sum_r w_r(x_r)  >=  p slack + sum_r floor_r  =  bound,

    and choosing x_r costs w_r(x_r) - p x_r - floor_r on top of it. A choice that costs more than the gap
    between `start` and the bound is in no optimum. What remains, usually a few ranks with two choices
    each, is left to dynamic programming.

    Args:
        weights: integers `(n, depth + 1)`, magnitudes below 2**62.
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
    gap = reduced[rows, start].sum()
    repaired = _repair(reduced, near, slack)
    if repaired is not None:
        gap = min(gap, reduced[rows, repaired].sum())
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
    x = fewest.copy()
    x[active] += _dynamic_program(np.where(inside, weights[active[:, None], column], infinity), surplus, infinity)
    return x


def _best_price(weights: Weights, allowed: npt.NDArray[np.bool_], slack: int) -> tuple[int, IntArray]:
    """The price of the largest bound, rounded down, and an x of sum <= slack that attains the floors there.

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
    """x with the missing removals added, one each where that is cheapest, or None if one each is too few."""
    missing = slack - int(x.sum())
    can = np.flatnonzero(x + 1 < reduced.shape[1])
    if missing > len(can):
        return None
    rise = reduced[can, x[can] + 1] - reduced[can, x[can]]
    repaired = x.copy()
    repaired[can[rise.argsort(kind="stable")[:missing]]] += 1
    return repaired


def _dynamic_program(weights: Weights, slack: int, infinity: int) -> IntArray:
    """The same minimum by a table over the slack: O(n slack width) steps, smallest x first."""
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
