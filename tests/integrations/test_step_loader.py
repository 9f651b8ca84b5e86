"""StepLoader: whole steps through torch's DataLoader, padded and collated as the loop asks, every sample once."""

import gc
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ddpsched import StepLoader, World
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError, DataError

LENGTHS = sst2_lengths(103, np.random.default_rng(0))
BUDGET = 16 * 12
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax"},
    "balanced": {"kind": "balanced"},
    "balanced in two": {"kind": "balanced", "max_microbatches": 2, "lookahead": 2},
    "packed": {"kind": "packed"},
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": BUDGET, "batches_per_optimizer_step": 2},
    "real tokens": {"kind": "token_budget", "max_tokens_for_batch": BUDGET, "budget": "real"},
    "bins": {"kind": "bins", "median_batch": 4, "batches_per_optimizer_step": 2},
    "bins of each rank": {"kind": "bins", "median_batch": 4, "per_rank_bins": True},
    "pool": {"kind": "pool", "max_tokens_for_batch": BUDGET, "pool_size": 16, "batches_per_optimizer_step": 2},
    "pool, first": {"kind": "pool", "max_tokens_for_batch": BUDGET, "strategy": "prefer_first"},
    "packed pool": {"kind": "pool", "max_tokens_for_batch": BUDGET, "sequence_packing": True},
}


class Rows(Dataset[tuple[int, torch.Tensor]]):
    """``[id]`` -> its id and as many tokens as its length; ``asked``: ids in the order they were loaded."""

    def __init__(self, lengths: Any = LENGTHS) -> None:
        self.lengths, self.asked = lengths, list[int]()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, id: int) -> tuple[int, torch.Tensor]:
        self.asked.append(id)
        return id, torch.full((int(self.lengths[id]),), id + 1)


def fill_up(sample: tuple[int, torch.Tensor], length: int) -> tuple[int, torch.Tensor]:
    id, tokens = sample
    return id, torch.nn.functional.pad(tokens, (0, length - len(tokens)))


def ids_of(samples: list[tuple[int, torch.Tensor]]) -> list[int]:
    return [id for id, _ in samples]


def loader(name: str, rank: int = 0, world_size: int = 2, **changes: Any) -> StepLoader:
    """Its batches are ids, unless it is told otherwise."""
    policy = POLICIES[name]
    values = {
        "dataset": Rows(changes.get("lengths", LENGTHS)), "lengths": LENGTHS, "world": World(rank, world_size),
        "policy": policy, "collate_fn": ids_of, "seed": 5,
        "global_batch": None if policy["kind"] in ("token_budget", "bins", "pool") else 16,
    }  # fmt: skip
    return StepLoader(**{**values, **changes})


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_every_id_once_an_epoch_and_the_share_of_each_step(name: str, world_size: int) -> None:
    ranks = [loader(name, rank, world_size) for rank in range(world_size)]
    orders = []
    for epoch in range(2):
        for rank in ranks:
            rank.set_epoch(epoch)
        length, seen = len(ranks[0]), list[int]()
        for number, step in enumerate(zip(*ranks, strict=True)):
            own = [[id for batch in batches for id in batch] for batches in step]
            seen += [id for ids in own for id in ids]
            for rank, ids, batches in zip(ranks, own, step, strict=True):
                share = rank.step
                assert share is not None
                assert (share.epoch, share.step, share.world_size) == (epoch, number, world_size)
                assert (share.rank_samples, share.rank_microbatches) == (len(ids), len(batches))
                assert share.rank_tokens == LENGTHS[ids].sum()
                assert (share.num_samples, share.num_tokens) == (
                    sum(map(len, own)),
                    LENGTHS[np.concatenate(own).astype(int)].sum(),
                )
                assert (share.sum_scale, share.add_scale) == (world_size / share.num_samples, 1 / share.num_samples)
                assert all(batches), "a micro-batch without samples is none"
        assert number + 1 == length
        assert Counter(seen) == Counter(range(103))
        orders.append(seen)
    assert orders[0] != orders[1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["token_budget", "bins", "pool"]),
    st.sampled_from(["shuffled", "sequential", "length_grouped"]),
    st.integers(1, 3),
)
def test_all_ranks_end_together_whatever_the_data(
    lengths: list[int], world_size: int, batches: int, kind: str, order: str, epochs: int
) -> None:
    policy: dict[str, Any] = {"kind": kind, "batches_per_optimizer_step": batches}
    if kind != "bins":
        policy["max_tokens_for_batch"] = 40
    made = [
        StepLoader(
            range(len(lengths)),
            lengths,
            world=World(rank, world_size),
            policy=policy,
            order=order,
            epochs=epochs,
            collate_fn=list,
        )
        for rank in range(world_size)
    ]
    length, steps = len(made[0]), list(zip(*made, strict=True))
    assert len(steps) == length
    seen = Counter(id for step in steps for own in step for batch in own for id in batch)
    assert seen == Counter({id: epochs for id in range(len(lengths))})


