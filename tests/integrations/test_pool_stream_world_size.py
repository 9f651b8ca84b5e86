"""A pool stream goes on with another number of ranks: each sample once an epoch, whatever was read ahead."""

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_streams import KINDS, Rows, Stateful
from ranks import run_ranks

from ddpsched import PoolStream, World, for_world_size
from ddpsched.errors import ConfigError
from ddpsched.integrations.agree import sum_over_ranks

LENGTHS = [1 + (7 * i) % 23 for i in range(61)]
Tagged = tuple[int, int, int]  # epoch, number, length


class Shard:
    """Every world.size-th sample of an epoch's order, each with its epoch."""

    def __init__(self, world: World, rows: type[Rows] = Rows) -> None:
        self.world, self.rows = world, rows(LENGTHS)

    def set_epoch(self, epoch: int) -> None:
        self.rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[Tagged]:
        for place, (number, length) in enumerate(self.rows):
            if place % self.world.size == self.world.rank:
                yield self.rows.epoch, number, length


class StatefulShard(Shard):
    """The same, with a state of its position."""

    def __init__(self, world: World) -> None:
        super().__init__(world, Stateful)

    def state_dict(self) -> dict[str, Any]:
        return self.rows.state_dict()  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows.load_state_dict(state)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Tagged]:
        begin = self.rows.begin  # type: ignore[attr-defined]
        for place, (number, length) in enumerate(self.rows, begin):
            if place % self.world.size == self.world.rank:
                yield self.rows.epoch, number, length


def ranks_of(size: int, kind: str, infinite: bool, shard: type[Shard] = Shard) -> list[PoolStream]:
    policy = {
        "kind": "pool",
        "pool_size": 7,
        "max_tokens_for_batch": 40,
        "batches_per_optimizer_step": 2,
        **KINDS[kind],
    }
    return [
        PoolStream(
            shard, lambda sample: sample[2], world=World(rank, size), policy=policy, infinite_loop=infinite,
            agree=lambda count: True,
        )
        for rank in range(size)
    ]  # fmt: skip


def take(lists: list[Iterator[Any]]) -> list[Tagged]:
    """Return the samples of the next step of all ranks; none where the epoch has ended everywhere."""
    return [sample for each in lists for micro in next(each) for sample in micro]


def run(sizes: list[int], cuts: list[int], kind: str, infinite: bool, shard: type[Shard] = Shard) -> Counter[Tagged]:
    """Return how often each sample came; after ``cuts[i]`` steps the next number of ranks goes on.

    A finite stream runs to the epoch's end, an infinite one until each sample of its first epoch must have come.
    """
    seen: Counter[Tagged] = Counter()
    states: list[dict[str, Any]] = []
    for size, cut in zip(sizes, [*cuts, None], strict=True):
        ranks = ranks_of(size, kind, infinite, shard)
        for rank, state in zip(ranks, for_world_size(states, size) if states else [], strict=bool(states)):
            rank.load_state_dict(state)
        lists = [iter(rank) for rank in ranks]
        for _ in range(200 if cut is None else cut):
            samples = take(lists)
            seen.update(samples)
            if not samples:
                break
        states = pickle.loads(pickle.dumps([rank.state_dict() for rank in ranks]))
    return seen


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    kind=st.sampled_from(sorted(KINDS)),
    shard=st.sampled_from([Shard, StatefulShard]),
    infinite=st.booleans(),
    data=st.data(),
)
def test_each_sample_comes_once_an_epoch(
    sizes: list[int], kind: str, shard: type[Shard], infinite: bool, data: st.DataObject
) -> None:
    cuts = [data.draw(st.integers(0, 8)) for _ in sizes[1:]]
    seen = run(sizes, cuts, kind, infinite, shard)
    assert set(seen.values()) == {1}
    epochs = Counter(epoch for epoch, _, _ in seen)
    assert epochs[0] == len(LENGTHS)
    if infinite:
        assert all(epochs[epoch] == len(LENGTHS) for epoch in range(max(epochs) // 2))
    else:
        assert set(epochs) == {0}


def test_the_next_epoch_is_cut_for_the_new_ranks() -> None:
    first = ranks_of(2, "prefer_first", infinite=False)
    lists = [iter(rank) for rank in first]
    seen = Counter(take(lists))
    ranks = ranks_of(3, "prefer_first", infinite=False)
    for rank, state in zip(ranks, for_world_size([each.state_dict() for each in first], 3), strict=True):
        rank.load_state_dict(state)
    for epoch in range(2):
        for rank in ranks:
            rank.set_epoch(epoch)
            rank._agree = lambda count: count > 0  # each ends by itself
        seen.update(sample for rank in ranks for step in rank for micro in step for sample in micro)
    assert Counter(seen.values()) == {1: 2 * len(LENGTHS)}


def test_a_state_dropped_is_noticed() -> None:
    """Were a rank's state left out, its waiting samples and the rest of its shard would be lost."""
    first = ranks_of(3, "prefer_first", infinite=True)
    lists = [iter(rank) for rank in first]
    take(lists)
    states = [rank.state_dict() for rank in first]
    with pytest.raises(ConfigError, match=r"states of ranks \[0, 2\], needs those of all 3 ranks"):
        for_world_size([states[0], states[2]], 2)
    next(lists[1])
    with pytest.raises(ConfigError, match="after the same step"):
        for_world_size([states[0], first[1].state_dict(), states[2]], 2)


def test_a_plain_iterable_cannot_go_on_within_an_epoch() -> None:
    first = ranks_of(2, "prefer_first", infinite=True)
    take([iter(rank) for rank in first])
    states = for_world_size([rank.state_dict() for rank in first], 1)
    policy = {key: first[0].policy.model_dump()[key] for key in ("kind", "pool_size", "max_tokens_for_batch")}
    one = PoolStream(
        Shard(World()), lambda sample: sample[2], world=World(),
        policy={**policy, "batches_per_optimizer_step": 2, **KINDS["prefer_first"]}, agree=lambda count: True,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"give as iterable a function"):
        one.load_state_dict(states[0])


def rank_body(states: list[dict[str, Any]] | None, steps: int | None) -> tuple[dict[str, Any], list[Tagged]]:
    policy = {"kind": "pool", "pool_size": 7, "max_tokens_for_batch": 40}
    stream = PoolStream(Shard, lambda sample: sample[2], policy=policy, infinite_loop=False, agree=sum_over_ranks)
    if states is not None:
        stream.load_state_dict(states[stream.world.rank])
    seen: list[Tagged] = []
    for done, batches in enumerate(stream, 1):
        seen += [sample for micro in batches for sample in micro]
        if done == steps:
            break
    return stream.state_dict(), seen


def test_real_ranks() -> None:
    first = run_ranks(rank_body, 3, None, 2)
    states = for_world_size([state for state, _ in first], 2)
    second = run_ranks(rank_body, 2, states, None)
    assert Counter(sample for _, seen in first + second for sample in seen) == {
        (0, number, length): 1 for number, length in enumerate(LENGTHS)
    }
