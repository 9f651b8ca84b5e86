"""A BatchSampler of the policies that fill micro-batches: global batches vary, and scales follow their plans."""

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest

from ddpsched import BatchSampler, World, scaled
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError

LENGTHS = sst2_lengths(103, np.random.default_rng(0))
BUDGET = 16 * 12  # tokens; of SST-2's lengths about 16 samples
FILLING: dict[str, dict[str, Any]] = {
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": BUDGET},
    "real tokens": {"kind": "token_budget", "max_tokens_for_batch": BUDGET, "budget": "real"},
    "bins": {"kind": "bins", "median_batch": 4},
    "bins of each rank": {"kind": "bins", "median_batch": 4, "per_rank_bins": True},
    "pool": {"kind": "pool", "max_tokens_for_batch": BUDGET, "pool_size": 16},
    "packed pool": {"kind": "pool", "max_tokens_for_batch": BUDGET, "sequence_packing": True},
}


def filling(name: str, rank: int = 0, world_size: int = 4, **changes: Any) -> BatchSampler:
    return BatchSampler(**{"lengths": LENGTHS, "world": World(rank, world_size), "policy": FILLING[name], **changes})


def without_stand_ins(sampler: BatchSampler) -> list[list[int]]:
    return [ids if scale else [] for ids, scale in scaled(sampler)]


@pytest.mark.parametrize("name", FILLING)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_filled_lists_are_every_id_once_and_the_scale_is_the_plans(name: str, world_size: int) -> None:
    ranks = [filling(name, rank, world_size) for rank in range(world_size)]
    for epoch in range(2):
        for rank in ranks:
            rank.set_epoch(epoch)
        length = len(ranks[0])
        steps = list(zip(*map(without_stand_ins, ranks), strict=True))
        assert len(steps) == length
        assert Counter(i for step in steps for ids in step for i in ids) == Counter(range(103))
        for index, step in enumerate(steps):
            for rank, ids in zip(ranks, step, strict=True):
                assert rank.sum_scale(index) == (world_size / sum(map(len, step)) if ids else 0)


def test_a_filled_steps_scale_is_known_once_it_is_planned() -> None:
    """A scale from another epoch would be wrong, as its steps have other sizes."""
    first = filling("pool")
    with pytest.raises(IndexError, match=r"step 0 of epoch 0 is not planned yet.*call len\(sampler\)"):
        first.sum_scale(0)
    next(iter(first))
    before = first.sum_scale(0)
    with pytest.raises(IndexError, match="step 1 of epoch 0 is not planned yet"):
        first.sum_scale(1)
    first.set_epoch(1)
    with pytest.raises(IndexError, match="step 0 of epoch 1 is not planned yet"):
        first.sum_scale(0)
    sizes = [plan.global_batch for plan in first.plans()]
    assert [first.sum_scale(i) for i in range(len(first))] == [4 / size for size in sizes]
    assert first.sum_scale(0) != before
    with pytest.raises(IndexError, match=f"step {len(sizes)} of an epoch of {len(sizes)} steps"):
        first.sum_scale(len(sizes))


@pytest.mark.parametrize("name", FILLING)
@pytest.mark.parametrize("done", [0, 1, 3, None])
def test_filled_lists_go_on_from_a_state(name: str, done: int | None) -> None:
    whole = filling(name)
    whole.set_epoch(1)
    expected = list(whole)
    first, done = filling(name), len(expected) if done is None else done
    first.set_epoch(1)
    got = list(islice(first, done))
    resumed = filling(name)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert resumed.first_step == done
    scales = []
    for index, ids in enumerate(resumed, resumed.first_step):
        got.append(ids)
        scales.append(resumed.sum_scale(index))
    len(whole)
    assert (got, scales) == (expected, [whole.sum_scale(i) for i in range(done, len(whole))])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": {**FILLING["pool"], "pool_size": 17}}, "policy.pool_size = 16, here 17;"),
        ({"policy": {**FILLING["pool"], "pool_size": 32}}, "policy.pool_size = 16, here the default;"),
        ({"policy": {**FILLING["pool"], "strategy": "prefer_first"}}, "policy.strategy = the default, here 'prefer_f"),
        ({"policy": {**FILLING["pool"], "max_tokens_for_batch": 99}}, "max_tokens_for_batch = 192, here 99;"),
        ({"policy": FILLING["token_budget"]}, "policy.kind = 'pool', here 'token_budget'; policy.pool_size = 16"),
        ({"world": World(0, 2)}, "world_size = 4, here 2;"),
        ({"seed": 1}, "seed = 0, here 1;"),
        ({"lengths": LENGTHS[::-1]}, r"data \(the digest"),
        ({"order": "length_grouped"}, "order.kind = 'shuffled', here 'length_grouped'"),
    ],
)
def test_the_state_of_another_filling_sampler(changes: dict[str, Any], words: str) -> None:
    first, other = filling("pool"), filling("pool", **changes)
    next(iter(first))
    with pytest.raises(ConfigError, match=words):
        other.load_state_dict(first.state_dict())
    again = filling("pool", policy={**FILLING["pool"], "infinite_loop": False})
    again.load_state_dict(first.state_dict())  # the state does not fix the length of a run


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            {"kind": "pool", "batches_per_optimizer_step": 2},
            "batches_per_optimizer_step = 2, but a list is one micro-b",
        ),
        (
            {"kind": "token_budget", "max_tokens_for_batch": 99, "same_shape": True},
            "same_shape .* use ddpsched.StepLoader",
        ),
        ({"kind": "pool", "pool": 3}, "unknown key policy.pool; did you mean policy.pool_size"),
        ({"pool_size": 3}, "needs a name, or a mapping with its name under 'kind'"),
        ({"kind": "peer", "peer": "verl"}, "policy 'peer' is another package's batching"),
        ("token_budget", "token_budget needs max_tokens_for_batch"),
        ("balanced", "policy 'balanced' needs global_batch"),
    ],
)
def test_bad_policies(policy: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BatchSampler(LENGTHS, world=World(0, 2), policy=policy)


def test_arguments_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="global_batch = 16, but policy 'pool' fills"):
        filling("pool", global_batch=16)
    with pytest.raises(ConfigError, match="max_microbatches = 2, but a list is one micro-batch; use ddpsched"):
        BatchSampler(LENGTHS, global_batch=16, world=World(0, 2), policy={"kind": "balanced", "max_microbatches": 2})
    with pytest.raises(ConfigError, match="prefetch belongs to kind = 'minmax', not 'balanced'"):
        BatchSampler(LENGTHS, global_batch=16, world=World(0, 2), policy={"kind": "balanced", "prefetch": 9})
    with pytest.raises(ConfigError, match="bounds two parts of a sample"):
        filling("pool", policy={"kind": "token_budget", "max_tokens_for_batch": (99, 99)})


def test_options_computed_by_numpy_and_two_budgets() -> None:
    budget = np.int64(BUDGET)
    one = filling("pool", policy={"kind": "token_budget", "max_tokens_for_batch": budget})
    parts = np.stack([LENGTHS // 2, LENGTHS - LENGTHS // 2], axis=1)
    two = filling("pool", lengths=parts, policy={"kind": "token_budget", "max_tokens_for_batch": (budget, 40)})
    assert len(two) > len(one) > 1
    seen = [i for rank in range(4) for ids in without_stand_ins(filling("pool", rank, lengths=parts)) for i in ids]
    assert Counter(seen) == Counter(range(103))
