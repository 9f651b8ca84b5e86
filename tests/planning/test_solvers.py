"""The solvers against brute force, against each other, and against bad input."""

import itertools

import numpy as np
import pytest
from allocations import IntArray, all_counts, brute_force, check, instance, instances
from hypothesis import given, settings

from ddpsched.planning.solvers.allocation import Allocation, solve, tie_break
from ddpsched.planning.solvers.allocation.problem import FORBIDDEN
from ddpsched.planning.solvers.allocation.tie_break import break_ties


@given(problem=instances())
@settings(max_examples=200, deadline=None)
def test_threshold_and_enumeration_equal_brute_force(problem: tuple[IntArray, int, IntArray]) -> None:
    costs, batch_size, caps = problem
    for method in ("threshold", "enumeration", "auto"):
        check(solve(costs, batch_size, caps=caps, method=method), costs, batch_size, caps)


@given(problem=instances(falling=True))
@settings(max_examples=200, deadline=None)
def test_falling_costs_equal_brute_force(problem: tuple[IntArray, int, IntArray]) -> None:
    costs, batch_size, caps = problem
    for method in ("enumeration", "auto"):
        check(solve(costs, batch_size, caps=caps, method=method), costs, batch_size, caps)


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_sweep_of_problems(count: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(count):
        costs, batch_size, caps = instance(rng)
        check(solve(costs, batch_size, caps=caps, method="threshold"), costs, batch_size, caps)
        check(solve(costs, batch_size, caps=caps, method="enumeration"), costs, batch_size, caps)


@pytest.mark.parametrize("falling", [False, True])
def test_sweep_of_ilp(falling: bool) -> None:
    rng = np.random.default_rng(1 + falling)
    for _ in range(250):
        costs, batch_size, caps = instance(rng, falling)
        check(solve(costs, batch_size, caps=caps, method="ilp"), costs, batch_size, caps)


@pytest.mark.parametrize("falling", [False, True])
def test_tie_break_by_dynamic_programming(monkeypatch: pytest.MonkeyPatch, falling: bool) -> None:
    """Small problems go through fixed points, hull and table if the short cut for few ways is off."""
    monkeypatch.setattr(tie_break, "FEW_WAYS", 0)
    rng = np.random.default_rng(3 + falling)
    for _ in range(3000):
        costs, batch_size, caps = instance(rng, falling)
        caps = np.maximum(caps, 1)
        batch_size = max(batch_size, len(caps))
        best, makespan = brute_force(costs, batch_size, caps)
        usable = np.where(np.arange(costs.shape[1]) < caps[:, None], costs, FORBIDDEN)
        result = None
        if falling:  # the worst allocation of this makespan, which the answer must not depend on
            rows = all_counts(tuple(caps.tolist()), batch_size)
            result = rows[costs[np.arange(len(caps)), rows - 1].max(axis=1) == makespan][-1]
        counts, proved = break_ties(usable, batch_size, makespan, result)
        assert (counts.tolist(), proved) == (best, "exact")


def test_tie_break_between_the_ends_of_the_hull(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both fixed points reached from outside have a larger variance than a vertex between them."""
    monkeypatch.setattr(tie_break, "FEW_WAYS", 0)
    costs, caps = np.array([[0, 3], [0, 10], [0, 8], [10, 10]]), np.array([2, 2, 2, 2])
    check(solve(costs, 6, method="threshold"), costs, 6, caps)


def test_checker_objects_to_a_worse_answer() -> None:
    """The check fails if a sample moves between two ranks, or if a claim is false."""
    rng = np.random.default_rng(5)
    moved = 0
    for _ in range(600):
        costs, batch_size, caps = instance(rng)
        good = solve(costs, batch_size, caps=caps)
        check(good, costs, batch_size, caps)
        for giver, taker in itertools.permutations(range(len(caps)), 2):
            counts = good.counts.copy()
            counts[giver] -= 1
            counts[taker] += 1
            if counts[giver] < 1 or counts[taker] > caps[taker]:
                continue
            moved += 1
            claimed = Allocation(counts, good.makespan, good.lower_bound, good.status, good.tie_break, good.method)
            with pytest.raises(AssertionError):
                check(claimed, costs, batch_size, caps)
        claimed = Allocation(good.counts, good.makespan + 1, good.makespan + 1, "optimal", "exact", good.method)
        with pytest.raises(AssertionError):
            check(claimed, costs, batch_size, caps)
    assert moved > 300


@pytest.mark.parametrize(("world_size", "batch_size", "window"), [(8, 40, 8), (16, 64, 8), (48, 200, 8)])
def test_methods_agree_on_larger_problems(world_size: int, batch_size: int, window: int) -> None:
    rng = np.random.default_rng(6)
    for scale in (1, 10**7):
        costs = scale * np.cumsum(rng.integers(1, 4, (world_size, window)), axis=1)
        one, other = (solve(costs, batch_size, method=method) for method in ("threshold", "ilp"))
        assert one.counts.tolist() == other.counts.tolist()
        assert one.makespan == other.makespan
        assert one.tie_break == other.tie_break == "exact"


def reference_by_sums(costs: IntArray, batch_size: int, makespan: int) -> list[int]:
    """Break ties another way: by a table over (samples, sum of costs) of the least sum of squares."""
    world_size, window = costs.shape
    never = 2**60
    most = int(np.minimum(costs.max(axis=1), makespan).sum())
    # tails[r]: (batch_size + 1, most + 1), least sum of squares of ranks r and after
    tails = [np.full((batch_size + 1, most + 1), never)]
    tails[0][0, 0] = 0
    for row in costs[::-1]:
        tail = np.full_like(tails[0], never)
        for k, c in enumerate(row.tolist(), start=1):
            if c <= makespan and k <= batch_size:
                shifted = tails[0][: batch_size + 1 - k, : most + 1 - c] + c * c
                tail[k:, c:] = np.minimum(tail[k:, c:], np.minimum(shifted, never))
        tails.insert(0, tail)
    sums = np.arange(most + 1)
    squares = tails[0][batch_size]
    variance = np.where(squares < never, world_size * squares - sums**2, never)
    answers = []
    for total in np.flatnonzero(variance == variance.min()).tolist():
        left, counts = (batch_size, total, int(squares[total])), []
        for rank in range(world_size):
            for k in range(min(window, left[0]), 0, -1):
                c = int(costs[rank, k - 1])
                rest = (left[0] - k, left[1] - c, left[2] - c * c)
                if c <= makespan and rest[1] >= 0 and tails[rank + 1][rest[0], rest[1]] == rest[2]:
                    left, counts = rest, [*counts, k]
                    break
        answers.append(counts)
    return max(answers)


def test_larger_problems_equal_a_table_over_sums() -> None:
    """Twelve ranks have many ties and, if a rank's first sample is long, much slack."""
    rng = np.random.default_rng(10)
    for i in range(120):
        world_size, window = int(rng.integers(5, 13)), int(rng.integers(3, 8))
        costs = np.cumsum(rng.integers(0, 4, (world_size, window)) * rng.integers(1, 3, (world_size, 1)), axis=1)
        if i % 3 == 0:
            costs[rng.integers(world_size)] += int(rng.integers(2, 12))
        batch_size = int(rng.integers(world_size, world_size * window + 1))
        allocation = solve(costs, batch_size, method="threshold")
        assert allocation.counts.tolist() == reference_by_sums(costs, batch_size, allocation.makespan)
        assert allocation.tie_break == "exact"


def test_permuted_ranks_keep_makespan_and_variance() -> None:
    rng = np.random.default_rng(7)
    for _ in range(30):
        costs = np.cumsum(rng.integers(1, 6, (40, 12)), axis=1)
        order = rng.permutation(40)
        chosen = [
            sorted(table[np.arange(40), solve(table, 200).counts - 1].tolist()) for table in (costs, costs[order])
        ]
        assert max(chosen[0]) == max(chosen[1])
        assert np.var(chosen[0]) == pytest.approx(np.var(chosen[1]), rel=1e-12)


def test_a_long_first_sample_leaves_much_slack() -> None:
    """One rank's first sample sets T*, which leaves the others more slack than the batch has samples."""
    costs = np.cumsum(np.tile([3, 5, 4], (6, 4)), axis=1)
    costs[2] += 100
    for batch_size in (12, 20, 27):
        answers = [solve(costs, batch_size, method=method) for method in ("threshold", "enumeration")]
        assert answers[0].counts.tolist() == answers[1].counts.tolist()
        assert answers[0].makespan == 103
