"""for_world_size: the state of a sampler, a loader or all ranks' streams, made ready for another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from ddpsched.errors import ConfigError
from ddpsched.integrations.pool_shards import deal_states
from ddpsched.planning.planner import redealt
from ddpsched.step_plan import Position


@overload
def for_world_size(state: Mapping[str, Any], world_size: int) -> dict[str, Any]: ...


@overload
def for_world_size(state: Sequence[Mapping[str, Any]], world_size: int) -> list[dict[str, Any]]: ...


def for_world_size(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]], world_size: int
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the ``state_dict()`` of a BatchSampler or StepLoader as ``world_size`` ranks load it.

    A loader refuses the state of another world size, as it may be a mistake; this says that it is none. Each sample
    still comes once an epoch. Policies that take the next samples of the order ("static", "balanced", "packed",
    "token_budget", "bins") keep their global batches, and only share them out anew; "minmax" and "pool" deal the
    samples that wait to the new ranks.

    A PoolStream's state is another on each rank: give the list of all of them, and rank r loads item r of the list that
    is returned. Within an epoch its iterable must be a function of World, as the shards of both are read.

    ``state``: plain values, as ``state_dict()`` returned them; it stays as it is. ``world_size``: at least 1. Raises
    ConfigError for another state or number.

    >>> from ddpsched import BatchSampler, World
    >>> lengths = [3, 9, 4, 8, 5, 7]
    >>> four = BatchSampler(lengths, global_batch=4, world=World(0, 4))
    >>> _ = next(iter(four))
    >>> two = [BatchSampler(lengths, global_batch=4, world=World(rank, 2)) for rank in range(2)]
    >>> for rank in two:
    ...     rank.load_state_dict(for_world_size(four.state_dict(), 2))
    >>> sum(len(ids) for rank in two for ids in rank)
    2
    """
    if type(world_size) is not int or world_size < 1:
        raise ConfigError(f"for_world_size: world_size = {world_size!r}, needs an integer of 1 or more")
    if isinstance(state, list | tuple) and state and all(map(_is_of_a_pool_stream, state)):
        return deal_states(state, world_size)
    if not isinstance(state, Mapping) or not {"world_size", "position"} <= set(state):
        raise ConfigError(
            "for_world_size: give the state_dict() of a BatchSampler or StepLoader, or a list of those of "
            "all ranks of a PoolStream"
        )
    position = redealt(Position.from_dict(state["position"]), world_size)
    begun = state.get("batch_ranks", state["world_size"])  # the first ones, if it is dealt for a second time
    dealt = {**state, "batch_ranks": begun, "world_size": world_size, "position": position.as_dict()}
    if begun == world_size:
        del dealt["batch_ranks"]
    return dealt


def _is_of_a_pool_stream(state: object) -> bool:
    return isinstance(state, Mapping) and {"rank", "world_size", "waiting", "reader"} <= set(state)
