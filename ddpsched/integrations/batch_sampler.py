"""The plans of one rank as a batch sampler, for a torch DataLoader or any loop of your own."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from ddpsched.config import parse
from ddpsched.errors import ConfigError
from ddpsched.plan import Position, StepPlan
from ddpsched.planning.epoch import KnownLengths
from ddpsched.planning.messages import LocalExchange
from ddpsched.planning.planner import check_position, plan_epoch
from ddpsched.world import World


class BatchSampler:
    """Lists of sample ids: what rank ``world.rank`` runs, step by step, for one epoch.

    ``lengths``: (N,) token lengths of all samples, the same on every rank; so every
    rank plans for all and nothing is communicated. All ranks yield equally often,
    and every id once per epoch; a list may be empty at the very end of an epoch, where
    fewer samples than ranks are left. ``policy``: "static", "minmax" (``prefetch``
    samples in each rank's window) or "balanced".

    The gradient is exact when the *summed* loss of the i-th list is multiplied by
    ``sum_scale(i)`` and gradients are averaged over ranks, as DDP does. Call
    ``set_epoch(e)`` for another order. Raises ConfigError or DataError for
    arguments out of range.

    ``state_dict()`` says where the iteration that moved last stands, the same on every
    rank; with it loaded, the next iteration goes on there, whatever the number of
    steps before. An iterator has both methods too, so torchdata's StatefulDataLoader
    resumes it. Use that one where a loader has worker processes: a plain DataLoader
    asks for lists ahead of those it hands out, and the sampler's state is ahead too.

    >>> ranks = [BatchSampler([3, 9, 4, 8, 5, 7], 3, World(r, 2), seed=1) for r in range(2)]
    >>> sorted(i for rank in ranks for ids in rank for i in ids)
    [0, 1, 2, 3, 4, 5]
    >>> lists = iter(ranks[0])
    >>> first, state = next(lists), ranks[0].state_dict()
    >>> resumed = BatchSampler([3, 9, 4, 8, 5, 7], 3, World(0, 2), seed=1)
    >>> resumed.load_state_dict(state)
    >>> resumed.first_step, list(resumed) == list(lists)
    (1, True)
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        global_batch: int,
        world: World,
        policy: str = "balanced",
        prefetch: int | None = None,
        seed: int = 0,
    ) -> None:
        self._lengths = KnownLengths(lengths)
        window = prefetch or -(-2 * global_batch // world.size)
        self._config = parse(
            {
                "epochs": 1,
                "seed": seed,
                "global_batch": global_batch,
                "world_size": world.size,
                "policy": {"kind": policy, "prefetch": window},
            },
            source="BatchSampler",
        )
        self._world = world
        self._start = self._reached = Position()  # of the next iteration; of the one that moved last

    def set_epoch(self, epoch: int) -> None:
        """The order of the next iteration, which begins at its first step, or where a loaded state of it stands."""
        if epoch != self._start.epoch:
            self._start = Position(epoch)
        self._reached = self._start

    @property
    def first_step(self) -> int:
        """The step of its epoch with which the next iteration begins: 0, but where a state was loaded."""
        return self._start.step

    def plans(self) -> Iterator[StepPlan]:
        """The plans of the next iteration: all ranks' samples."""
        return self._plans(self._start)

    def __iter__(self) -> "RankLists":
        return RankLists(self, self._start)

    def __len__(self) -> int:
        """Steps per epoch: ceil(N / B); of the whole one, also where an iteration goes on within it."""
        return -(-len(self._lengths) // self._config.global_batch)

    def sum_scale(self, index: int) -> float:
        """G / B_i for the i-th step of an epoch; B_i is the global batch, smaller in the last step.

        Steps count from the epoch's beginning: ``for i, batch in enumerate(loader, sampler.first_step)``.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"step {index} of an epoch of {len(self)} steps")
        size = self._config.global_batch
        return self._world.size / min(size, len(self._lengths) - index * size)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them: what makes the plans, and the position.

        After the last list of an epoch nothing of it is left; once its iteration has ended, the next epoch begins.
        """
        return self._state(self._reached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, in its epoch; ConfigError where it is of other data or another policy."""
        self._start = self._reached = self._position(state)

    def _plans(self, start: Position) -> Iterator[StepPlan]:
        return plan_epoch(self._config, self._lengths, LocalExchange(self._world.size), None, start)

    def _identity(self) -> dict[str, Any]:
        policy = self._config.policy
        return {
            "policy": policy.kind,
            "prefetch": policy.prefetch if policy.kind == "minmax" else None,
            "global_batch": self._config.global_batch,
            "world_size": self._config.world_size,
            "seed": self._config.seed,
            "num_samples": len(self._lengths),
        }

    def _state(self, position: Position) -> dict[str, Any]:
        return {**self._identity(), "position": position.as_dict()}

    def _position(self, state: Mapping[str, Any]) -> Position:
        own = self._identity()
        needed = sorted([*own, "position"])
        if not isinstance(state, Mapping) or set(state) != set(needed):
            given = sorted(map(str, state)) if isinstance(state, Mapping) else repr(state)
            raise ConfigError(f"the state of a BatchSampler needs exactly {needed}, got {given}")
        differs = [f"{key} = {state[key]!r}, here {value!r}" for key, value in own.items() if state[key] != value]
        if differs:
            raise ConfigError(f"the state is of another BatchSampler: {'; '.join(differs)}")
        position = Position.from_dict(state["position"])
        check_position(self._config, len(self._lengths), position)
        return position

    def _moved(self, position: Position) -> None:
        # a loaded state is used up by the first list, not by iter(): a DataLoader calls iter() twice
        self._start, self._reached = Position(self._start.epoch), position


class RankLists(Iterator[list[int]]):
    """One iteration of a BatchSampler, and where it stands."""

    def __init__(self, sampler: BatchSampler, start: Position) -> None:
        self._sampler, self._reached = sampler, start
        self._plans: Iterator[StepPlan] | None = None  # made when the first is asked for: an epoch's order takes O(N)

    def __next__(self) -> list[int]:
        first = self._plans is None
        if self._plans is None:
            self._plans = self._sampler._plans(self._reached)
        plan = next(self._plans, None)
        if plan is None:
            if self._reached.cursor:
                self._end(first)
            raise StopIteration
        assert plan.after is not None
        self._reached = plan.after
        self._sampler._moved(self._reached)
        return plan.rank_ids(self._sampler._world.rank).tolist()

    def _end(self, nothing_left: bool) -> None:
        self._reached = Position(self._reached.epoch + 1)
        self._sampler._moved(self._reached)
        if nothing_left:  # a finished StatefulDataLoader with workers loads such a state, and then iterates once more
            self._sampler.set_epoch(self._reached.epoch)

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`BatchSampler.state_dict`, of this iteration."""
        return self._sampler._state(self._reached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`BatchSampler.load_state_dict`, of this iteration."""
        self._reached, self._plans = self._sampler._position(state), None