@pytest.mark.parametrize("name", ["balanced in two", "token_budget", "bins", "pool", "packed pool"])
def test_worker_processes_give_the_same_batches(name: str) -> None:
    """Also of one process, and of processes that stay for the next epoch."""
    expected = loader(name)
    epochs = []
    for epoch in range(2):
        expected.set_epoch(epoch)
        epochs.append([(batches, expected.step) for batches in expected])
    for workers, stay in ((1, False), (2, False), (2, True)):
        other = loader(name, num_workers=workers, persistent_workers=stay)
        for epoch in range(2):
            other.set_epoch(epoch)
            assert [(batches, other.step) for batches in other] == epochs[epoch]


def test_workers_end_with_their_loader() -> None:
    """Not when Python looks for cycles, which it may do within a worker that was forked later."""
    made = loader("pool", num_workers=1, persistent_workers=True)
    next(iter(made))
    processes, alive = made._loader._iterator._workers, weakref.ref(made)  # type: ignore[union-attr]
    gc.collect()
    gc.disable()
    try:
        del made
        assert alive() is None
        assert not any(process.is_alive() for process in processes)
    finally:
        gc.enable()


def test_batches_of_torchs_own_loader() -> None:
    """Collated by torch by default; ``__getitems__`` is asked where there is one."""
    data = torch.arange(206.0).reshape(103, 2)
    for batches in StepLoader(data, LENGTHS, world=World(), policy=POLICIES["pool"]):
        assert all(isinstance(batch, torch.Tensor) and batch.shape[1:] == (2,) for batch in batches)

    class Many(Rows):
        def __getitems__(self, ids: list[int]) -> list[tuple[int, torch.Tensor]]:
            return [(-id, torch.zeros(1)) for id in ids]

    plain = [[[-id for id in batch] for batch in batches] for batches in loader("pool")]
    assert list(loader("pool", dataset=Many())) == plain


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", [name for name, policy in POLICIES.items() if "pack" not in name])
def test_samples_are_filled_up_to_the_longest_of_their_micro_batch(name: str, workers: int) -> None:
    """torch's own collation refuses rows of unlike lengths, so that one length too few or many cannot pass."""
    made = loader(name, collate_fn=None, sample_padding_fn=fill_up, num_workers=workers)
    for batches in made:
        for ids, tokens in batches:
            lengths = LENGTHS[ids.tolist()]
            assert tokens.shape == (len(ids), lengths.max())
            assert (tokens == ids[:, None] + 1).sum(1).tolist() == lengths.tolist()
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(loader(name, collate_fn=None))


def test_one_shape_for_all_micro_batches_of_a_step() -> None:
    policy = {
        "kind": "token_budget",
        "max_tokens_for_batch": BUDGET,
        "same_shape": True,
        "batches_per_optimizer_step": 2,
    }
    ranks = [loader("pool", rank, policy=policy, collate_fn=None, sample_padding_fn=fill_up) for rank in range(2)]
    own = []
    for step in zip(*ranks, strict=True):
        shapes = [tuple(tokens.shape) for batches in step for _, tokens in batches]
        assert len({length for _, length in shapes}) == 1
        own += [LENGTHS[ids.tolist()].max() for batches in step for ids, _ in batches]
    assert len(set(own)) > 1, "without the shared length they would differ"
    with pytest.raises(ConfigError, match="same_shape pads all micro-batches"):
        loader("pool", policy=policy)


