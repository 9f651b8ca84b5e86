"""Counts over windows: ``solve`` returns how many samples each rank takes, by one of three exact solvers.

"threshold" takes costs that do not fall, of any size, in microseconds to milliseconds; "enumeration" takes any costs,
up to 1e5 allocations; "ilp" takes any costs of any size, and is slow.

::

    problem.py     Allocation, and the checks of a problem
    methods.py     the three solvers, by threshold, enumeration and integer programming: the smallest maximum
    tie_break.py   the counts: of all with that maximum, those that every rank picks
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ddpsched.planning.solvers.allocation import methods, problem
from ddpsched.planning.solvers.allocation.problem import FORBIDDEN, Allocation, IntArray

__all__ = ["SOLVERS", "Allocation", "solve"]

LONGEST_S = 1e6  # of "ilp"

# Each takes (costs, batch_size, time_limit_s), checked, every rank with a cap of at least 1.
SOLVERS: dict[str, Callable[[IntArray, int, float], Allocation]] = {
    "threshold": methods.by_threshold,
    "enumeration": methods.by_enumeration,
    "ilp": methods.by_ilp,
}


def solve(
    costs: npt.ArrayLike,
    batch_size: int,
    *,
    caps: npt.ArrayLike | None = None,
    method: str = "auto",
    time_limit_s: float = 60.0,
) -> Allocation:
    """Return how many samples each rank takes so that the slowest rank is as fast as possible.

    With c_r(k) = `costs[r, k - 1]`, the cost of rank r's first k samples, these are the integers b_r that

        minimise  max_r c_r(b_r)   subject to   sum_r b_r = batch_size,   1 <= b_r <= caps[r];

    of those, the ones with the smallest variance of c_r(b_r) over the ranks; of those, the
    lexicographically largest. All comparisons are between exact integers, so every rank that solves
    the same table returns the same counts. (Only an "ilp" that reached its time limit depends on the
    machine; its status then is "feasible".)

    A rank with cap 0 takes no part: it gets count 0, costs nothing, and its zero does not enter the
    variance. Entries of `costs` beyond a rank's cap are ignored.

    Args:
        costs: integers `(world_size, K)` in 0 .. 2**63 - 2: tokens, tokens squared or whole nanoseconds.
            Normally not falling along a row.
        batch_size: samples per step over all ranks, B.
        caps: integers `(world_size,)` in 0 .. K, the most samples each rank can take; K for all if
            not given.
        method: "threshold" (costs that do not fall), "enumeration" (up to 1e5 allocations), "ilp", or
            "auto": the first of these that can take the problem.
        time_limit_s: seconds for "ilp", above 0 and at most 1e6; the others do not need it.

    Returns:
        Allocation: counts in rank order, with makespan, lower bound and how much of it is proved.

    Raises:
        InfeasibleError: `batch_size` is below the number of ranks with a cap of at least 1, or above
            the sum of caps; or too many rows for "enumeration".
        ValueError: costs or caps of a wrong shape, type or range (position and value are named), an
            unknown method, a time limit out of range, falling costs with "threshold".
        SolverTimeout: "ilp" has no allocation within its time limit.

    Example:
        Two ranks share five samples. Rank 0 holds long texts, so it takes fewer of them.

        >>> from ddpsched.planning.solvers.allocation import solve
        >>> allocation = solve([[30, 60, 90, 120], [12, 26, 48, 64]], batch_size=5)
        >>> allocation.counts.tolist(), allocation.makespan, allocation.status
        ([2, 3], 60, 'optimal')

    Reference:
        T. Ibaraki and N. Katoh, *Resource Allocation Problems*, MIT Press, 1988.
    """
    table = problem.checked_costs(costs)
    world_size, window = table.shape
    limits = None if caps is None else problem.checked_caps(caps, table.shape)
    if limits is None or int(limits.min()) == window:
        problem.check_range(table)
        size = problem.checked_batch_size(batch_size, world_size, world_size * window)
        return _dispatch(table, size, method, time_limit_s)

    # beyond: (world_size, K), bool; such entries may hold anything, so they are checked as zeros
    beyond = np.arange(1, window + 1) > limits[:, None]
    problem.check_range(np.where(beyond, 0, table))
    taking_part = np.flatnonzero(limits)
    size = problem.checked_batch_size(batch_size, len(taking_part), int(limits.sum()))
    allocation = _dispatch(np.where(beyond, FORBIDDEN, table)[taking_part], size, method, time_limit_s)
    counts = np.zeros(world_size, dtype=np.int64)
    counts[taking_part] = allocation.counts
    return replace(allocation, counts=counts)


def _dispatch(costs: IntArray, batch_size: int, method: str, time_limit_s: float) -> Allocation:
    if method == "auto":
        method = "threshold"
        if methods.first_fall(costs) is not None:
            few = methods.row_bound((costs < FORBIDDEN).sum(axis=1), batch_size) <= methods.ROW_LIMIT
            method = "enumeration" if few else "ilp"
    if not 0 < time_limit_s <= LONGEST_S:  # NaN as well
        raise ValueError(f"time_limit_s = {time_limit_s}: must be above 0 and at most {LONGEST_S:.0f} seconds")
    if method not in SOLVERS:
        raise ValueError(f"method must be 'auto' or one of {sorted(SOLVERS)}, got {method!r}")
    return SOLVERS[method](costs, batch_size, time_limit_s)
