"""Each batch is paired with the scale of its step, whatever loader lies between; states follow what was yielded."""

import json
import pickle
from copy import deepcopy
from itertools import islice
from typing import Any

import pytest
import torch
from scaled_loaders import EPOCHS, LENGTHS, POLICIES, SIZE, Pair, epochs_of, pairs, plain, sampler, stateful
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, World, scaled
from ddpsched.errors import ConfigError


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("make", [plain, stateful])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_with_the_scale_of_their_step(name: str, make: Any, workers: int) -> None:
    """Two epochs run without set_epoch; the last step of one is short of samples for some rank."""
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
    """The state of a plain loader with workers ahead equals rank 0's."""
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
    """Return the batches after loading the state of an epoch that has ended."""
    steps = scaled(plain(sampler(name), workers))
    list(steps)
    resumed = scaled(plain(sampler(name), workers))
    resumed.load_state_dict(steps.state_dict())
    return list(pairs(resumed))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("workers", "every"), [(0, 1), pytest.param(2, 1, marks=pytest.mark.slow), (2, 3)])
def test_torchdatas_loader_resumes_at_every_step(name: str, workers: int, every: int) -> None:
    """The documented loop keeps the loader's state; between snapshots it skips over lists again."""
    epochs = epochs_of(name)
    for done in range(len(epochs[0])):
        first = stateful(sampler(name), workers, every)
        got = list(pairs(islice(scaled(first), done)))
        resumed = stateful(sampler(name), workers, every)
        resumed.load_state_dict(first.state_dict())
        assert got + list(pairs(scaled(resumed))) == epochs[0]


def test_the_loader_of_the_former_docstring_has_no_first_step() -> None:
    """A loader that loads its state as it begins informs its sampler too late; scaled handles that."""
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
    """A look into a fresh loader, or into one with a loaded state, changes neither."""
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
    """An inner loop looks at batches of the same loader; the outer one keeps its scales and states."""
    steps, epochs = scaled(plain(sampler(), workers)), epochs_of("balanced")
    got = []
    for number, pair in enumerate(pairs(steps)):
        got.append(pair)
        state = steps.state_dict()
        if number == 3:
            assert list(pairs(islice(scaled(steps.loader), inner))) == epochs[0][:inner]
            assert steps.state_dict() == state
    assert got == epochs[0]
    assert state["position"]["step"] == 7
    assert list(pairs(steps)) == epochs[1]


def test_states_and_epochs_named_before_the_first_batch() -> None:
    """torchdata's loader begins its iterator to return a state; set_epoch then changes nothing."""
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
    """Another scaled does not know what the loop has received, so it refuses where workers are ahead."""
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
    """Accelerate's loader holds one batch back, and sets the epochs itself."""
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
