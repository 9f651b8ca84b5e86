"""Allocation by integer programming: the fallback, for costs that fall in large problems."""

import numpy as np
import pulp

from ddpsched.errors import SolverTimeout
from ddpsched.planning.solvers.allocation.problem import FORBIDDEN, Allocation, IntArray
from ddpsched.planning.solvers.allocation.threshold import first_fall, smallest_threshold
from ddpsched.planning.solvers.allocation.tie_break import break_ties


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
    program.solve(pulp.HiGHS(msg=False, timeLimit=time_limit_s, gapRel=0.0, gapAbs=0.5))

    counts = np.array([1 + int(np.argmax([x.value() or 0.0 for x in row])) for row in takes], dtype=np.int64)
    # After a time-out the values may be those of no solution at all: only the sum tells.
    if counts.sum() != batch_size:
        raise SolverTimeout(
            f"method 'ilp' found no allocation of {batch_size} samples to {len(caps)} ranks within {time_limit_s} s; "
            "raise time_limit_s, or use 'threshold' if costs do not fall"
        )
    return counts, program.sol_status == pulp.LpSolutionOptimal
