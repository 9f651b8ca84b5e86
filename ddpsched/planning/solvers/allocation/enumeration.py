"""Allocation by enumeration: every feasible one is listed and compared, falling costs too; for small problems."""

from math import comb

import numpy as np

from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.allocation.problem import FORBIDDEN, Allocation, IntArray
from ddpsched.planning.solvers.allocation.tie_break import scaled_variance

ROW_LIMIT = 100_000


def by_enumeration(costs: IntArray, batch_size: int, time_limit_s: float) -> Allocation:
    """Return the best of all allocations; `solve` documents the problem.

    Args:
        costs: int64 `(world_size, K)`, checked, `FORBIDDEN` beyond a rank's cap.
        batch_size: samples to allocate.
        time_limit_s: not needed; `ROW_LIMIT` bounds the work.

    Raises:
        InfeasibleError: more than `ROW_LIMIT` allocations may have to be listed.
    """
    caps = (costs < FORBIDDEN).sum(axis=1)
    rows = row_bound(caps, batch_size)
    if rows > ROW_LIMIT:
        size = f"{rows:,}" if rows < 10**15 else f"about 10**{int(rows.bit_length() * 0.30103)}"
        raise InfeasibleError(
            f"method 'enumeration' would list up to {size} rows, its limit is {ROW_LIMIT:,}; use 'threshold' or 'ilp'"
        )
    # counts, chosen: (rows, world_size), lexicographically largest row first
    counts = all_allocations(caps, batch_size)
    chosen = costs[np.arange(len(caps)), counts - 1]
    largest = chosen.max(axis=1)
    makespan = int(largest.min())
    candidates = np.flatnonzero(largest == makespan)
    # argmin takes the first of equal variances, and that is the lexicographically largest.
    best = candidates[int(scaled_variance(chosen[candidates] - makespan).argmin())]
    return Allocation(counts[best], makespan, makespan, "optimal", "exact", "enumeration")


def row_bound(caps: IntArray, batch_size: int) -> int:
    """Return an upper bound of the number of allocations: the fewer of the ways to give samples and to withhold them.

    Giving `batch_size` samples, one or more to each rank, has C(batch_size - 1, G - 1) ways if caps
    are ignored; withholding the surplus from full caps has C(surplus + G - 1, G - 1) if that one is.
    """
    others = len(caps) - 1
    surplus = int(caps.sum()) - batch_size
    return min(comb(batch_size - 1, others), comb(surplus + others, others))


def all_allocations(caps: IntArray, batch_size: int) -> IntArray:
    """Return all integer rows with `1 <= row[r] <= caps[r]` and sum `batch_size`, lexicographically largest first.

    Args:
        caps: int64 `(world_size,)`.
        batch_size: between `world_size` and the sum of `caps`.

    Returns:
        int64 `(rows, world_size)`.
    """
    world_size = len(caps)
    # caps_after[r]: the most that ranks behind r can take together
    caps_after = caps[::-1].cumsum()[::-1] - caps
    remaining = np.array([batch_size], dtype=np.int64)
    columns: list[IntArray] = []
    for rank in range(world_size):
        # high, low, choices: (rows so far,)
        high = np.minimum(caps[rank], remaining - (world_size - 1 - rank))
        low = np.maximum(1, remaining - caps_after[rank])
        choices = high - low + 1
        parent = np.repeat(np.arange(len(choices)), choices)
        first = choices.cumsum() - choices
        value = high[parent] - (np.arange(len(parent)) - first[parent])
        columns = [column[parent] for column in columns] + [value]
        remaining = remaining[parent] - value
    return np.stack(columns, axis=1)
