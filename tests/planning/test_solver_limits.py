"""Allocations at their limits: int64, caps, time limits, bad input."""

import numpy as np
import numpy.typing as npt
import pytest
from allocations import all_counts, brute_force, check, instance

from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.allocation import SOLVERS, methods, solve
from ddpsched.planning.solvers.allocation.problem import FORBIDDEN
from ddpsched.planning.solvers.allocation.tie_break import OverLimit, minimise_separable


def test_above_the_limit_the_tie_break_says_best_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpsched.planning.solvers.allocation.tie_break.STEP_LIMIT", 0)
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
    """Rank 0 is empty; counting its zero would favour small costs over equal ones."""
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
    monkeypatch.setattr(f"{methods.__name__}._solve_program", lambda *_: (unproved, False))
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
        monkeypatch.setattr(f"{methods.__name__}._solve_program", lambda *_, last=last: (last, False))
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
