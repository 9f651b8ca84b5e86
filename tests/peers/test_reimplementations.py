"""The reimplemented largest differencing method, fairseq's batches, and the search for a budget."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.peers import PEERS, Problem
from ddpsched.peers.budget import fit_budget
from ddpsched.peers.fairseq import batches_by_size
from ddpsched.peers.karmarkar_karp import largest_differencing

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 9), st.booleans())
def test_differencing_puts_each_sample_into_one_group(lengths: list[int], groups: int, equal: bool) -> None:
    sets = largest_differencing(lengths, groups, equal)
    assert len(sets) == groups
    assert sorted(i for group in sets for i in group) == list(range(len(lengths)))
    if equal:
        sizes = [len(group) for group in sets]
        assert max(sizes) - min(sizes) <= 1


def test_differencing_comes_close_to_the_best_split() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 60, 8).tolist()
        best = min(
            max(sum(x for x, g in zip(lengths, groups, strict=True) if g == k) for k in range(3))
            for groups in product(range(3), repeat=8)
        )
        largest = max(sum(lengths[i] for i in group) for group in largest_differencing(lengths, 3))
        assert best <= largest <= 1.2 * best


@given(LENGTHS, st.integers(1, 9), st.integers(1, 40))
def test_flattening_gives_ranks_the_orders_samples_in_equal_counts(lengths: list[int], ranks: int, batch: int) -> None:
    order = np.arange(len(lengths))[::-1]
    steps = list(PEERS["flattening"].steps(Problem(np.array(lengths), order, ranks, max(batch, ranks))))
    assert [id for step in steps for rank in step for row in rank for id in row.tolist()] == order.tolist()
    for step in steps:
        counts = [sum(map(len, rank)) for rank in step]
        assert len(step) == ranks
        assert max(counts) - min(counts) <= 1


@given(LENGTHS, st.integers(60, 600), st.sampled_from([1, 2, 8]))
def test_batches_are_full_and_within_the_size(lengths: list[int], max_tokens: int, multiple: int) -> None:
    lengths = sorted(lengths)
    batches = list(batches_by_size(lengths, max_tokens, multiple))
    assert [i for batch in batches for i in batch] == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * lengths[batch[-1]] <= max_tokens
        assert len(batch) < multiple or len(batch) % multiple == 0
        larger = len(batch) + (multiple if len(batch) >= multiple else 1)
        if batch.start + larger <= len(lengths):
            assert larger * lengths[batch.start + larger - 1] > max_tokens or larger > multiple > len(batch)


@pytest.mark.parametrize("slope", [0.01, 0.3, 7.0])
def test_the_budget_is_the_closest_there_is(slope: float) -> None:
    def mean(tokens: int) -> float:
        return slope * tokens**0.9

    budget = fit_budget(mean, target=64.0, lowest=1, guess=50)
    best = min(range(1, 60_000), key=lambda t: abs(mean(t) - 64))
    assert abs(mean(budget) - 64) <= max(abs(mean(best) - 64), 0.064)


def test_no_budget_below_the_longest_sample() -> None:
    assert fit_budget(lambda tokens: tokens, target=32, lowest=66, guess=20) == 66
