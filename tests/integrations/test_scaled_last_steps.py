"""Scales of last steps, of loaders of several micro-batches, and of loaders that do not yield a sampler's lists."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from scaled_loaders import LENGTHS, SIZE, sampler
from torch.utils.data import DataLoader, Sampler

from ddpsched import BatchSampler, PoolStream, StepLoader, World, scaled
from ddpsched.errors import ConfigError


@pytest.mark.parametrize("name", ["balanced", "static"])
@pytest.mark.parametrize("lookahead", [1, 4])
@pytest.mark.parametrize("size", [17, 90, 96, 97, 99])
def test_the_last_step_of_an_epoch(name: str, lookahead: int, size: int) -> None:
    """Under each ``last`` every list has samples, the weights give the mean, and at most G - 1 samples are dropped."""
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
            ids_with_weight = [id for ids, scale in step for id in ids if scale]
            assert weights == {4 / len(ids_with_weight)}
            seen.update(ids_with_weight)
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
    with pytest.raises(ConfigError, match=f"last = '{last}' is for policies whose steps are the next samples"):
        sampler(name, last=last)
    with pytest.raises(ConfigError, match="last = 'none'; it is one of 'smaller', 'join', 'drop'"):
        sampler(name, last="none")


def test_fewer_samples_than_ranks() -> None:
    """The only step is the smaller one, as there is no other to join."""
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
            ([micro.ids.tolist() for micro in plan.ranks[rank]], 4 / plan.global_batch)
            if plan.ranks[rank]
            else ([loader.stand_in()], 0.0)
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
    """Yields every second list."""

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
