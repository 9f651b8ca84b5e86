"""Every batch beside the scale of its own step, whatever loader lies between; states of what was yielded."""

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from ddpsched import BatchSampler, PoolStream, StepLoader, World, scaled
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError

SIZE = 99  # of 16 a step, 3 samples are left for 4 ranks
LENGTHS = sst2_lengths(SIZE, np.random.default_rng(0))
POLICIES: dict[str, Any] = {
    "balanced": "balanced",
    "minmax": "minmax",
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 16 * 12},
}
EPOCHS = 2


def sampler(name: str = "balanced", rank: int = 3, **changes: Any) -> BatchSampler:
    batch = None if name == "token_budget" else 16
    return BatchSampler(
        LENGTHS, global_batch=batch, world=World(rank, 4), policy=POLICIES[name], **{"seed": 5, **changes}
    )


def plain(made: BatchSampler, workers: int) -> Any:
    return DataLoader(torch.arange(SIZE), batch_sampler=made, num_workers=workers)


def stateful(made: BatchSampler, workers: int, every: int = 1) -> Any:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    return loaders.StatefulDataLoader(
        torch.arange(SIZE), batch_sampler=made, num_workers=workers, snapshot_every_n_steps=every
    )


Pair = tuple[tuple[int, ...], float]


def pairs(steps: Any) -> Iterator[Pair]:
    for batch, scale in steps:
        yield tuple(batch.tolist() if isinstance(batch, torch.Tensor) else batch), scale


def epochs_of(name: str, rank: int = 3, **changes: Any) -> list[list[Pair]]:
    """Of each epoch, from its plans: what the rank runs, and G / B; a stand-in and 0 where it has nothing."""
    found = []
    for epoch in range(EPOCHS):
        made = sampler(name, rank, **changes)
        made.set_epoch(epoch)
        own = [(plan.rank_ids(rank).tolist(), 4 / plan.global_batch) for plan in made.plans()]
        found.append([(tuple(ids), scale) if ids else ((int(LENGTHS.argmin()),), 0.0) for ids, scale in own])
    return found


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("make", [plain, stateful])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_with_the_scale_of_their_step(name: str, make: Any, workers: int) -> None:
    """Through two epochs that nobody names; the last step of one is short of samples for some rank."""
    for rank in (0, 3):
        steps = scaled(make(sampler(name, rank), workers))
        assert [list(pairs(steps)) for _ in range(EPOCHS)] == epochs_of(name, rank)
        assert steps.step is not None
        assert steps.step.epoch == EPOCHS - 1
    zeros = [sum(scale == 0 for epoch in epochs_of(name, rank) for _, scale in epoch) for rank in range(4)]
    assert sum(zeros) > 0, "stand-ins are among them"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_what_was_yielded_at_every_step(name: str, workers: int) -> None:
    """Of a plain loader, whose workers are ahead; it is rank 0's as well."""
    epochs = epochs_of(name)
    for done in range(len(epochs[0]) + 1):
        steps = scaled(plain(sampler(name), workers))
        got = list(pairs(islice(steps, done)))
        state = json.loads(json.dumps(steps.state_dict()))
        others = scaled(plain(sampler(name, rank=0), 0))
        list(islice(others, done))
        assert state == others.state_dict()
        resumed = scaled(plain(sampler(name), 0))
        resumed.load_state_dict(state)
        assert got + list(pairs(resumed)) == epochs[0]
        assert list(pairs(resumed)) == epochs[1]
    assert pairs_at_end(name, workers) == epochs[1]


def pairs_at_end(name: str, workers: int) -> list[Pair]:
    """What follows the state of an epoch that has ended."""
    steps = scaled(plain(sampler(name), workers))
    list(steps)
    resumed = scaled(plain(sampler(name), workers))
    resumed.load_state_dict(steps.state_dict())
    return list(pairs(resumed))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("workers", "every"), [(0, 1), (2, 1), (2, 3)])
