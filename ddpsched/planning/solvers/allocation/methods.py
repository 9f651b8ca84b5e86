"""The three methods of ``solve``: a threshold on the cost, enumeration, and integer programming."""

from math import comb
from typing import Any

import numpy as np
import pulp

from ddpsched.errors import InfeasibleError, SolverTimeout
from ddpsched.planning.solvers.allocation.problem import FORBIDDEN, Allocation, IntArray
from ddpsched.planning.solvers.allocation.tie_break import break_ties, scaled_variance

ROW_LIMIT = 100_000  # of enumeration


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


def by_ilp(costs: IntArray, batch_size: int, time_limit_s: float) -> Allocation:
    """Return an allocation by mixed-integer programming (PuLP with HiGHS); `solve` documents the problem.

    One binary x[r, k] per rank and count:

        minimise z   subject to   sum_k x[r, k] = 1,   sum_{r,k} k x[r, k] = batch_size,
                                  z >= sum_k level[r, k] x[r, k]   for every rank r,

    where `level` replaces each cost by its place among the distinct costs. The makespan depends on
    the order of the costs alone, and small whole levels keep the solver's floating-point tolerances
    (1e-6) away from costs of 1e9 nanoseconds.

    Args:
        costs: int64 `(world_size, K)`, checked, `FORBIDDEN` beyond a rank's cap.
        batch_size: samples to allocate.
        time_limit_s: seconds the solver may take.

    Raises:
        SolverTimeout: no allocation within `time_limit_s`.
    """
    # Suffix minima do not fall and lie nowhere above the costs, so their threshold is a bound.
    relaxed = np.minimum.accumulate(costs[:, ::-1], axis=1)[:, ::-1]
    lower_bound = smallest_threshold(relaxed, batch_size)
    counts, proved = _solve_program(costs, batch_size, time_limit_s)
    makespan = int(costs[np.arange(len(costs)), counts - 1].max())
    if not (proved or makespan == lower_bound):
        return Allocation(counts, makespan, lower_bound, "feasible", "best found", "ilp")
    counts, tie_break = break_ties(costs, batch_size, makespan, None if first_fall(costs) is None else counts)
    return Allocation(counts, makespan, makespan, "optimal", tie_break, "ilp")


def _solve_program(costs: IntArray, batch_size: int, time_limit_s: float) -> tuple[IntArray, bool]:
    """Return counts `(world_size,)` that add up, and whether the solver proved their makespan."""
    caps = (costs < FORBIDDEN).sum(axis=1).tolist()
    # levels: (world_size, K), 0 for the smallest cost; FORBIDDEN, the largest, is never looked up
    levels = np.searchsorted(np.unique(costs), costs)
    program = pulp.LpProblem("allocation", pulp.LpMinimize)
    slowest = program.add_variable("slowest", lowBound=0)
    program += slowest
    takes = [
        [program.add_variable(f"takes_{rank}_{k + 1}", lowBound=0, upBound=1, cat="Integer") for k in range(cap)]
        for rank, cap in enumerate(caps)
    ]
    for row, level in zip(takes, levels, strict=True):
        program += pulp.lpSum(row) == 1
        program += pulp.lpSum(int(level[k]) * x for k, x in enumerate(row)) <= slowest
    program += pulp.lpSum((k + 1) * x for row in takes for k, x in enumerate(row)) == batch_size
    # Levels are whole, so a gap below one level is a proof; the default relative gap is not.
    solved = program.solve(pulp.HiGHS(msg=False, timeLimit=time_limit_s, gapRel=0.0, gapAbs=0.5))

    counts = np.array([1 + int(np.argmax([x.value() or 0.0 for x in row])) for row in takes], dtype=np.int64)
    # After a time-out the values may be those of no solution, so their sum is checked.
    if counts.sum() != batch_size:
        raise SolverTimeout(
            f"method 'ilp' found no allocation of {batch_size} samples to {len(caps)} ranks within {time_limit_s} s; "
            "raise time_limit_s, or use 'threshold' if costs do not fall"
        )
    return counts, _is_proved(program, solved)


def _is_proved(program: Any, solved: Any) -> bool:
    """Return whether the solver proved its solution: by the program in PuLP 3, by what ``solve`` returned since."""
    if isinstance(solved, int):  # PuLP 3, which calls a solution that a time-out left "Optimal" as well
        return bool(program.sol_status == pulp.LpSolutionOptimal)
    return solved.status.name in ("Optimal", "GapLimit")
