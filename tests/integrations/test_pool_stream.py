"""PoolStream: pool's choices over iterable data, and its position."""

import logging
import warnings
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_streams import KINDS, LENGTHS, Rows, Stateful, length_of, numbers, stream

from ddpsched import PoolStream, World
from ddpsched.errors import ConfigError, DataError, PeerMissing
from ddpsched.peers.cosmos_rl import PACKAGE
from ddpsched.peers.packages import need_alone
from ddpsched.planning.policies.filling import Supply
from ddpsched.planning.policies.pool import Pool


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(1, 90),
    st.integers(1, 3),
    st.sampled_from(list(KINDS)),
)
def test_one_rank_of_the_policy_chooses_the_same(
    lengths: list[int], size: int, budget: int, batches: int, kind: str
) -> None:
    """The policy knows all lengths beforehand. Every sample runs once, also with several micro-batches."""
    options = {"pool_size": size, "max_tokens_for_batch": budget, "batches_per_optimizer_step": batches, **KINDS[kind]}
    expected = []
    for step in Pool(**options).fill(Supply(np.array(lengths), 1)):
        positions = iter(step.positions.tolist())
        expected.append([sorted(islice(positions, count)) for count in step.sizes[0]])
    made = stream(Rows(lengths, shuffles=False), infinite_loop=False, **options)
    assert numbers(list(made)) == expected
    assert made.over_budget == sum(length > budget for length in lengths)


@pytest.mark.parametrize("strategy", ["prefer_closest", "prefer_first"])
@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize("budget", [400, 50])  # the longest have more than 50
@pytest.mark.parametrize(("infinite", "batches"), [(False, 1), (False, 3), (True, 1)])
def test_choices_of_cosmos_rl(strategy: str, size: int, budget: int, infinite: bool, batches: int) -> None:
    """cosmos_rl's code makes the same choices on the same samples, over epochs or to the stream's end."""
    try:
        module = need_alone("cosmos_rl.dispatcher.data.load_balanced_dataset", PACKAGE)
    except PeerMissing as missing:
        pytest.skip(missing.reason)  # an optional package, whose pins exclude this project's transformers
    logging.getLogger("cosmos").setLevel(logging.WARNING)
    samples = [{"input_ids": range(length), "id": id} for id, length in enumerate(LENGTHS)]
    cosmos = module.LoadBalancedDataset(
        samples, pool_size=size, max_tokens_for_batch=budget, batching_strategy=strategy, infinite_loop=infinite,
        accumulate_steps=batches,
    )  # fmt: skip
    shard = module.ShardedIterableDataset(samples, 0, 1)  # what its rank reads, epoch by epoch
    policy = {
        "kind": "pool", "pool_size": size, "max_tokens_for_batch": budget, "strategy": strategy,
        "batches_per_optimizer_step": batches,
    }  # fmt: skip
    ours = PoolStream(shard, lambda sample: len(sample["input_ids"]), policy=policy, infinite_loop=infinite)
    limit = 300 if infinite else None
    expected, got = (
        [[sorted(sample["id"] for sample in batch) for batch in step] for step in islice(lists, limit)]
        for lists in (cosmos, ours)
    )
    assert got == expected
    assert sum(len(batch) for step in expected for batch in step) >= 500


def test_defaults_are_cosmos_rls() -> None:
    policy = PoolStream(Rows(), length_of).policy
    assert (policy.pool_size, policy.strategy, policy.sequence_packing) == (32, "prefer_closest", False)
    assert (policy.max_tokens_for_batch, policy.batches_per_optimizer_step, policy.infinite_loop) == (32768, 1, True)


def test_epoch_after_epoch() -> None:
    """The pool stays full between epochs; each epoch has a new order and every sample once."""
    rows = Rows()
    made = stream(rows, pool_size=16, max_num_steps=100, batches_per_optimizer_step=2)
    lists = list(made)
    assert len(lists) == 100
    assert all(len(batches) == 2 for batches in lists), "no step has fewer at an epoch's end"
    assert rows.opened == list(range(len(rows.opened)))
    assert len(rows.opened) > 2
    counts = Counter(number for batches in lists for batch in batches for number, _ in batch)
    assert max(counts.values()) - min(counts.values()) <= 2, "those of the epoch at hand, and 16 that wait"
    assert made.step is not None
    assert made.step.epoch == len(rows.opened) - 1
    rows = Rows()
    made = stream(rows)
    made.set_epoch(3)
    list(islice(made, 100))
    assert rows.opened[:2] == [3, 4]


def test_one_epoch_an_iteration() -> None:
    rows = Rows()
    made = stream(rows, infinite_loop=False)
    first = list(made)
    made.set_epoch(1)
    second = list(made)
    assert rows.opened == [0, 1]
    for lists in (first, second):
        assert sorted(number for batches in numbers(lists) for batch in batches for number in batch) == list(range(500))
    assert first != second
    assert len(list(stream(infinite_loop=False, max_num_steps=5))) == 5
    assert numbers(list(stream(infinite_loop=False, max_num_steps=10**6))) == numbers(first)


