"""A larger M never costs more, and no time is spent on an M that the batch cannot use."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from brute_force import COSTS, TOKENS
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.partition import heterogeneous, large_items
from ddpsched.planning.solvers.partition.heterogeneous import uneven_split
from ddpsched.planning.solvers.partition.large_items import candidates
from ddpsched.planning.solvers.partition.padding_bound import padded_bound, penalised_bound
from ddpsched.planning.solvers.partition.several import accumulate_split, usable
from ddpsched.planning.solvers.partition.sorted_batch import Line, line_of

Cost = CostModel
FLOORED = CostModel(2, 1, 0, scale=1, floor=150)
MOST = 6  # M = 1 .. 6 of each batch


def makespans(lengths: Int, ranks: int, cost: Cost, room: int | None = None) -> list[int]:
    """Return the makespans of M = 1 .. MOST in memory for ``room`` padded tokens, without any M that does not fit."""
    line = line_of(lengths, cost, None if room is None else lambda longest: room // longest)
    result = []
    for most in range(1, MOST + 1):
        try:
            result.append(accumulate_split(line, ranks, most).makespan)
        except InfeasibleError:
            assert not result, "a larger M holds what a smaller one holds"
    return result


def uneven_makespans(lengths: Int, slowness: list[int], cost: Cost, rooms: list[int] | None = None) -> list[int]:
    """Return the same makespans for ranks of different speed and memory."""
    line = line_of(lengths, cost, None if rooms is None else lambda longest: max(rooms) // longest)
    limits = None if rooms is None else [(room // lengths[line.order]).tolist() for room in rooms]
    result = []
    for most in range(1, MOST + 1):
        try:
            result.append(uneven_split(line, slowness, most, limits).makespan)
        except InfeasibleError:
            assert not result
    return result


def falls(costs: list[int]) -> bool:
    return all(after <= before for before, after in pairwise(costs))


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 6), st.sampled_from([*sorted(COSTS), "high floor"]), st.none() | st.integers(60, 300))
@settings(max_examples=200, deadline=None)
def test_equal_ranks(lengths: list[int], ranks: int, cost: str, room: int | None) -> None:
    assert falls(makespans(np.array(lengths), ranks, {**COSTS, "high floor": FLOORED}[cost], room))


@given(
    LENGTHS,
    st.lists(st.integers(900_000, 3_000_000), min_size=2, max_size=5),
    st.sampled_from(sorted(COSTS)),
    st.none() | st.lists(st.integers(60, 300), min_size=5, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_unlike_ranks(lengths: list[int], slowness: list[int], cost: str, rooms: list[int] | None) -> None:
    rank_rooms = None if rooms is None else rooms[: len(slowness)]
    assert falls(uneven_makespans(np.array(lengths), slowness, COSTS[cost], rank_rooms))


def batches(seed: int, number: int) -> Iterator[tuple[Int, int, np.random.Generator]]:
    """Yield batches of 2 to 79 samples, uniform, log-normal or SST-2's, for 1 to 8 ranks."""
    rng = np.random.default_rng(seed)
    for kind in rng.integers(3, size=number):
        size, ranks = int(rng.integers(2, 80)), int(rng.integers(1, 9))
        if kind == 0:
            lengths = rng.integers(1, 100, size)
        elif kind == 1:
            lengths = np.ceil(rng.lognormal(3, 1, size)).astype(np.int64)
        else:
            lengths = sst2_lengths(size, rng)
        yield lengths, ranks, rng


LAWS = {
    "long tail": lambda rng, size: np.ceil(rng.lognormal(3, 1.5, size)).astype(np.int64),
    "few lengths": lambda rng, size: rng.choice([16, 32, 48, 64, 100], size),
    "long and short": lambda rng, size: np.where(
        rng.random(size) < 0.3, rng.integers(80, 120, size), rng.integers(1, 8, size)
    ),
}


@pytest.mark.parametrize("law", sorted(LAWS))
def test_1500_pairs_up_to_16_micro_batches(law: str) -> None:
    """A plan of exactly M micro-batches can cost 2.2 times that of M - 1; with at most M, the cost never rises."""
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(100):
        size, ranks = int(rng.integers(4, 65)), int(rng.integers(2, 9))
        line = line_of(LAWS[law](rng, size), TOKENS)
        pairs += pairwise([accumulate_split(line, ranks, most).makespan for most in range(1, 17)])
    assert len(pairs) == 1500
    assert sum(after > before for before, after in pairs) == 0


def test_2000_pairs_of_equal_ranks() -> None:
    costs = [*COSTS.values(), FLOORED]
    result = [makespans(lengths, ranks, costs[rng.integers(len(costs))]) for lengths, ranks, rng in batches(0, 400)]
    pairs = [pair for costs in result for pair in pairwise(costs)]
    assert len(pairs) == 400 * (MOST - 1)
    assert sum(after > before for before, after in pairs) == 0


