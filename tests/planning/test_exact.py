"""Few samples, or few distinct lengths: placements proved optimal agree with brute force."""

from itertools import product

import numpy as np
import pytest
from brute_force import COSTS, TOKENS, best_of_all, check
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.costs.cost_model import CostModel, padded_tokens
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import InfeasibleError
from ddpsched.planning.policies.balanced import Balanced
from ddpsched.planning.solvers.partition.exact import MILLION, exact_split
from ddpsched.planning.solvers.partition.heterogeneous import lower_bound, uneven_split
from ddpsched.planning.solvers.partition.several import accumulate_split
from ddpsched.planning.solvers.partition.sorted_batch import line_of
from ddpsched.planning.steps.batches import GlobalBatch


def test_two_long_samples_and_a_few_short_ones() -> None:
    """Each rank has one long sample and some short ones; both long ones on a rank would cost 200."""
    lengths = np.array([100, 3, 2, 1, 100])
    result = accumulate_split(line_of(lengths, TOKENS), 2, 2)
    check(result, lengths, 2, TOKENS, [MILLION] * 2)
    assert result.makespan == result.lower_bound == 104
    planned = Balanced(max_microbatches=2).assign(GlobalBatch(lengths, 5, 2, 0, padded_tokens))
    assert planned.status == "optimal"
    assert planned.lower_bound == 104


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    ranks=st.integers(1, 3),
    most=st.integers(2, 3),
    cost=st.sampled_from(sorted(COSTS)),
    room=st.none() | st.integers(30, 70),
)
@settings(max_examples=150, deadline=None)
def test_equal_ranks(lengths: list[int], ranks: int, most: int, cost: str, room: int | None) -> None:
    given, model = np.array(lengths), COSTS[cost]
    line = line_of(given, model, None if room is None else lambda longest: room // longest)
    best = best_of_all(given, ranks, most, model, [MILLION] * ranks, None if room is None else [room] * ranks)
    if best is None:
        with pytest.raises(InfeasibleError, match="memory"):
            accumulate_split(line, ranks, most)
        return
    result = accumulate_split(line, ranks, most)
    check(result, given, most, model, [MILLION] * ranks)
    assert result.makespan == best == result.lower_bound
    start = 0
    for size in (size for sizes in result.sizes for size in sizes):
        assert room is None or size * given[result.positions[start : start + size]].max() <= room
        start += size


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    slow=st.lists(st.sampled_from([MILLION, 1_500_000, 3_000_000]), min_size=2, max_size=3),
    most=st.integers(1, 3),
    cost=st.sampled_from(sorted(COSTS)),
    rooms=st.none() | st.lists(st.integers(10, 70), min_size=3, max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_unlike_ranks(lengths: list[int], slow: list[int], most: int, cost: str, rooms: list[int] | None) -> None:
    given, model = np.array(lengths), COSTS[cost]
    rank_rooms = None if rooms is None else rooms[: len(slow)]
    best = best_of_all(given, len(slow), most, model, slow, rank_rooms)
    if rank_rooms is not None and max(rank_rooms) < max(lengths):
        return  # one sample alone is too long: refused before
    line = line_of(given, model, None if rank_rooms is None else lambda longest: max(rank_rooms) // longest)
    limits = None if rank_rooms is None else [(room // given[line.order]).tolist() for room in rank_rooms]
    if best is None:
        with pytest.raises(InfeasibleError, match="memory"):
            uneven_split(line, slow, most, limits)
        return
    result = uneven_split(line, slow, most, limits)
    check(result, given, most, model, slow)
    assert lower_bound(line, slow) <= best
    assert result.makespan == best == result.lower_bound


def least_without_padding(counts: tuple[int, int], weights: tuple[int, int], fixed: int, ranks: int) -> int:
    """Return the least makespan over all counts, for two lengths with a micro-batch each."""
    reached: dict[tuple[int, int], int] = {(0, 0): 0}
    for _ in range(ranks):
        after: dict[tuple[int, int], int] = {}
        for (x, y), makespan in reached.items():
            for a, b in product(range(counts[0] - x + 1), range(counts[1] - y + 1)):
                cost = a * weights[0] + b * weights[1] + fixed * ((a > 0) + (b > 0))
                joined = fixed + (a + b) * weights[0] if a and b else cost
                key, least = (x + a, y + b), max(makespan, min(cost, joined))
                after[key] = min(after.get(key, least), least)
        reached = after
    return reached[counts]


@pytest.mark.parametrize("fixed", [0, 7, 60])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_few_distinct_lengths(ranks: int, fixed: int) -> None:
    cost, counts, weights = CostModel(fixed, 1, 0, scale=1), (11, 9), (37, 10)
    lengths = np.repeat(weights, counts)
    result = accumulate_split(line_of(lengths, cost), ranks, 8)
    check(result, lengths, 8, cost, [MILLION] * ranks)
    assert result.makespan == result.lower_bound == least_without_padding(counts, weights, fixed, ranks)


def test_the_budget_holds_what_it_says() -> None:
    """The exact search takes twelve samples on two ranks or ten on four; a usual batch is left to the heuristic."""
    rng = np.random.default_rng(0)

    def tried(size: int, ranks: int) -> bool:
        line = line_of(rng.permutation(np.arange(1, size + 1)), TOKENS)
        return exact_split(line, 3, [MILLION] * ranks, [None] * ranks) is not None

    assert tried(12, 2)
    assert tried(10, 4)
    assert not tried(13, 2)
    assert not tried(12, 4)
    batch = line_of(sst2_lengths(32, rng), TOKENS)
    assert exact_split(batch, 4, [MILLION] * 4, [None] * 4) is None
    few = line_of(np.repeat([64, 48, 32, 16], 6), TOKENS)
    assert exact_split(few, 4, [MILLION] * 2, [None] * 2) is not None


def test_costs_near_the_largest_integer_are_left_alone() -> None:
    cost = CostModel(0, 2.0**55, 0, scale=1)
    line = line_of(np.array([9, 5, 3, 2]), cost)
    assert exact_split(line, 2, [MILLION] * 2, [None] * 2) is None
    assert accumulate_split(line, 2, 2).makespan >= accumulate_split(line, 2, 2).lower_bound
