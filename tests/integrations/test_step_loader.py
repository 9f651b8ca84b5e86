"""StepLoader: whole steps through torch's DataLoader, padded and collated as asked, every sample once."""

import gc
import warnings
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from step_loaders import BUDGET, LENGTHS, POLICIES, Rows, fill_up, ids_of, loader
from torch.utils.data import DataLoader

from ddpsched import StepLoader, World
from ddpsched.errors import ConfigError


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
            ids_of_ranks = [[id for batch in batches for id in batch] for batches in step]
            seen += [id for ids in ids_of_ranks for id in ids]
            for rank, ids, batches in zip(ranks, ids_of_ranks, step, strict=True):
                share = rank.step
                assert share is not None
                assert (share.epoch, share.step, share.world_size) == (epoch, number, world_size)
                assert (share.rank_samples, share.rank_microbatches) == (len(ids), len(batches))
                assert share.rank_tokens == LENGTHS[ids].sum()
                assert (share.num_samples, share.num_tokens) == (
                    sum(map(len, ids_of_ranks)),
                    LENGTHS[np.concatenate(ids_of_ranks).astype(int)].sum(),
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
    seen = Counter(id for step in steps for batches in step for batch in batches for id in batch)
    assert seen == Counter({id: epochs for id in range(len(lengths))})


@pytest.mark.parametrize("name", ["balanced in two", "token_budget", "bins", "pool", "packed pool"])
def test_worker_processes_give_the_same_batches(name: str) -> None:
    """One worker, several, and persistent ones give the same batches."""
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
    """They end without Python's cycle collection, which may run within a worker forked later."""
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
    """torch collates by default, and ``__getitems__`` is used if the data set has it."""
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
    """torch's collation refuses unequal rows, so it notices a wrong length."""
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
    longest = []
    for step in zip(*ranks, strict=True):
        shapes = [tuple(tokens.shape) for batches in step for _, tokens in batches]
        assert len({length for _, length in shapes}) == 1
        longest += [LENGTHS[ids.tolist()].max() for batches in step for ids, _ in batches]
    assert len(set(longest)) > 1, "without the shared length they would differ"
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
