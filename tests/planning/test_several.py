"""Several micro-batches a rank, packed rows and unlike ranks, against brute force over all partitions."""

from itertools import product

import numpy as np
import pytest
from brute_force import COSTS, TOKENS, best_of_all, check
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.partition.heterogeneous import uneven_split
from ddpsched.planning.solvers.partition.large_items import level_ranks
from ddpsched.planning.solvers.partition.lpt import spread
from ddpsched.planning.solvers.partition.padding_bound import padded_bound
from ddpsched.planning.solvers.partition.several import accumulate_split, lower_bound
from ddpsched.planning.solvers.partition.sorted_batch import line_of


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    ranks=st.integers(1, 3),
    most=st.integers(1, 3),
    cost=st.sampled_from(sorted(COSTS)),
)
@settings(max_examples=120, deadline=None)
def test_between_the_bound_and_one_micro_batch(lengths: list[int], ranks: int, most: int, cost: str) -> None:
    given, model, even = np.array(lengths), COSTS[cost], [10**6] * ranks
    result = accumulate_split(line_of(given, model), ranks, most)
    check(result, given, most, model, even)
    best = best_of_all(given, ranks, most, model, even)
    assert result.lower_bound <= best <= result.makespan
    one = accumulate_split(line_of(given, model), ranks, 1)
    assert one.makespan == best_of_all(given, ranks, 1, model, even) == one.lower_bound
    assert result.makespan <= one.makespan