@pytest.mark.parametrize("name", ["packed", "packed pool"])
def test_packed_samples_come_to_collate_fn_as_they_are(name: str) -> None:
    for batches in loader(name, collate_fn=list):
        for samples in batches:
            assert [len(tokens) for _, tokens in samples] == LENGTHS[ids_of(samples)].tolist()
    with pytest.raises(ConfigError, match="packed rows have no padding, so sample_padding_fn has nothing to do"):
        loader(name, sample_padding_fn=fill_up)


def test_a_strategy_under_packing_is_said_to_be_ignored_once() -> None:
    policy = {**POLICIES["packed pool"], "strategy": "prefer_first"}
    with pytest.warns(UserWarning, match="strategy is ignored") as caught:
        made = loader("pool", policy=policy)
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(made) == list(loader("packed pool"))
        loader("pool", policy={**POLICIES["pool"], "strategy": "prefer_first"})


def test_pin_memory_and_other_options_reach_torchs_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Noted(DataLoader[Any]):
        def __init__(self, *args: Any, **options: Any) -> None:
            given.update(options)
            super().__init__(*args, **options)

    monkeypatch.setattr("ddpsched.integrations.step_loader.DataLoader", Noted)
    made = loader("pool", pin_memory=True, num_workers=2, prefetch_factor=4, timeout=60)
    assert {key: given[key] for key in ("pin_memory", "num_workers", "prefetch_factor", "timeout")} == {
        "pin_memory": True, "num_workers": 2, "prefetch_factor": 4, "timeout": 60,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, where there is no device to pin memory for
        assert list(made) == list(loader("pool"))


def test_steps_and_epochs_of_an_iteration() -> None:
    """max_num_steps counts optimizer steps, whatever micro-batches they have and epochs they take."""
    policy = {**POLICIES["pool"], "batches_per_optimizer_step": 4}
    made = loader("pool", policy=policy, world_size=1, max_num_steps=20)
    epoch = len(loader("pool", policy=policy, world_size=1))
    lists = list(made)
    assert len(lists) == len(made) == 20 > epoch > 1
    whole = [len(batches) for batches in lists]
    assert whole.count(4) >= 20 - 20 // epoch - 1, "only an epoch's last step may have fewer"
    ended = loader("pool", policy=policy, world_size=1, max_num_steps=20, infinite_loop=False)
    assert len(list(ended)) == len(ended) == epoch
    by_epochs = loader("pool", policy=policy, world_size=1, epochs=2)
    got = list(by_epochs)
    assert len(got) == len(by_epochs)
    assert got == lists[: len(got)]
    assert got[:epoch] == list(loader("pool", policy=policy, world_size=1))
    static = loader("static", max_num_steps=20)
    assert len(list(static)) == len(static) == 20
    assert len(list(loader("static", max_num_steps=20, infinite_loop=False))) == 7
    counted = loader("static", max_num_steps=np.int64(3))
    counted.skip_batches(np.int64(1))
    assert len(list(counted)) == 2, "numpy's integers are integers"
    with pytest.raises(ConfigError, match="infinite_loop=False ends after one epoch, but epochs = 2"):
        loader("pool", epochs=2, infinite_loop=False)
    with pytest.raises(ConfigError, match="ends after one epoch, but epochs = 2"):
        loader("pool", policy={**policy, "infinite_loop": False}, world_size=1, epochs=2)
    with pytest.raises(ConfigError, match=r"policy\.kind = 'pol'.*'static'"):
        loader("pool", policy={"kind": "pol"})


def test_a_thousand_steps_of_four() -> None:
    policy = {"kind": "pool", "max_tokens_for_batch": 8, "pool_size": 8, "batches_per_optimizer_step": 4}
    made = StepLoader(range(64), [4] * 64, world=World(1, 2), policy=policy, max_num_steps=1000, collate_fn=list)
    counts = [len(batches) for batches in made]
    assert (len(counts), sum(counts)) == (1000, 4000)


def test_an_empty_list_and_what_stands_in_for_it() -> None:
    policy = {"kind": "token_budget", "max_tokens_for_batch": 6}
    lists = [
        list(StepLoader(range(3), [6, 6, 2], world=World(rank, 2), policy=policy, order="sequential", collate_fn=list))
        for rank in range(2)
    ]
    assert lists == [[[[0]], [[2]]], [[[1]], []]]
    made = StepLoader(
        ["aaaaaa", "bbbbbb", "cc"], [6, 6, 2], world=World(1, 2), policy=policy, collate_fn=list,
        sample_padding_fn=lambda text, length: text.ljust(length, "."),
    )  # fmt: skip
    assert made.stand_in() == ["cc"]


def test_skipped_steps_load_nothing_and_count() -> None:
    whole = list(loader("pool", max_num_steps=20))
    data = Rows()
    made = loader("pool", dataset=data, max_num_steps=20)
    made.skip_batches(7)
    made.skip_batches(2)
    assert (data.asked, made.first_step, len(made)) == ([], 9, 20)
    made.set_epoch(0)  # as loops over epochs do
    rest = list(made)
    assert rest == whole[9:]
    assert data.asked == [id for batches in rest for batch in batches for id in batch]
    assert made.step is not None
    assert made.step.step == 19
    made.set_epoch(0)
    assert list(made) == whole, "skipped once"
    made.set_epoch(0)
    made.skip_batches(21)
    with pytest.raises(ConfigError, match=r"skip_batches\(21\): only 20 optimizer steps are left"):
        list(made)
    made = loader("pool", max_num_steps=20)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="give a number of optimizer steps"):
            made.skip_batches(wrong)  # type: ignore[arg-type]
    made.skip_batches(20)
    assert list(made) == []


