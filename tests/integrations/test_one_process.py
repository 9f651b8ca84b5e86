"""Loaders that keep a position beside the sampler's, in one process."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, StepLoader, World, scaled
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError

LENGTHS = sst2_lengths(49, np.random.default_rng(0))
DATA: Any = range(49)


def sampler() -> BatchSampler:
    return BatchSampler(LENGTHS, global_batch=16, world=World(0, 1), seed=8)


def epochs(number: int) -> list[list[list[int]]]:
    """Return the lists of the first epochs."""
    made = sampler()
    return [list(made) for _ in range(number)]


def run(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("done", [0, 2])
def test_accelerate_goes_on_where_a_state_was_loaded(done: int, stateful: bool) -> None:
    """accelerate's loaders set the epoch from a count of iterations, which is 0 in a new process."""
    accelerate = pytest.importorskip("accelerate")
    settings = accelerate.DataLoaderConfiguration(use_stateful_dataloader=stateful)
    prepare = accelerate.Accelerator(cpu=True, dataloader_config=settings).prepare
    taken, right = sampler(), epochs(5)
    taken.set_epoch(2)
    list(islice(taken, done))
    for wrap in (run, lambda loader: [batch.tolist() for batch, _ in scaled(loader)]):
        made = sampler()
        loader = prepare(DataLoader(DATA, batch_sampler=made))
        made.load_state_dict(taken.state_dict())
        assert [wrap(loader) for _ in range(2)] == [right[2][done:], right[3]]
        made.set_epoch(1)
        assert wrap(loader) == right[1]
        loader.set_epoch(4)
        assert wrap(loader) == right[4]


def test_accelerates_own_state_within_a_later_epoch() -> None:
    accelerate = pytest.importorskip("accelerate")
    settings = accelerate.DataLoaderConfiguration(use_stateful_dataloader=True)
    prepare = accelerate.Accelerator(cpu=True, dataloader_config=settings).prepare
    loader, right = prepare(DataLoader(DATA, batch_sampler=sampler())), epochs(3)
    run(loader)
    first = [batch.tolist() for batch in islice(loader, 1)]
    state = loader.state_dict()
    resumed = prepare(DataLoader(DATA, batch_sampler=sampler()))
    resumed.load_state_dict(state)
    assert [first + run(resumed), run(resumed)] == right[1:]


@pytest.mark.parametrize("kind", ["sampler", "StepLoader"])
def test_a_look_within_the_loop_of_persistent_workers_is_refused(kind: str) -> None:
    workers: Any = {"num_workers": 1, "persistent_workers": True}
    if kind == "sampler":
        loader: Any = DataLoader(
            DATA, batch_sampler=BatchSampler(LENGTHS, global_batch=4, world=World(1, 2)), **workers
        )
    else:
        loader = StepLoader(DATA, LENGTHS, world=World(1, 2), global_batch=4, **workers)
    steps = iter(scaled(loader))
    list(islice(steps, 3))
    next(iter(loader))
    with pytest.raises(ConfigError, match=r"iterated anew within this loop. With persistent_workers=True"):
        next(steps)
    assert len(list(scaled(loader))) == len(loader), "another loop is as any"