def test_the_share_of_a_step_and_its_batches() -> None:
    made = stream(infinite_loop=False, batches_per_optimizer_step=2, collate_fn=tuple,
                  sample_padding_fn=lambda sample, length: (*sample, length))  # fmt: skip
    for number, batches in enumerate(made):
        share = made.step
        assert share is not None
        flat = [sample for batch in batches for sample in batch]
        assert (share.step, share.rank_microbatches, share.rank_samples) == (number, len(batches), len(flat))
        assert share.rank_tokens == share.num_tokens == sum(length for _, length, _ in flat)
        assert share.sum_scale == 1 / len(flat)
        for batch in batches:
            assert isinstance(batch, tuple)
            assert {filled for _, _, filled in batch} == {max(length for _, length, _ in batch)}


def test_longer_than_the_budget_runs_alone_and_is_counted() -> None:
    made = stream(Rows([5, 40, 6, 60, 7, 30], shuffles=False), max_tokens_for_batch=30, infinite_loop=False)
    assert numbers(list(made)) == [[[0, 2, 4]], [[1]], [[3]], [[5]]]
    assert made.over_budget == 2


@pytest.mark.parametrize("rows", [Rows, Stateful])
def test_epochs_follow_each_other_and_a_look_changes_nothing(rows: type[Rows]) -> None:
    epochs, expected = [], stream(rows(), infinite_loop=False)
    for epoch in range(3):
        expected.set_epoch(epoch)
        epochs.append(list(expected))
    made = stream(rows(), infinite_loop=False)
    assert next(iter(made)) == epochs[0][0]
    assert [list(made), list(made)] == epochs[:2]
    list(islice(made, 4))
    state = made.state_dict()
    loaded = stream(rows(), infinite_loop=False)
    loaded.load_state_dict(state)
    assert next(iter(loaded)) == epochs[2][4]
    assert list(loaded) == epochs[2][4:]


def test_what_a_rank_does_not_know_and_what_it_is_told() -> None:
    blind = stream(world=World(1, 2))
    next(iter(blind))
    assert blind.step is not None
    assert blind.step.num_samples is None
    with pytest.raises(ConfigError, match="samples of this step on all 2 ranks are not known here"):
        blind.step.sum_scale  # noqa: B018
    informed = stream(world=World(1, 2), agree=lambda count: count + 3)
    (batch,) = next(iter(informed))
    assert informed.step is not None
    assert informed.step.sum_scale == 2 / (len(batch) + 3)
    only_whether = stream(world=World(1, 2), agree=bool, infinite_loop=False)
    assert len(list(only_whether)) > 5
    assert only_whether.step is not None
    assert only_whether.step.num_samples is None
    ends = iter([True, True, False])
    assert len(list(stream(world=World(1, 2), agree=lambda count: next(ends)))) == 2
    with pytest.raises(ConfigError, match=r"agree\(\d+\) gave 1: all ranks together"):
        next(iter(stream(world=World(1, 2), agree=lambda count: 1)))


def test_a_dry_rank_yields_empty_lists() -> None:
    totals = iter([9, 5, 5, 0])
    made = stream(
        Rows([3, 3], shuffles=False), world=World(0, 2), infinite_loop=False, agree=lambda count: next(totals)
    )
    assert numbers(list(made)) == [[[0, 1]], [], []]
    assert made.step is not None
    assert (made.step.rank_samples, made.step.rank_microbatches, made.step.sum_scale) == (0, 0, 2 / 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pool_size": 0}, "PoolStream: policy.pool_size = 0"),
        ({"strategy": "best"}, "PoolStream: policy.strategy = 'best'"),
        ({"max_tokens_for_batch": [8, 8]}, "pool takes one"),
        ({"max_num_steps": 0}, "PoolStream: max_num_steps = 0: input should be greater than 0"),
        ({"sequence_packing": True, "sample_padding_fn": min}, "packed rows have no padding"),
        ({"infinite_loop": False, "world": World(0, 2)}, "each of 2 ranks ends with its data.*give agree"),
    ],
)
def test_bad_arguments(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        stream(**options)


def test_a_strategy_under_packing_is_said_to_be_ignored() -> None:
    with pytest.warns(UserWarning, match="strategy is ignored") as caught:
        stream(sequence_packing=True, strategy="prefer_first")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream(sequence_packing=True)


def test_bad_samples() -> None:
    for wrong, words in ((0, "gave 0, needs at least 1"), (1.5, "give its tokens"), (None, "give its tokens")):
        with pytest.raises(DataError, match=f"length_fn of sample 1 of epoch 0.*{words}"):
            list(PoolStream([1, wrong], lambda sample: sample, infinite_loop=False))
    with pytest.raises(DataError, match="no sample in epoch 0"):
        next(iter(PoolStream([], len)))
    with pytest.raises(DataError, match="no sample in epoch 1; each epoch needs at least one, and an"):
        list(islice(PoolStream(iter(["a"] * 9), len, policy={"kind": "pool", "pool_size": 4}), 100))
    assert list(PoolStream([], len, infinite_loop=False)) == []


def test_epochs_that_are_none() -> None:
    made = stream(Rows([3, 3], shuffles=False))
    for wrong in (-1, "a", True):
        with pytest.raises(ConfigError, match="epochs are numbered from 0"):
            made.set_epoch(wrong)  # type: ignore[arg-type]
    assert stream(Rows([3, 3], shuffles=False), max_tokens_for_batch=np.int64(8)).policy.max_tokens_for_batch == 8