def test_plans_are_those_of_the_next_iteration() -> None:
    made = loader("bins")
    made.skip_batches(2)
    planned = [[micro.ids.tolist() for micro in plan.ranks[0]] for plan in made.plans()]
    assert planned == list(made)


def test_an_iteration_left_early_begins_anew() -> None:
    made = loader("pool", num_workers=2)
    whole = list(made)
    made.set_epoch(0)
    assert list(islice(made, 2)) == whole[:2]
    assert list(made) == whole


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_num_steps": 3, "epochs": 1}, "max_num_steps = 3 and epochs = 1: give one of the two"),
        ({"max_num_steps": 0}, "max_num_steps: got 0; needs an integer of 1 or more"),
        ({"epochs": 1.5}, "epochs: got 1.5; needs an integer of 1 or more"),
        ({"dataset": Stream()}, "Stream has no samples by id; use ddpsched.PoolStream"),
        ({"dataset": iter([])}, "list_iterator has no samples by id"),
        ({"batch_size": 8, "shuffle": True}, "batch_size, shuffle: the policy decides"),
        ({"global_batch": 16}, "global_batch = 16, but policy 'pool' fills"),
        ({"policy": "balanced"}, "policy 'balanced' needs global_batch"),
        ({"policy": {"kind": "pool", "strategy": "best"}}, "StepLoader: policy.strategy = 'best'"),
        ({"order": "random"}, "StepLoader: order.kind = 'random'"),
        ({"policy": {"kind": "token_budget", "max_tokens_for_batch": [9, 9]}}, "bounds two parts of a sample"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loader("pool", **changes)


def test_data_that_does_not_fit() -> None:
    with pytest.raises(DataError, match="the data set has 103 samples, but there are 102 lengths"):
        loader("pool", dataset=Rows(), lengths=LENGTHS[1:])
    with pytest.raises(DataError, match=r"lengths\[1\] = 0"):
        StepLoader(range(2), [3, 0], world=World(), policy="pool")
    with pytest.raises(ConfigError, match="2 of 3 samples are longer"):
        list(StepLoader(range(3), [3, 9, 9], world=World(), policy={"kind": "token_budget", "max_tokens_for_batch": 8}))


def test_samples_over_a_pools_budget_run_alone_and_are_counted() -> None:
    lengths = [5, 40, 6, 60, 7]
    pool = StepLoader(
        range(5), lengths, world=World(0, 1), policy={"kind": "pool", "max_tokens_for_batch": 30}, collate_fn=list
    )
    batches = [batch for step in pool for batch in step]
    assert pool.over_budget == 2
    assert all([long] in batches for long in (1, 3))
    assert StepLoader(range(5), lengths, world=World(0, 1), policy="static", global_batch=2).over_budget == 0
