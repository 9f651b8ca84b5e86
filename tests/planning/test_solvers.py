"""The solvers against brute force, against each other, and against bad input."""

import itertools
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.allocation import SOLVERS, Allocation, ilp, solve, tie_break
from ddpsched.planning.solvers.allocation.problem import FORBIDDEN
from ddpsched.planning.solvers.allocation.separable import OverLimit, minimise_separable
from ddpsched.planning.solvers.allocation.tie_break import break_ties

IntArray = npt.NDArray[np.int64]


@cache
def all_counts(caps: tuple[int, ...], batch_size: int) -> IntArray:
    """Every feasible row of counts, lexicographically largest first, listed without the package's help."""
    ranges = [range(cap, 0, -1) if cap else [0] for cap in caps]
    rows = np.array(list(itertools.product(*ranges)), dtype=np.int64)
    return rows[rows.sum(axis=1) == batch_size]


def brute_force(costs: IntArray, batch_size: int, caps: IntArray) -> tuple[list[int], int]:
    """The best counts and their makespan; n sum c^2 - (sum c)^2 over the ranks that take part."""
    counts = all_counts(tuple(caps.tolist()), batch_size)
    taking_part = caps > 0
    chosen = costs[np.flatnonzero(taking_part), counts[:, taking_part] - 1].astype(object)
    largest = chosen.max(axis=1)
    variance = chosen.shape[1] * (chosen * chosen).sum(axis=1) - chosen.sum(axis=1) ** 2
    best = min(range(len(counts)), key=lambda i: (largest[i], variance[i], i))
    return counts[best].tolist(), int(largest[best])


def check(allocation: Allocation, costs: IntArray, batch_size: int, caps: IntArray) -> None:
    """Raises AssertionError unless `allocation` is the one brute force finds, and says so."""
    counts, makespan = brute_force(costs, batch_size, caps)
    assert allocation.counts.dtype == np.int64
    assert allocation.counts.tolist() == counts
    assert (allocation.makespan, allocation.lower_bound) == (makespan, makespan)
    assert (allocation.status, allocation.tie_break) == ("optimal", "exact")


def instance(rng: np.random.Generator, falling: bool = False) -> tuple[IntArray, int, IntArray]:
    """A small problem; few distinct costs make ties and plateaus, some caps are 0, some costs are huge."""
    world_size, window = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    costs = rng.integers(0, rng.choice([2, 4, 12, 60, 10**6, 2**61]), (world_size, window))
    if not falling:
        costs = np.maximum.accumulate(costs, axis=1)
    caps = rng.integers(rng.integers(0, 2), window + 1, world_size)
    caps[rng.integers(world_size)] = window
    return costs, int(rng.integers((caps > 0).sum(), caps.sum() + 1)), caps


@st.composite
def instances(draw: st.DrawFn, falling: bool = False) -> tuple[IntArray, int, IntArray]:
    world_size, window = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    entries = st.integers(0, draw(st.sampled_from([1, 3, 20, 2**62])))
    costs = np.array(
        draw(st.lists(entries, min_size=world_size * window, max_size=world_size * window)), dtype=np.int64
    ).reshape(world_size, window)
    if not falling:
        costs = np.maximum.accumulate(costs, axis=1)
    caps = np.array(draw(st.lists(st.integers(0, window), min_size=world_size, max_size=world_size)))
    caps[draw(st.integers(0, world_size - 1))] = window
    return costs, draw(st.integers(int((caps > 0).sum()), int(caps.sum()))), caps


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


def test_sweep_of_20000_problems() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20_000):
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
    """Without the short cut for few ways, the small problems go through fixed points, hull and table."""
    monkeypatch.setattr(tie_break, "FEW_WAYS", 0)
    rng = np.random.default_rng(3 + falling)
    for _ in range(3000):
        costs, batch_size, caps = instance(rng, falling)
        caps = np.maximum(caps, 1)
        batch_size = max(batch_size, len(caps))
        best, makespan = brute_force(costs, batch_size, caps)
        usable = np.where(np.arange(costs.shape[1]) < caps[:, None], costs, FORBIDDEN)
        found = None
        if falling:  # the worst allocation of this makespan, which the answer must not depend on
            rows = all_counts(tuple(caps.tolist()), batch_size)
            found = rows[costs[np.arange(len(caps)), rows - 1].max(axis=1) == makespan][-1]
        counts, proved = break_ties(usable, batch_size, makespan, found)
        assert (counts.tolist(), proved) == (best, "exact")


