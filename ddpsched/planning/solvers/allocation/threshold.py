"""Allocation by a threshold on the cost: exact for costs that do not fall, any world size."""

import numpy as np

from ddpsched.planning.solvers.allocation.problem import Allocation, IntArray
from ddpsched.planning.solvers.allocation.tie_break import break_ties


def by_threshold(costs: IntArray, batch_size: int, time_limit_s: float) -> Allocation:
    """Return the allocation of the smallest feasible threshold; `solve` documents the problem.

    If no row falls, rank r can take every count up to the number of its entries that are at most T,
    so T is feasible when (i) each rank can pay its first sample and (ii) at least `batch_size`
    entries are at most T. Hence

        T* = max(max_r costs[r, 0], the batch_size-th smallest entry of costs).

    Args:
        costs: int64 `(world_size, K)`, checked, `FORBIDDEN` beyond a rank's cap.
        batch_size: samples to allocate.
        time_limit_s: not needed; this takes microseconds to milliseconds.

    Raises:
        ValueError: a row falls.

    Reference:
        T. Ibaraki and N. Katoh, *Resource Allocation Problems*, MIT Press, 1988, chapter 5 (minimax
        objectives).
    """
    fall = first_fall(costs)
    if fall is not None:
        rank, column = fall
        raise ValueError(
            f"method 'threshold' needs costs that do not fall with the count, but rank {rank} falls from "
            f"{costs[rank, column - 1]} at count {column} to {costs[rank, column]} at count {column + 1}; "
            "use 'enumeration', 'ilp' or 'auto'"
        )
    makespan = smallest_threshold(costs, batch_size)
    counts, tie_break = break_ties(costs, batch_size, makespan)
    return Allocation(counts, makespan, makespan, "optimal", tie_break, "threshold")


def smallest_threshold(costs: IntArray, batch_size: int) -> int:
    """Return T* of rows that do not fall."""
    last = batch_size - 1
    return max(int(costs[:, 0].max()), int(np.partition(costs, last, axis=None)[last]))


def first_fall(costs: IntArray) -> tuple[int, int] | None:
    """Return rank and column of the first entry below the one to its left, or None."""
    # falls: (world_size, K - 1), bool
    falls = costs[:, 1:] < costs[:, :-1]
    if not falls.any():
        return None
    rank, column = np.unravel_index(int(falls.argmax()), falls.shape)
    return int(rank), int(column) + 1