def test_torchdatas_loader_resumes_at_every_step(name: str, workers: int, every: int) -> None:
    """The loop of the docstring with the loader's own state; between two snapshots it passes over lists again."""
    epochs = epochs_of(name)
    for done in range(len(epochs[0])):
        first = stateful(sampler(name), workers, every)
        got = list(pairs(islice(scaled(first), done)))
        resumed = stateful(sampler(name), workers, every)
        resumed.load_state_dict(first.state_dict())
        assert got + list(pairs(scaled(resumed))) == epochs[0]


def test_the_loader_of_the_former_docstring_has_no_first_step() -> None:
    """Why scaled is needed: a loader that loads a state as it begins tells its sampler too late."""
    first = stateful(sampler(), 0)
    list(islice(first, 3))
    resumed = sampler()
    loader = stateful(resumed, 0)
    loader.load_state_dict(first.state_dict())
    assert resumed.first_step == 0
    assert [scale for _, scale in scaled(loader)] == [scale for _, scale in epochs_of("balanced")[0][3:]]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_samplers_own_state_is_refused_while_workers_are_ahead(persistent: bool) -> None:
    made = sampler()
    loader = DataLoader(torch.arange(SIZE), batch_sampler=made, num_workers=2, persistent_workers=persistent)
    made.state_dict()
    for number, _ in enumerate(loader):
        if number == 1:
            with pytest.raises(ConfigError, match=r"has asked for 4 list\(s\) whose.*ddpsched.scaled\(loader"):
                made.state_dict()
    resumed = sampler()
    resumed.load_state_dict(made.state_dict())
    assert [ids for ids, _ in pairs(scaled(resumed))] == [ids for ids, _ in epochs_of("balanced")[1]]
    ahead = stateful(made, 2)
    next(iter(ahead))
    ahead.state_dict()
    with pytest.raises(ConfigError, match="has asked for 4 list"):
        made.state_dict()


def test_persistent_workers_and_a_loop_left_early() -> None:
    made = sampler("minmax")
    steps = scaled(DataLoader(torch.arange(SIZE), batch_sampler=made, num_workers=2, persistent_workers=True))
    epochs = epochs_of("minmax")
    assert list(pairs(islice(steps, 3))) == epochs[0][:3]
    assert list(pairs(steps)) == epochs[0]
    assert list(pairs(steps)) == epochs[1]
    steps.set_epoch(0)
    assert list(pairs(steps)) == epochs[0]


def test_a_look_at_one_batch_changes_nothing() -> None:
    """Of a fresh loader, and of one with a loaded state."""
    epochs = epochs_of("balanced")
    first = scaled(plain(sampler(), 0))
    list(islice(first, 2))
    state = first.state_dict()
    for workers in (0, 2):
        fresh, loaded = plain(sampler(), workers), plain(sampler(), workers)
        scaled(loaded).load_state_dict(state)
        for loader in (fresh, loaded):
            next(iter(loader))
        assert [list(pairs(scaled(fresh))) for _ in range(2)] == epochs
        assert [list(pairs(scaled(loaded))) for _ in range(2)] == [epochs[0][2:], epochs[1]]


