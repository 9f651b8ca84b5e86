"""Samples of a rank's own shard, after those that another number of ranks had begun to read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddpsched.errors import ConfigError
from ddpsched.integrations.pool_picks import Sample, SampleReader
from ddpsched.planning.policies.pool import BITS, MASK
from ddpsched.world import World


class ShardReader:
    """The rest of the ``shards`` that a loaded state names, one after another, and then ``own``.

    ``reader_of(world)``: a reader of one epoch of the samples that this rank of so many has; None where the samples of
    other worlds cannot be had.
    """

    def __init__(self, own: SampleReader, reader_of: Callable[[World], SampleReader] | None) -> None:
        self._own, self._reader_of = own, reader_of
        self._shards: list[tuple[World, SampleReader]] = []

    @property
    def epoch(self) -> int:
        """The epoch of the sample that comes next."""
        return self._shards[0][1].epoch if self._shards else self._own.epoch

    def read(self) -> Sample | None:
        """Return the next sample and its length; None where the data has ended. Raises as ``SampleReader``."""
        while self._shards:
            if (pair := self._shards[0][1].read()) is not None:
                return pair
            self._shards.pop(0)
        return self._own.read()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in each shard."""
        shards = [
            {"rank": world.rank, "world_size": world.size, "reader": reader.state_dict()}
            for world, reader in self._shards
        ]
        return {**self._own.state_dict(), "shards": shards}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to that position. Raises ConfigError where it needs the samples of other worlds."""
        if state["shards"] and self._reader_of is None:
            raise ConfigError(
                "PoolStream: the state is of another number of ranks, within an epoch; to read on where each of those "
                "stood, give as iterable a function that returns the samples of the rank and world size it is given: "
                "PoolStream(lambda world: ..., ...)"
            )
        shards = []
        for each in state["shards"]:
            world = World(each["rank"], each["world_size"])
            assert self._reader_of is not None
            reader = self._reader_of(world)
            reader.load_state_dict(each["reader"])
            shards.append((world, reader))
        self._own.load_state_dict(state)
        self._shards = shards


def deal_states(states: Sequence[Mapping[str, Any]], world_size: int) -> list[dict[str, Any]]:
    """Return the state of each of ``world_size`` ranks, from those of all ranks of a PoolStream.

    The samples that wait are dealt, the oldest first, and so are the shards that were begun: a rank reads the rest of
    its ones before its own shard of the next epoch. Raises ConfigError where a state is missing, there twice, or after
    another step.
    """
    states = sorted(states, key=lambda state: int(state["rank"]))
    ranks = [state["rank"] for state in states]
    if ranks != list(range(states[0]["world_size"])):
        raise ConfigError(
            f"for_world_size: states of ranks {ranks}, needs those of all {states[0]['world_size']} ranks of a "
            "PoolStream, each once"
        )
    same = [{key: value for key, value in state.items() if key not in OWN} for state in states]
    for rank, each in enumerate(same):
        if each != same[0]:
            raise ConfigError(
                f"for_world_size: the states of ranks 0 and {rank} are of other streams or steps ({same[0]} and "
                f"{each}); take all of them after the same step"
            )
    own, shards = _next_shards(states)
    waiting = _by_age(states)
    dealt = []
    for rank in range(world_size):
        mine = waiting[rank::world_size]
        keys = [(length << BITS | (MASK - number), sample) for number, (length, sample) in enumerate(mine)]
        reader = {**own, "shards": shards[rank::world_size]}
        over = sum(state["over_budget"] for state in states) if rank == 0 else 0
        place = {"rank": rank, "world_size": world_size, "number": len(keys), "over_budget": over}
        dealt.append({**same[0], **place, "waiting": keys, "reader": reader})
    return dealt


OWN = ("rank", "over_budget", "number", "waiting", "reader")  # keys in which ranks differ


def _next_shards(states: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the position of every new rank's own reader, and the rest of the shards before it, oldest epoch first."""
    readers = [state["reader"] for state in states]
    last = max(reader["epoch"] for reader in readers)
    fresh = {"count": 0, "check": 0, "ended": False, "iterable": None}
    shards = [shard for reader in readers for shard in reader["shards"]]
    if all(reader["epoch"] == last and not reader["count"] and not reader["ended"] for reader in readers):
        return {**fresh, "epoch": last}, shards  # nobody has begun that epoch
    infinite = states[0]["infinite_loop"]
    for state, reader in zip(states, readers, strict=True):
        begun = {key: value for key, value in reader.items() if key != "shards"}
        later = [{**fresh, "epoch": epoch} for epoch in range(reader["epoch"] + 1, last + 1)]
        place = {"rank": state["rank"], "world_size": state["world_size"]}
        shards += [{**place, "reader": each} for each in [begun, *later] if not each["ended"]]
    shards.sort(key=lambda shard: int(shard["reader"]["epoch"]))
    return {**fresh, "epoch": last + infinite, "ended": not infinite}, shards


def _by_age(states: Sequence[Mapping[str, Any]]) -> list[tuple[int, Any]]:
    """Return length and sample of all that wait; those that were read first come first."""
    found = [
        (MASK - (key & MASK), rank, key >> BITS, sample)
        for rank, state in enumerate(states)
        for key, sample in state["waiting"]
    ]
    return [each[2:] for each in sorted(found, key=lambda each: each[:2])]
