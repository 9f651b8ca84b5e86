"""Splitting samples into groups, against brute force over all set partitions."""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.partition.min_max_split import min_max_split

IntArray = npt.NDArray[np.int64]
Cost = Callable[[npt.ArrayLike, npt.ArrayLike], IntArray]

COSTS: dict[str, Cost] = {
    "padded_tokens": lambda count, length: np.multiply(count, length),
    "padded_tokens_squared": lambda count, length: np.multiply(count, length) ** 2,
    "affine_quadratic": lambda count, length: 10**6 + np.multiply(count, 3571 * np.asarray(length) + 37 * length**2),
    "plateaus": lambda count, length: (np.asarray(count) + 1) // 2 * (np.asarray(length) // 8),
}


def brute_force(lengths: IntArray, groups: int, cost: Cost, cap: int | None) -> int:
    """Return the least makespan over every way to assign samples to groups."""
    size = len(lengths)
    # owner: (groups ** size, size)
    owner = np.indices((groups,) * size).reshape(size, -1).T
    largest = np.zeros(len(owner), dtype=np.int64)
    allowed = np.ones(len(owner), dtype=bool)
    for group in range(groups):
        mine = owner == group
        count, longest = mine.sum(axis=1), (mine * lengths).max(axis=1)
        allowed &= (count >= 1) | (size < groups)
        allowed &= count <= (cap or size)
        largest = np.maximum(largest, np.where(count > 0, cost(count, longest), 0))
    return int(largest[allowed].min())


def at_most(cap: int | None) -> Callable[[IntArray], IntArray] | None:
    return None if cap is None else lambda lengths: np.full(len(lengths), cap)


def check(lengths: IntArray, groups: int, cost: Cost, cap: int | None) -> None:
    split, makespan, lower_bound = min_max_split(lengths, groups, cost, at_most(cap))
    assert len(split) == groups
    assert sorted(np.concatenate(split).tolist()) == list(range(len(lengths)))
    sizes = [len(group) for group in split]
    assert min(sizes) >= 1 or (len(lengths) < groups and sum(sizes[: len(lengths)]) == len(lengths))
    assert max(sizes) <= (cap or len(lengths))
    assert max(int(cost(len(group), lengths[group].max())) for group in split if len(group)) == makespan
    assert makespan == lower_bound == brute_force(lengths, groups, cost, cap)


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    groups=st.integers(1, 4),
    cost=st.sampled_from(sorted(COSTS)),
    spare=st.one_of(st.none(), st.integers(0, 2)),
)
@settings(max_examples=300, deadline=None)
def test_equals_brute_force_over_all_partitions(lengths: list[int], groups: int, cost: str, spare: int | None) -> None:
    cap = None if spare is None else -(-len(lengths) // groups) + spare
    check(np.array(lengths), groups, COSTS[cost], cap)


def test_sweep() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1500):
        groups = int(rng.integers(1, 5))
        lengths = rng.integers(1, rng.choice([3, 12, 66]), int(rng.integers(1, 8 if groups < 4 else 7)))
        cap = -(-len(lengths) // groups) + int(rng.integers(0, 3)) if rng.random() < 0.5 else None
        check(lengths, groups, COSTS[rng.choice(sorted(COSTS))], cap)


def test_check_objects_to_a_split_that_is_not_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    """An even split by length is not optimal, so the check fails on it."""

    def even(lengths: IntArray, groups: int, cost: Cost, limit: object) -> tuple[list[IntArray], int, int]:
        split = np.array_split(np.argsort(-lengths, kind="stable"), groups)
        makespan = max(int(cost(len(group), lengths[group].max())) for group in split)
        return split, makespan, makespan

    monkeypatch.setitem(globals(), "min_max_split", even)
    with pytest.raises(AssertionError):
        check(np.array([60, 10, 9, 8, 7, 6]), 2, COSTS["padded_tokens"], None)


def test_equal_lengths_keep_their_order() -> None:
    split, _, _ = min_max_split(np.array([5, 9, 5, 9, 5, 9]), 2, COSTS["padded_tokens"])
    assert np.concatenate(split).tolist() == [1, 3, 5, 0, 2, 4]


def test_the_group_of_short_samples_is_not_left_over() -> None:
    """One long sample sets the makespan; the other groups share the rest evenly."""
    split, makespan, _ = min_max_split(np.array([100] + [5] * 24), 4, COSTS["padded_tokens"])
    assert makespan == 100
    assert sorted(len(group) for group in split)[-1] <= 12


def test_fewer_samples_than_groups_leaves_empty_groups_at_the_end() -> None:
    split, makespan, _ = min_max_split(np.array([3, 8]), 4, COSTS["padded_tokens"])
    assert [group.tolist() for group in split] == [[1], [0], [], []]
    assert makespan == 8


@pytest.mark.parametrize(
    ("lengths", "groups", "cap", "error", "named"),
    [
        ([], 2, None, ValueError, r"shape \(0,\)"),
        ([[1, 2]], 2, None, ValueError, r"shape \(1, 2\)"),
        ([1.5], 2, None, ValueError, "float64"),
        ([1, 2], 0, None, ValueError, "groups must be at least 1, got 0"),
        ([1, 2], 1, 0, InfeasibleError, "one sample of 2 tokens alone"),
        ([1, 2, 3, 4, 5], 2, 2, InfeasibleError, "2 micro-batches cannot hold 5 samples"),
    ],
)
def test_bad_input_is_named(lengths: list, groups: int, cap: int | None, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        min_max_split(np.array(lengths), groups, COSTS["padded_tokens"], at_most(cap))


def test_time_at_scale() -> None:
    lengths = np.clip(np.random.default_rng(1).lognormal(2.4, 0.6, 2048).astype(np.int64), 3, 66)
    start = time.perf_counter()
    split, _, _ = min_max_split(lengths, 64, COSTS["affine_quadratic"])
    assert time.perf_counter() - start < 1.0
    assert sum(len(group) for group in split) == 2048