def test_an_epoch_that_workers_had_loaded_whole_is_begun_again_by_its_name() -> None:
    made = sampler(order="sequential")
    loader = DataLoader(torch.arange(SIZE), batch_sampler=made, num_workers=2, prefetch_factor=8)
    first = next(iter(loader))
    made.set_epoch(0)
    assert torch.equal(next(iter(loader)), first)
    assert made.first_step == 0
    assert len(list(loader)) == 7
    assert made.state_dict()["position"]["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("inner", [1, 6, None])
def test_a_loop_within_the_loop(workers: int, inner: int | None) -> None:
    """Somebody looks at batches of the same loader: scales and states of the outer loop stay its own."""
    steps, epochs = scaled(plain(sampler(), workers)), epochs_of("balanced")
    got = []
    for number, pair in enumerate(pairs(steps)):
        got.append(pair)
        state = steps.state_dict()
        if number == 3:
            assert list(pairs(islice(scaled(steps._loader), inner))) == epochs[0][:inner]
            assert steps.state_dict() == state
    assert got == epochs[0]
    assert state["position"]["step"] == 7
    assert list(pairs(steps)) == epochs[1]


def test_states_and_epochs_named_before_the_first_batch() -> None:
    """The loader of torchdata begins its iterator to tell a state; naming the epoch then changes nothing."""
    made = sampler()
    loader = stateful(made, 2)
    loader.state_dict()
    made.set_epoch(0)
    assert list(pairs(scaled(loader))) == epochs_of("balanced")[0]
    made.set_epoch(1)
    plain_one = plain(sampler(), 2)
    begun = iter(plain_one)
    plain_one.batch_sampler.set_epoch(0)
    assert [tuple(batch.tolist()) for batch in begun] == [ids for ids, _ in epochs_of("balanced")[0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_another_scaled_takes(workers: int) -> None:
    """It does not know what the loop has got, so it refuses where workers are ahead."""
    made = sampler()
    loader = plain(made, workers)
    for number, _ in enumerate(scaled(loader)):
        if number == 1 and workers:
            with pytest.raises(ConfigError, match="has asked for 4 list"):
                scaled(loader).state_dict()
        elif number == 1:
            assert scaled(loader).state_dict()["position"]["step"] == 2


def test_weights_of_an_epoch_that_is_named() -> None:
    made = sampler("token_budget")
    list(made)
    made.set_epoch(1)
    assert [made.sum_scale(i) for i in range(len(made))] == [scale for _, scale in epochs_of("token_budget")[1]]


def test_copies_begin_where_the_sampler_stands() -> None:
    made, epochs = sampler(), epochs_of("balanced")
    for loader in (plain(made, 0), plain(made, 2)):
        next(iter(loader))
        for copy in (pickle.loads(pickle.dumps(made)), deepcopy(made)):
            assert list(pairs(scaled(copy))) == epochs[0]


def test_the_loader_of_accelerate_for_one_process() -> None:
    """It holds one batch back, and names the epochs itself."""
    accelerate = pytest.importorskip("accelerate")
    made = BatchSampler(LENGTHS, global_batch=16, world=World(0, 1), seed=5)
    expected = BatchSampler(LENGTHS, global_batch=16, world=World(0, 1), seed=5)
    loader = accelerate.Accelerator(cpu=True).prepare(plain(made, 0))
    epochs = [list(pairs(scaled(expected))) for _ in range(EPOCHS)]
    steps = scaled(loader)
    assert list(pairs(steps)) == epochs[0]
    got = list(pairs(islice(steps, 2)))
    with pytest.raises(ConfigError, match="has asked for 1 list"):
        made.state_dict()
    other = accelerate.Accelerator(cpu=True).prepare(
        plain(BatchSampler(LENGTHS, global_batch=16, world=World(0, 1), seed=5), 0)
    )
    scaled(other).load_state_dict(steps.state_dict())
    assert got + list(pairs(scaled(other))) == epochs[1]


@pytest.mark.parametrize("name", ["balanced", "static"])
@pytest.mark.parametrize("lookahead", [1, 4])
@pytest.mark.parametrize("size", [17, 90, 96, 97, 99])
def test_the_last_step_of_an_epoch(name: str, lookahead: int, size: int) -> None:
    """In each way: every list has samples, weights add up to the mean, and what is dropped is at most G - 1 samples."""
    for last in ("smaller", "join", "drop"):
        policy = {"kind": "balanced", "lookahead": lookahead} if name == "balanced" else name
        ranks = [
            BatchSampler(LENGTHS[:size], global_batch=16, world=World(r, 4), policy=policy, last=last) for r in range(4)
        ]
        length = len(ranks[0])
        steps = list(zip(*map(scaled, ranks), strict=True))
        assert len(steps) == length
        seen = Counter[int]()
        for step in steps:
            assert all(ids for ids, _ in step)
            weights = {scale for _, scale in step if scale}
            own = [id for ids, scale in step for id in ids if scale]
            assert weights == {4 / len(own)}
            seen.update(own)
        left = size % 16
        short = 0 < left < 4
        assert len(seen) == size - (left if short and last == "drop" else 0)
        assert set(seen.values()) == {1}
        sizes = [sum(len(ids) for ids, scale in step if scale) for step in steps]
        assert sizes[-1] == {
            "smaller": left or 16, "join": 16 + left if short else left or 16, "drop": 16 if short else left or 16
        }[last]  # fmt: skip
        for done in (len(steps) - 1, len(steps)):
            first = scaled(BatchSampler(LENGTHS[:size], global_batch=16, world=World(1, 4), policy=policy, last=last))
            list(islice(first, done))
            resumed = scaled(BatchSampler(LENGTHS[:size], global_batch=16, world=World(1, 4), policy=policy, last=last))
            resumed.load_state_dict(first.state_dict())
            assert list(resumed) == [step[1] for step in steps[done:]]


@pytest.mark.parametrize("name", ["minmax", "token_budget"])
@pytest.mark.parametrize("last", ["join", "drop"])
def test_last_steps_that_follow_a_rule_of_their_own(name: str, last: str) -> None:
    with pytest.raises(ConfigError, match=f"last = '{last}' is of policies whose steps are the next samples"):
        sampler(name, last=last)
    with pytest.raises(ConfigError, match="last = 'none'; it is one of 'smaller', 'join', 'drop'"):
        sampler(name, last="none")


def test_fewer_samples_than_ranks() -> None:
    """There is nothing to join, and nothing else to run: the only step is the smaller one."""
    for last in ("smaller", "join", "drop"):
        ranks = [BatchSampler([5, 3], global_batch=16, world=World(r, 4), last=last) for r in range(4)]
        assert len(ranks[0]) == 1
        (step,) = zip(*map(scaled, ranks), strict=True)
        assert sorted(ids for ids, scale in step if scale) == [[0], [1]]


def test_step_loaders_and_streams() -> None:
    policy = {"kind": "token_budget", "max_tokens_for_batch": 90, "batches_per_optimizer_step": 2}
    for rank in range(4):
        loader = StepLoader(range(SIZE), LENGTHS, world=World(rank, 4), policy=policy, collate_fn=list)
        plans = list(loader.plans())
        got = list(scaled(loader))
        assert got == [
            ([micro.ids.tolist() for micro in plan.ranks[rank]], 4 / plan.global_batch if plan.ranks[rank] else 0.0)
            for plan in plans
        ]
    steps = scaled(StepLoader(range(SIZE), LENGTHS, world=World(0, 4), policy=policy, collate_fn=list))
    first = list(islice(steps, 2))
    state = steps.state_dict()
    rest = scaled(StepLoader(range(SIZE), LENGTHS, world=World(0, 4), policy=policy, collate_fn=list))
    rest.load_state_dict(state)
    again = scaled(StepLoader(range(SIZE), LENGTHS, world=World(0, 4), policy=policy, collate_fn=list))
    assert first + list(rest) == list(again)
    stream = PoolStream(range(1, 9), int, policy=POOL, infinite_loop=False)
    assert [scale for _, scale in scaled(stream)] == [1 / len(batch) for (batch,) in stream_of(8)]


POOL = {"kind": "pool", "pool_size": 4, "max_tokens_for_batch": 9}


def stream_of(size: int) -> Any:
    return PoolStream(range(1, size + 1), int, policy=POOL, infinite_loop=False)


class Half(Sampler[list[int]]):
    """Every second list."""

    def __init__(self, inner: BatchSampler) -> None:
        self.batch_sampler = inner

    def __iter__(self) -> Iterator[list[int]]:
        return islice(self.batch_sampler, 0, None, 2)


class Skips(DataLoader[Any]):
    def __iter__(self) -> Any:
        return islice(super().__iter__(), 0, None, 2)


def test_loaders_whose_batches_cannot_be_told_apart_are_refused() -> None:
    for loader, words in (
        (DataLoader(torch.arange(SIZE), batch_size=4), r"scaled\(DataLoader over BatchSampler\): its batches are not"),
        (DataLoader(torch.arange(SIZE), batch_sampler=Half(sampler())), "DataLoader over Half"),
        (DataLoader(torch.arange(SIZE), batch_sampler=sampler(), num_workers=1, in_order=False), "in_order=False"),
        ([1, 2], "list over NoneType"),
    ):
        with pytest.raises(ConfigError, match=words):
            scaled(loader)
    with pytest.raises(ConfigError, match=r"scaled\(Skips over BatchSampler\): its batches are not"):
        scaled(Skips(torch.arange(SIZE), batch_sampler=sampler()))
