"""Micro-batches that all ranks run together: equal numbers, the slowest rank's sum, its bound."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched import balance
from ddpsched.errors import ConfigError, InfeasibleError
from experiments.benchmarks.rollouts import rollouts


def price(lengths: list[int], packed: bool, alpha: int) -> int:
    return alpha + (sum(lengths) if packed else max(lengths) * len(lengths))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=4, max_size=40), st.integers(1, 4), st.booleans(), st.data())
def test_any_batch(lengths: list[int], ranks: int, packed: bool, data: Any) -> None:
    cap = data.draw(st.none() | st.integers(max(lengths), 240))
    most, alpha = data.draw(st.none() | st.integers(1, 8)), data.draw(st.integers(0, 20))
    given = {"max_tokens": cap, "max_microbatches": most, "alpha": alpha, "packed": packed}
    try:
        found = balance(lengths, ranks, lockstep=True, **given)
    except InfeasibleError:
        assert cap is not None
        return
    assert sorted(found.reorder.tolist()) == list(range(len(lengths)))
    parts = [[[lengths[position] for position in micro] for micro in rank] for rank in found.ranks]
    assert len({len(rank) for rank in parts}) == 1, "as many micro-batches on each rank"
    assert most is None or len(parts[0]) <= most
    assert all(part for rank in parts for part in rank)
    assert cap is None or max(price(part, packed, 0) for rank in parts for part in rank) <= cap
    costs = [[price(part, packed, alpha) for part in rank] for rank in parts]
    assert found.costs.tolist() == list(map(sum, costs))
    assert found.makespan == sum(map(max, zip(*costs, strict=True))) >= found.lower_bound
    assert found.makespan >= max(map(sum, costs)), "waiting takes no less"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=4, max_size=6), st.booleans(), st.integers(0, 9))
def test_no_division_is_below_the_bound(lengths: list[int], packed: bool, alpha: int) -> None:
    """Two ranks, two micro-batches, each with a sample: every way."""
    best = min(
        sum(
            max(costs[:2])
            for costs in ([price(parts[k], packed, alpha), price(parts[k + 1], packed, alpha)] for k in (0, 2))
        )
        for places in itertools.product(range(4), repeat=len(lengths))
        if len(set(places)) == 4
        for parts in [[[n for n, at in zip(lengths, places, strict=True) if at == k] for k in range(4)]]
    )
    found = balance(lengths, 2, lockstep=True, alpha=alpha, packed=packed, max_microbatches=2)
    if len(found.ranks[0]) == 2:
        assert found.lower_bound <= best <= found.makespan


@pytest.mark.parametrize(("size", "ranks"), [(512, 8), (4096, 64)])
def test_rollouts(size: int, ranks: int) -> None:
    """torchtitan's rule takes 1.11 times the bound on the first, capped longest first 1.04."""
    for seed in range(5):
        found = balance(rollouts(size, seed), ranks, max_tokens=16_384, lockstep=True)
        assert found.gap <= 0.005
        assert "in lockstep" in repr(found)


def test_groups_stay_in_a_micro_batch() -> None:
    lengths = rollouts(256, 0)
    names = np.arange(256) // 4
    found = balance(lengths, 4, groups=names, groups_stay="microbatch", max_tokens=32_768, lockstep=True)
    micros = [set(names[micro].tolist()) for rank in found.ranks for micro in rank]
    assert sum(map(len, micros)) == 64
    assert found.gap <= 0.06


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "groups of a rank": (
        lambda: balance([3, 4], 1, groups=[0, 0], lockstep=True), ConfigError, "give groups_stay='microbatch'",
    ),
    "equal counts": (lambda: balance([3, 4], 1, equal_counts=True, lockstep=True), ConfigError, "leave equal_counts"),
    "padded groups": (
        lambda: balance([3, 4], 1, groups=[0, 0], groups_stay="microbatch", lockstep=True, packed=False),
        ConfigError,
        "leave packed=False out",
    ),
    "too few": (
        lambda: balance([5] * 8, 2, max_tokens=5, max_microbatches=3, lockstep=True),
        InfeasibleError,
        "max_microbatches = 3, but lockstep needs 4 micro-batches of 5 tokens on each of 2 ranks; raise max_microb",
    ),
    "an odd one": (
        lambda: balance([5] * 7, 2, max_tokens=5, lockstep=True),
        InfeasibleError,
        "needs 4 micro-batches of 5 tokens on each of 2 ranks, but 7 samples or groups cannot fill 8; raise max_to",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refused_with_a_remedy(case: str) -> None:
    call, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        call()
