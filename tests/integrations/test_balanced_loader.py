"""balanced(loader): another DataLoader's samples, batches and epochs, by a plan."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import ddpsched
from ddpsched.errors import ConfigError, DataError

LENGTHS = np.random.default_rng(0).integers(1, 40, 50).tolist()
DATA = [torch.full((length,), number) for number, length in enumerate(LENGTHS)]


def ids(samples: list[torch.Tensor]) -> list[int]:
    return [int(sample[0]) for sample in samples]


def loader(**more: Any) -> DataLoader[Any]:
    return DataLoader(DATA, collate_fn=ids, **{"batch_size": 8, "shuffle": True, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_once_an_epoch_in_another_order(workers: int) -> None:
    steps = ddpsched.balanced(loader(num_workers=workers))
    epochs = [[(batch, steps.scale) for batch in steps] for _ in range(2)]
    for epoch in epochs:
        assert len(epoch) == len(steps) == 7
        assert sorted(id for batch, _ in epoch for id in batch) == list(range(50))
        assert all(scale == 1 / len(batch) for batch, scale in epoch)
    assert epochs[0] != epochs[1]


def test_what_the_loader_said_holds_on() -> None:
    assert sorted(next(iter(ddpsched.balanced(loader(shuffle=False))))) == list(range(8))
    assert len(ddpsched.balanced(loader(), global_batch=10)) == 5
    counted = ddpsched.balanced(loader(), count=lambda batch: 4 * len(batch))
    assert all(counted.scale == 1 / (4 * len(batch)) for batch in counted)


def test_the_epochs_of_a_distributed_sampler() -> None:
    def steps() -> tuple[DistributedSampler[Any], Any]:
        sampler = DistributedSampler(DATA, num_replicas=1, rank=0, seed=4)  # type: ignore[arg-type]
        return sampler, ddpsched.balanced(loader(sampler=sampler, shuffle=None))

    sampler, one = steps()
    epochs = [list(one) for _ in range(3)]
    sampler, other = steps()
    for epoch in (1, 2, 0):
        sampler.set_epoch(epoch)
        assert list(other) == epochs[epoch]


def test_a_state_goes_on() -> None:
    steps = ddpsched.balanced(loader())
    whole = list(steps)
    steps.set_epoch(0)
    first = [next(iter(steps))]
    rest = ddpsched.balanced(loader())
    rest.load_state_dict(steps.state_dict())
    assert first + list(rest) == whole


def first_of(steps: Any, named: Any, epoch: int) -> Any:
    named.set_epoch(epoch)
    return next(iter(steps))


@pytest.mark.parametrize("by", ["loader", "sampler"])
def test_a_loop_goes_on_in_the_epoch_of_its_state(by: str) -> None:
    """The epoch is named to the loader or to its sampler: both mean the same, before and after a state is loaded."""

    def made() -> tuple[Any, Any]:
        sampler = DistributedSampler(DATA, num_replicas=1, rank=0)  # type: ignore[arg-type]
        steps = ddpsched.balanced(loader(sampler=sampler, shuffle=None))
        return steps, steps if by == "loader" else sampler

    steps, named = made()
    whole = [(epoch, batch) for epoch in range(3) if named.set_epoch(epoch) is None for batch in steps]
    for stop in (1, 6, 7, 10, 14, 20):
        steps, named = made()
        ran, first = [], steps.epoch
        for epoch in range(first, 3):
            named.set_epoch(epoch)
            for batch in steps:
                ran.append((epoch, batch))
                if len(ran) == stop:
                    break
            if len(ran) == stop:
                break
        again, named = made()
        again.load_state_dict(steps.state_dict())
        for epoch in range(again.epoch, 3):
            named.set_epoch(epoch)
            ran += [(epoch, batch) for batch in again]
        assert ran == whole
        again, named = made()
        again.load_state_dict(steps.state_dict())
        if again.epoch:
            with pytest.warns(UserWarning, match=r"set_epoch\(0\) drops the loaded position, step .* of epoch "):
                assert first_of(again, named, 0) == whole[0][1]
            assert list(again) == [batch for epoch, batch in whole if not epoch]


def test_an_epoch_that_is_over_is_left_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    steps, again = ddpsched.balanced(loader()), ddpsched.balanced(loader())
    batches = iter(steps)
    first = [next(batches) for _ in range(len(steps))]
    again.load_state_dict(steps.state_dict())
    again.set_epoch(1)
    assert not [each for each in recwarn if "set_epoch" in str(each.message)]
    assert sorted(id for batch in again for id in batch) == sorted(id for batch in first for id in batch)


class Reversed(SequentialSampler):
    def __iter__(self) -> Any:
        return iter(range(len(DATA) - 1, -1, -1))


class Halved(DistributedSampler[Any]):
    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch // 2)


def test_drop_last_and_the_generator_are_the_loaders() -> None:
    torchs = loader(drop_last=True)
    steps = ddpsched.balanced(torchs)
    assert [len(batch) for batch in steps] == [8] * len(torchs) == [8] * 6
    few = ddpsched.balanced(DataLoader(DATA[:5], 8, drop_last=True, collate_fn=ids))  # type: ignore[arg-type]
    assert list(few) == []

    def order(seed: int | None) -> list[list[int]]:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return list(ddpsched.balanced(loader(generator=generator)))

    assert order(1) == order(1) != order(2)
    assert order(None) == order(None)


def test_a_policy_that_fills_its_batches() -> None:
    steps = ddpsched.balanced(loader(), policy={"kind": "token_budget", "max_tokens_for_batch": 120})
    assert sorted(id for batch in steps for id in batch) == list(range(50))


def test_a_scale_that_nobody_reads_is_named(recwarn: pytest.WarningsRecorder) -> None:
    steps = ddpsched.balanced(loader())
    for _ in steps:
        assert steps.scale
    assert not [each for each in recwarn if "loader.scale" in str(each.message)]
    with pytest.warns(UserWarning, match=r"loader\.scale was not read, so ranks may weigh samples unequally"):
        list(ddpsched.balanced(loader()))


def test_it_is_scaled_and_recorded_as_it_is(tmp_path: Path) -> None:
    steps = ddpsched.balanced(loader())
    assert ddpsched.scaled(steps) is steps.steps
    with pytest.raises(ConfigError, match=r"give balanced\(loader, count=\.\.\.\)"):
        ddpsched.scaled(steps, len)
    with ddpsched.Recorder(tmp_path / "mine" / "run", steps) as recorder:
        assert [scale == 1 / len(batch) for batch, scale in recorder] == [True] * 7


def test_lengths_that_are_not_found_are_given() -> None:
    with pytest.raises(DataError, match=r"then give balanced\(loader, ddpsched\.lengths\(data, column\)\)"):
        ddpsched.balanced(DataLoader([{"x": [1, 2], "y": 1}], 1))  # type: ignore[arg-type]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(DATA)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (lambda: [1], "list is no torch DataLoader"),
        (lambda: ddpsched.StepLoader(DATA, LENGTHS, global_batch=8), "a StepLoader is planned already; iterate ddp"),
        (lambda: ddpsched.balanced(loader()), "a BalancedLoader is planned already"),
        (lambda: DataLoader(Stream(), batch_size=4), r"Stream has no samples by id; use ddpsched\.StreamScheduler"),
        (lambda: loader(sampler=WeightedRandomSampler([1.0] * 50, 50), shuffle=None), "WeightedRandomSampler chooses"),
        (lambda: loader(sampler=Reversed(DATA), shuffle=None), "Reversed chooses samples in a way of its own"),
        (lambda: loader(sampler=Halved(DATA, 1, 0), shuffle=None), "Halved chooses samples in a way of its own"),  # type: ignore[arg-type]
        (
            lambda: loader(sampler=RandomSampler(DATA, num_samples=20), shuffle=None),
            "RandomSampler takes 20 samples",
        ),
        (lambda: loader(sampler=SequentialSampler(range(20)), shuffle=None), "SequentialSampler takes 20 samples"),
        (lambda: DataLoader(DATA, batch_sampler=[[1, 2]]), "list chooses samples"),  # type: ignore[arg-type]
        (lambda: DataLoader(DATA, batch_size=None), "batch_size=None yields samples one by one; give"),  # type: ignore[arg-type]
        (
            lambda: loader(sampler=DistributedSampler(DATA, num_replicas=3, rank=1), shuffle=None),  # type: ignore[arg-type]
            "rank 1 of num_replicas = 3, but this process is rank 0 of 1",
        ),
    ],
)
def test_refused(given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        next(iter(ddpsched.balanced(given())))  # the number of ranks counts once it is iterated


def on_rank() -> list[tuple[list[int], float]]:
    dist.init_process_group("gloo")
    steps = ddpsched.balanced(loader(sampler=DistributedSampler(DATA), shuffle=None))  # type: ignore[arg-type]
    found = [(batch, steps.scale) for batch in steps]
    dist.barrier()  # rank 0 holds the store, which the other may still be asking
    return found


def test_ranks_share_each_global_batch() -> None:
    ranks = run_ranks(on_rank, 2)
    assert sorted(id for rank in ranks for batch, scale in rank if scale for id in batch) == list(range(50))
    for (one, scale), (other, _) in zip(*ranks, strict=True):
        assert scale == 2 / len(one + other)
    assert max(len(one + other) for (one, _), (other, _) in zip(*ranks, strict=True)) == 16


def test_lengths_are_one_for_each_sample() -> None:
    given: Any = DataLoader(range(50), 4)  # type: ignore[arg-type,var-annotated]
    with pytest.raises(DataError, match="the data set has 50 samples, but there are 49 lengths"):
        ddpsched.balanced(given, [3] * 49)
    with pytest.raises(DataError, match=r"a DataLoader is no list of lengths; give ddpsched.lengths\(dataset\)"):
        ddpsched.balanced(given, DataLoader([{"input_ids": 1}]))  # type: ignore[arg-type]
    sampler = ddpsched.BatchSampler([3] * 49, global_batch=4)
    with pytest.raises(DataError, match="the data set has 50 samples, but there are 49 lengths"):
        next(iter(DataLoader(range(50), batch_sampler=sampler)))  # type: ignore[arg-type]