def test_far_from_the_best_is_rare() -> None:
    """On small batches of real lengths the heuristic is near the optimum on average, and never far from it."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(60):
        lengths = sst2_lengths(6, rng)
        best = best_of_all(lengths, 2, 2, TOKENS, [10**6] * 2)
        ratios.append(accumulate_split(line_of(lengths, TOKENS), 2, 2).makespan / best)
    assert max(ratios) < 1.5
    assert np.mean(ratios) < 1.08


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=7), limit=st.integers(1, 40), most=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_no_micro_batch_is_over_its_limit(lengths: list[int], limit: int, most: int) -> None:
    """Memory holds `limit` padded tokens; a split is found exactly if greedy filling finds one."""
    given, ranks = np.array(lengths), 2

    def at_most(longest: Int) -> Int:
        return limit // longest

    ordered, groups, place = np.sort(given)[::-1], 0, 0
    while place < len(ordered) and limit // ordered[place]:
        place += limit // ordered[place]
        groups += 1
    possible = place >= len(ordered) and groups <= ranks * most
    if not possible:
        with pytest.raises(InfeasibleError, match=r"memory"):
            accumulate_split(line_of(given, TOKENS, at_most), ranks, most)
        return
    result = accumulate_split(line_of(given, TOKENS, at_most), ranks, most)
    check(result, given, most, TOKENS, [10**6] * ranks)
    start = 0
    for size in (size for sizes in result.sizes for size in sizes):
        assert size * given[result.positions[start : start + size]].max() <= limit
        start += size


def test_real_lengths_come_within_three_percent_of_the_bound() -> None:
    lengths = sst2_lengths(32 * 100, np.random.default_rng(1)).reshape(100, 32)
    result = [accumulate_split(line_of(batch, TOKENS), 4, 4) for batch in lengths]
    assert sum(f.makespan for f in result) / sum(f.lower_bound for f in result) < 1.035
    assert sum(f.makespan for f in result) < 0.8 * sum(
        accumulate_split(line_of(batch, TOKENS), 4, 1).makespan for batch in lengths
    )


def test_a_fixed_cost_decides_how_many_micro_batches() -> None:
    batch = sst2_lengths(32, np.random.default_rng(2))
    counts = [
        sum(map(len, accumulate_split(line_of(batch, CostModel(alpha, 1, 0, scale=1)), 4, 4).sizes))
        for alpha in (0, 20, 1000)
    ]
    assert counts[0] > counts[1] > counts[2] == 4


@given(
    weights=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    ranks=st.integers(1, 3),
    slow=st.lists(st.sampled_from([10**6, 1_500_000, 2_000_000]), min_size=3, max_size=3),
    even=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_packed_rows_against_all_assignments(weights: list[int], ranks: int, slow: list[int], even: bool) -> None:
    given, rates = np.array(weights), [10**6] * ranks if even else slow[:ranks]
    members, loads, bound = spread(given, ranks, None if even else rates)
    assert loads == [int(given[positions].sum()) for positions in members]
    assert sorted(place for positions in members for place in positions) == list(range(len(weights)))

    def makespan(owners: tuple[int, ...]) -> float:
        return (
            max(rates[r] * sum(w for w, o in zip(weights, owners, strict=True) if o == r) for r in range(ranks)) / 1e6
        )

    best = min(makespan(owners) for owners in product(range(ranks), repeat=len(weights)))
    result = max(rates[rank] * int(given[positions].sum()) for rank, positions in enumerate(members)) / 1e6
    assert bound <= best <= result
    assert result <= (4 / 3 if even else 2) * best, "longest first is within a third (Graham 1969)"


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    slow=st.lists(st.sampled_from([10**6, 1_500_000, 3_000_000]), min_size=2, max_size=3),
    most=st.integers(1, 2),
)
@settings(max_examples=80, deadline=None)
def test_unlike_ranks(lengths: list[int], slow: list[int], most: int) -> None:
    given, cost = np.array(lengths), COSTS["alpha"]
    result = uneven_split(line_of(given, cost), slow, most)
    check(result, given, most, cost, slow)
    assert result.lower_bound <= best_of_all(given, len(slow), most, cost, slow) <= result.makespan


def test_a_slow_rank_gets_less() -> None:
    lengths = sst2_lengths(64, np.random.default_rng(3))
    result = uneven_split(line_of(lengths, TOKENS), [2_000_000, 10**6, 10**6], 4)
    assert max(result.costs) < 1.03 * min(result.costs)
    assert sum(map(sum, result.sizes)) == 64
    assert accumulate_split(line_of(lengths, TOKENS), 3, 4).makespan * 2 > 1.3 * result.makespan, "blind plans wait"


def test_a_sample_too_long_for_one_rank_goes_to_another() -> None:
    lengths = np.array([50, 9, 8, 7])
    line = line_of(lengths, TOKENS, lambda longest: 100 // longest)
    limits = [(20 // lengths[line.order]).tolist(), (100 // lengths[line.order]).tolist()]
    result = uneven_split(line, [10**6, 10**6], 2, limits)
    sizes = sum(result.sizes[0])
    assert 0 not in result.positions[:sizes].tolist()
    tight = [limits[0], (60 // lengths[line.order]).tolist()]
    with pytest.raises(InfeasibleError, match="raise memory"):
        uneven_split(line, [10**6, 10**6], 1, tight)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    ranks=st.integers(1, 3),
    most=st.integers(1, 3),
    cost=st.sampled_from(["tokens", "alpha", "attention"]),
)
@settings(max_examples=120, deadline=None)
def test_the_padded_bound_lies_between(lengths: list[int], ranks: int, most: int, cost: str) -> None:
    given, model = np.array(lengths), COSTS[cost]
    line = line_of(given, model)
    quick = lower_bound(line, ranks, most) if most > 1 else 0
    assert quick <= padded_bound(line, ranks, most) <= best_of_all(given, ranks, most, model, [10**6] * ranks)


def test_exchange_evens_out_what_was_placed() -> None:
    line = line_of(np.array([10, 9, 8, 3]), TOKENS)
    ranks = [[(0, 1), (1, 2)], [(2, 3), (3, 4)]]  # costs 19 and 11; exchanging 10 and 8 gives 17 and 13
    assert max(level_ranks(line, ranks, 2)) == 17
    assert sorted(span for rank in ranks for span in rank) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    full = [[(0, 1), (1, 2), (2, 3)], [(3, 4)]]
    assert max(level_ranks(line, full, 3)) == 17, "one is given for none"
    assert max(level_ranks(line, [[(0, 1), (1, 2), (2, 3)], [(3, 4)]], 1)) < 27, "one for one where no more are allowed"


def test_one_rank_has_the_least_padding() -> None:
    """Gradient accumulation on one device has nothing to balance, so the optimum is found."""
    for lengths, most, best in (([9, 1], 2, 10), ([2, 1, 2, 2, 2, 3], 2, 13)):
        result = accumulate_split(line_of(np.array(lengths), TOKENS), 1, most)
        assert result.costs == (best,) == (result.lower_bound,)
    rng = np.random.default_rng(5)
    for cost in (TOKENS, COSTS["alpha"]):
        lengths = sst2_lengths(7, rng)
        result = accumulate_split(line_of(lengths, cost), 1, 3)
        assert result.makespan == best_of_all(lengths, 1, 3, cost, [10**6])


def test_tight_memories_of_unlike_ranks() -> None:
    """This batch fits with only one order of the ranks along the line."""
    lengths = np.array([41, 27, 19, 32, 19])
    rooms = (67, 55, 53)
    line = line_of(lengths, TOKENS, lambda longest: 67 // longest)
    result = uneven_split(line, [10**6] * 3, 1, [(room // lengths[line.order]).tolist() for room in rooms])
    start = 0
    for (size,), room in zip(result.sizes, rooms, strict=True):
        assert size * lengths[result.positions[start : start + size]].max() <= room
        start += size
