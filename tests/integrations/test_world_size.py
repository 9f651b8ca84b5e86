"""Samplers and loaders go on with another number of ranks: each sample once, and the same global batches."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched import BatchSampler, StepLoader, World, for_world_size
from ddpsched.errors import ConfigError

LENGTHS = np.random.default_rng(3).integers(1, 40, 150)
FILLS = {"max_tokens_for_batch": 90}
POLICIES: dict[str, Mapping[str, Any]] = {
    "static": {"kind": "static"},
    "balanced": {"kind": "balanced", "max_microbatches": 2, "lookahead": 2},
    "packed": {"kind": "packed"},
    "minmax": {"kind": "minmax"},
    "minmax, K": {"kind": "minmax", "prefetch": 16},
    "token_budget": {"kind": "token_budget", **FILLS},
    "bins": {"kind": "bins", "median_batch": 4},
    "pool": {"kind": "pool", "pool_size": 12, **FILLS},
}
SAME_BATCHES = ("static", "balanced", "packed", "token_budget", "bins")


def loader(policy: str, rank: int, size: int, **options: Any) -> StepLoader:
    kind = POLICIES[policy]
    batch = {} if kind["kind"] in ("token_budget", "bins", "pool") else {"global_batch": 12}
    ids = range(len(LENGTHS))
    return StepLoader(ids, LENGTHS, world=World(rank, size), policy=kind, collate_fn=list, epochs=2, **batch, **options)


def run(policy: str, sizes: list[int], cuts: list[int]) -> list[list[int]]:
    """Return the samples of each step over all ranks; after ``cuts[i]`` steps the next number of ranks goes on."""
    steps: list[list[int]] = []
    state: dict[str, Any] | None = None
    for size, cut in zip(sizes, [*cuts, None], strict=True):
        ranks = [loader(policy, rank, size) for rank in range(size)]
        for each in ranks:
            if state is not None:
                each.load_state_dict(state)
        iterators = [iter(each) for each in ranks]
        done = 0
        while cut is None or done < cut:
            shares = [next(iterator, None) for iterator in iterators]
            if all(share is None for share in shares):
                break
            counts = [0 if each.step is None else each.step.num_samples for each in ranks]
            # a rank without samples is handed a stand-in
            steps.append([i for share, n in zip(shares, counts, strict=True) if n for ids in share or [] for i in ids])
            done += 1
        states = [json.dumps(each.state_dict()) for each in ranks]
        assert len(set(states)) == 1, "a state is the same on every rank"
        size_after = sizes[sizes.index(size) + 1] if size != sizes[-1] else size
        state = for_world_size(json.loads(states[0]), size_after)
    return steps


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sizes", [[4, 2], [2, 5], [4, 1, 3]], ids=str)
def test_each_sample_comes_once_an_epoch(policy: str, sizes: list[int]) -> None:
    steps = run(policy, sizes, [3, 4][: len(sizes) - 1])
    counts = np.bincount([i for step in steps for i in step], minlength=len(LENGTHS))
    assert (counts == 2).all()
    if policy in SAME_BATCHES:
        whole = run(policy, sizes[:1], [])
        assert [sorted(step) for step in steps] == [sorted(step) for step in whole]


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4, unique=True),
    data=st.data(),
)
def test_each_sample_comes_once_whatever_is_cut_where(policy: str, sizes: list[int], data: st.DataObject) -> None:
    cuts = [data.draw(st.integers(0, 6)) for _ in sizes[1:]]
    counts = np.bincount([i for step in run(policy, sizes, cuts) for i in step], minlength=len(LENGTHS))
    assert (counts == 2).all()


def test_back_to_the_first_number_of_ranks() -> None:
    state = loader("token_budget", 0, 4).state_dict()
    assert for_world_size(for_world_size(state, 3), 4) == state


def test_it_must_be_asked_for() -> None:
    state = loader("balanced", 0, 4).state_dict()
    with pytest.raises(ConfigError, match=r"world_size = 4, here 2; load ddpsched\.for_world_size\(state, 2\)"):
        loader("balanced", 0, 2).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"world_size = 4, here 2.*; make this one as that was"):
        loader("static", 0, 2).load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "size", "message"),
    [
        ({}, 2, "give the state_dict"),
        ([], 2, "give the state_dict"),
        (None, 0, "world_size = 0, needs an integer of 1 or more"),
        (None, 2.0, "world_size = 2.0, needs"),
    ],
    ids=str,
)
def test_refusals(state: Any, size: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        for_world_size(loader("balanced", 0, 4).state_dict() if state is None else state, size)


@pytest.mark.parametrize("ranks", [0, -1, "4", 2.5, True])
def test_state_with_odd_batch_ranks_is_refused_and_leaves_the_loader(ranks: Any) -> None:
    state = for_world_size(loader("balanced", 0, 4).state_dict(), 2)
    fresh = loader("balanced", 0, 2)
    before = fresh.state_dict()
    with pytest.raises(ConfigError, match="batch_ranks"):
        fresh.load_state_dict({**state, "batch_ranks": ranks})
    assert fresh.state_dict() == before


def test_sampler_goes_on_too() -> None:
    four = [BatchSampler(LENGTHS, global_batch=12, world=World(rank, 4)) for rank in range(4)]
    iterators = [iter(each) for each in four]
    seen = [i for iterator in iterators for i in next(iterator)]
    state = four[0].state_dict()
    three = [BatchSampler(LENGTHS, global_batch=12, world=World(rank, 3)) for rank in range(3)]
    for each in three:
        each.load_state_dict(for_world_size(state, 3))
        seen += [i for ids in each for i in ids]
    assert sorted(seen) == list(range(len(LENGTHS)))


def test_another_global_batch_is_named() -> None:
    state = for_world_size(loader("balanced", 0, 2).state_dict(), 3)
    other = StepLoader(range(150), LENGTHS, world=World(0, 3), policy=POLICIES["balanced"], global_batch=18, epochs=2)
    with pytest.raises(ConfigError, match="global_batch = 12, here 18; give this one global_batch=12"):
        other.load_state_dict(state)


def test_a_state_dealt_elsewhere_says_which_number_is_meant() -> None:
    """Also where it was begun with this number of ranks, so that nothing else differs."""
    lengths = [5, 9, 3, 8, 7, 4, 6, 2] * 6
    two, three = (BatchSampler(lengths, global_batch=16, world=World(0, size)) for size in (2, 3))
    next(iter(two))
    three.load_state_dict(for_world_size(two.state_dict(), 3))
    next(iter(three))
    dealt = three.state_dict()
    for state in (dealt, for_world_size(two.state_dict(), 3)):
        with pytest.raises(ConfigError, match=r"world_size = 3, here 2; load ddpsched\.for_world_size\(state, 2\)"):
            BatchSampler(lengths, global_batch=16, world=World(0, 2)).load_state_dict(state)
    BatchSampler(lengths, global_batch=16, world=World(0, 2)).load_state_dict(for_world_size(dealt, 2))