def test_2000_pairs_in_tight_memory() -> None:
    """Memory holds 1.2 to 4 times the longest sample, and a fixed cost makes more micro-batches dearer."""
    for lengths, ranks, rng in batches(1, 400):
        room = int(lengths.max() * rng.uniform(1.2, 4))
        assert falls(makespans(lengths, ranks, COSTS["alpha"], room))


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_pairs_of_unlike_ranks(count: int) -> None:
    for lengths, ranks, rng in batches(2, count):
        slowness = rng.integers(MOST * 10**5, 3 * 10**6, ranks).tolist()
        rooms = (lengths.max() * rng.uniform(1.0, 4, ranks)).astype(int).tolist() if rng.random() < 0.5 else None
        if rooms is None or max(rooms) >= lengths.max():
            assert falls(uneven_makespans(lengths, slowness, COSTS["alpha"], rooms))


def test_more_than_a_batch_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """M = 100,000 gives the same plan for 16 samples as M = 16, with no more tries."""
    tries: list[tuple[Any, ...]] = []

    def counted(*arguments: Any) -> Any:
        tries.append(arguments)
        return candidates(*arguments)

    monkeypatch.setattr(large_items, "candidates", counted)
    monkeypatch.setattr(heterogeneous, "candidates", counted)
    for cost in (TOKENS, COSTS["alpha"], COSTS["floor"]):
        line = line_of(sst2_lengths(16, np.random.default_rng(4)), cost)
        rates = [10**6, 2 * 10**6, 10**6, 10**6]
        for solve in (partial(accumulate_split, line, 4), partial(uneven_split, line, rates)):
            tries.clear()
            few, needed = solve(16), len(tries)
            tries.clear()
            many = solve(100_000)
            assert len(tries) == needed <= 16
            assert many.sizes == few.sizes
            assert many.positions.tolist() == few.positions.tolist()
    assert usable(line_of(np.full(64, 7), TOKENS), 4, 100_000) == 1, "one length needs one micro-batch"
    assert usable(line_of(np.arange(1, 17), TOKENS), 4, 100_000) == 13, "each other rank has a sample"
    assert padded_bound(line_of(np.arange(1, 17), TOKENS), 4, 100_000) == 34


@given(LENGTHS, st.integers(1, 4), st.integers(1, 4), st.sampled_from(["tokens", "alpha"]), st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_a_penalty_makes_a_lower_bound(lengths: list[int], ranks: int, most: int, cost: str, penalty: int) -> None:
    line = line_of(np.array(lengths), COSTS[cost])
    assert penalised_bound(line, ranks, most, penalty) <= padded_bound(line, ranks, most)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 4), st.sampled_from(["tokens", "alpha"]))
@settings(max_examples=100, deadline=None)
def test_candidates_know_their_work(lengths: list[int], ranks: int, most: int, cost: str) -> None:
    line = line_of(np.array(lengths), COSTS[cost])
    result = list(candidates(line, ranks, most, 10**9))
    for items, place, work in result:
        assert work == sum(item[0] for item in items) + sum(line.weights[place:])
    assert [work for _, _, work in result] == sorted(work for _, _, work in result)


def test_tight_memory_tries_few_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed cost limits how many micro-batches a rank can pay for, however many it may have."""
    tries: list[int] = []

    def counted(line: Line, ranks: int, most: int, roof: int) -> Any:
        tries.append(most)
        return candidates(line, ranks, most, roof)

    monkeypatch.setattr(large_items, "candidates", counted)
    line = line_of(sst2_lengths(256, np.random.default_rng(0)), COSTS["alpha"], lambda longest: 200 // longest)
    makespan = accumulate_split(line, 8, 16).makespan
    tries.clear()
    assert accumulate_split(line, 8, 100_000).makespan <= makespan
    assert len(tries) < 80


def test_a_large_batch_with_limits_tries_few_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries end once half-full micro-batches exceed the cost, but for doublings; trying all took up to 117 s."""
    tries: list[int] = []

    def counted(line: Line, ranks: int, most: int, *roof: int) -> Any:
        tries.append(most)
        return candidates(line, ranks, most, *roof)

    monkeypatch.setattr(large_items, "candidates", counted)
    monkeypatch.setattr(heterogeneous, "candidates", counted)
    lengths = sst2_lengths(4096, np.random.default_rng(0))
    for room in (512, 4096):
        line = line_of(lengths, CostModel(5, 1, 0, scale=1), partial(lambda tokens, longest: tokens // longest, room))
        limits = [(tokens // lengths[line.order]).tolist() for tokens in (room, room // 2, room, room)]
        accumulate_split(line, 4, 100_000)
        uneven_split(line, [10**6, 12 * 10**5, 10**6, 15 * 10**5], 100_000, limits)
    assert 4 <= len(tries) <= 4 * 260


@pytest.mark.parametrize("room", [150, 600])
def test_far_larger_numbers_in_limits_cost_no_more(room: int) -> None:
    for size, cost in ((300, TOKENS), (300, CostModel(5, 1, 0, scale=1)), (500, TOKENS)):
        lengths = sst2_lengths(size, np.random.default_rng(size))
        line = line_of(lengths, cost, lambda longest: room // longest)
        result = [accumulate_split(line, 4, most).makespan for most in (16, 20, 32, 40, 64, 80, 100, 128, 200, 400)]
        assert falls(result), result