def test_tie_break_between_the_ends_of_the_hull(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here both fixed points reached from outside have a larger variance than a vertex between them."""
    monkeypatch.setattr(tie_break, "FEW_WAYS", 0)
    costs, caps = np.array([[0, 3], [0, 10], [0, 8], [10, 10]]), np.array([2, 2, 2, 2])
    check(solve(costs, 6, method="threshold"), costs, 6, caps)


def test_checker_objects_to_a_worse_answer() -> None:
    """The sweeps above can fail: a sample moved between two ranks is noticed, and so is a false claim."""
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
    """The tie-break another way: a table over (samples, sum of costs) of the least sum of squares."""
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
    """Twelve ranks with many ties and, where a rank's first sample is long, much slack."""
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
    """One rank's first sample sets T*: the others' variance is then decided over a slack larger than the batch."""
    costs = np.cumsum(np.tile([3, 5, 4], (6, 4)), axis=1)
    costs[2] += 100
    for batch_size in (12, 20, 27):
        answers = [solve(costs, batch_size, method=method) for method in ("threshold", "enumeration")]
        assert answers[0].counts.tolist() == answers[1].counts.tolist()
        assert answers[0].makespan == 103


def test_above_the_limit_the_tie_break_says_best_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpsched.planning.solvers.allocation.separable.STEP_LIMIT", 0)
    costs = np.cumsum(np.ones((8, 8), dtype=np.int64), axis=1)
    costs[0] += 7
    allocation = solve(costs, 20, method="threshold")
    assert (allocation.status, allocation.tie_break) == ("optimal", "best found")
    assert (allocation.counts.sum(), allocation.makespan) == (20, 8)
    assert allocation.counts.tolist()[0] == 1
    with pytest.raises(OverLimit):
        minimise_separable(np.zeros((3, 3), dtype=np.int64), np.ones((3, 3), bool), 2, np.array([0, 0, 2]))


def test_costs_near_the_top_of_int64() -> None:
    huge = FORBIDDEN - 1
    costs = np.array([[1, huge - 5, huge], [0, huge - 3, huge - 1], [huge - 9, huge - 2, huge]])
    caps = np.array([3, 3, 3])
    for batch_size in range(3, 10):
        for method in ("threshold", "enumeration"):
            check(solve(costs, batch_size, method=method), costs, batch_size, caps)


def test_what_lies_beyond_a_cap_is_ignored() -> None:
    costs = [[5, 0, -1], [4, 9, 9]]
    assert solve(costs, 3, caps=[1, 2], method="threshold").counts.tolist() == [1, 2]
    assert solve(costs, 2, caps=[0, 2], method="threshold").counts.tolist() == [0, 2]


def test_an_empty_rank_does_not_enter_the_variance() -> None:
    """Rank 0 is empty; its zero would favour small costs over equal ones."""
    costs = np.array([[0, 0], [4, 4], [0, 4]])
    assert solve(costs, 3, caps=[0, 2, 2], method="threshold").counts.tolist() == [0, 1, 2]


def test_lists_and_small_integer_types_are_taken() -> None:
    costs = [[30, 60, 90], [12, 26, 48]]
    answers = [solve(np.array(costs, dtype=t), 4).counts.tolist() for t in ("int64", "int32", "uint8", "uint64")]
    assert answers == [solve(costs, 4).counts.tolist()] * 4 == [[1, 3]] * 4


def test_auto_chooses_by_shape() -> None:
    assert solve([[1, 2], [1, 2]], 3).method == "threshold"
    assert solve([[2, 1], [1, 2]], 3).method == "enumeration"
    falling = np.tile([5, 9, 4, 9, 9, 9, 9, 9], (10, 1))
    assert solve(falling, 30).method == "ilp"
    assert solve(falling, 30).makespan == 4


def test_ilp_without_an_answer_says_so() -> None:
    costs = np.random.default_rng(8).integers(1, 10**9, (60, 30))
    with pytest.raises(TimeoutError, match="700 samples to 60 ranks within 1e-06 s; raise time_limit_s"):
        solve(costs, 700, method="ilp", time_limit_s=1e-6)


def test_ilp_without_a_proof_is_feasible_above_a_valid_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, caps = np.array([[4, 9, 2, 9], [1, 3, 9, 9]]), np.array([4, 4])
    unproved = np.array([2, 3])
    monkeypatch.setattr(f"{ilp.__name__}._solve_program", lambda *_: (unproved, False))
    allocation = solve(costs, 5, method="ilp")
    assert (allocation.status, allocation.tie_break) == ("feasible", "best found")
    assert (allocation.counts.tolist(), allocation.makespan) == ([2, 3], 9)
    assert allocation.lower_bound <= brute_force(costs, 5, caps)[1] == 3

    # The bound itself can be the proof that the solver did not finish.
    unproved = np.array([3, 2])
    check(solve(costs, 5, method="ilp"), costs, 5, caps)


def test_ilp_bound_never_exceeds_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    for _ in range(500):
        costs, batch_size, caps = instance(rng, falling=True)
        listed = all_counts(tuple(caps[caps > 0].tolist()), batch_size)
        last = listed[-1]
        monkeypatch.setattr(f"{ilp.__name__}._solve_program", lambda *_, last=last: (last, False))
        allocation = solve(costs, batch_size, caps=caps, method="ilp")
        optimum = brute_force(costs, batch_size, caps)[1]
        assert allocation.lower_bound <= optimum <= allocation.makespan
        assert allocation.status == "feasible" or allocation.makespan == optimum


@pytest.mark.parametrize(
    ("costs", "batch_size", "options", "error", "named"),
    [
        ([[1, 2], [1, 2]], 1, {}, InfeasibleError, "batch_size 1 is below 2"),
        ([[1, 2], [1, 2]], 5, {}, InfeasibleError, "batch_size 5 exceeds 4"),
        ([[1, 2], [1, 2]], 3, {"caps": [1, 1]}, InfeasibleError, "batch_size 3 exceeds 2"),
        ([[1, 2], [1, 2]], 1, {"caps": [0, 0]}, InfeasibleError, "exceeds 0"),
        ([[1, 2], [1, 2]], 0, {}, ValueError, "at least 1, got 0"),
        ([[1, 2], [1, 2]], 2, {"caps": [3, 1]}, ValueError, "got 3 at rank 0"),
        ([[1, 2], [1, 2]], 2, {"caps": [1, -1]}, ValueError, "got -1 at rank 1"),
        ([[1, 2], [1, 2]], 2, {"caps": [1]}, ValueError, r"shape \(2,\)"),
        ([[1, 2], [1, 2]], 2, {"caps": [1.0, 1.0]}, ValueError, "float64"),
        ([[1, 2], [1, -7]], 2, {}, ValueError, "got -7 at rank 1, count 2"),
        ([[1, 2], [1, 2**63 - 1]], 2, {}, ValueError, "at rank 1, count 2"),
        (np.array([[1, 2**63]], dtype=np.uint64), 1, {}, ValueError, "at rank 0, count 2"),
        ([[1, 2], [1, float("nan")]], 2, {}, ValueError, "nan at rank 1, count 2"),
        ([[1, 2], [float("inf"), 3]], 2, {}, ValueError, "inf at rank 1, count 1"),
        ([[1, 2.5], [1, 3]], 2, {}, ValueError, "2.5 at rank 0, count 2"),
        ([[1.0, 2.0]], 1, {}, ValueError, "float64; round"),
        ([["a"]], 1, {}, ValueError, "integers"),
        ([1, 2], 1, {}, ValueError, r"shape \(2,\)"),
        (np.zeros((2, 0), dtype=np.int64), 2, {}, ValueError, r"shape \(2, 0\)"),
        ([[1, 2], [3, 2]], 3, {"method": "threshold"}, ValueError, "rank 1 falls from 3 at count 1 to 2 at count 2"),
        ([[1, 2]], 1, {"method": "magic"}, ValueError, "'magic'"),
        (np.ones((20, 9), dtype=np.int64), 90, {"method": "enumeration"}, ValueError, "rows, its limit is 100,000"),
        (np.ones((300, 9), dtype=np.int64), 900, {"method": "enumeration"}, ValueError, r"about 10\*\*"),
    ],
)
def test_bad_input_is_named(
    costs: npt.ArrayLike, batch_size: int, options: dict, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        solve(costs, batch_size, **options)


def test_batch_size_must_be_whole() -> None:
    with pytest.raises(TypeError):
        solve([[1, 2]], 1.5)  # type: ignore[arg-type]


def test_registry_holds_functions() -> None:
    assert list(SOLVERS) == ["threshold", "enumeration", "ilp"]
