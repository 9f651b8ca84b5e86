"""The plans of one rank as a batch sampler, for a torch DataLoader or any loop of your own."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from ddpsched.errors import ConfigError
from ddpsched.integrations.plan_source import PlanSource, epoch_number
from ddpsched.plan import Position, StepPlan
from ddpsched.world import World


class BatchSampler:
    """Lists of sample ids: what rank ``world.rank`` runs, step by step, for one epoch.

    ``lengths``: (N,) token lengths of all samples, the same on every rank; so every
    rank plans for all and nothing is communicated. All ranks yield equally often,
    and every id once per epoch; a list may be empty at the very end of an epoch, where
    fewer samples than ranks are left.

    ``policy``: "static", "minmax", "balanced" or "packed", which share out steps of
    ``global_batch`` samples; or a mapping of its ``kind`` and options, as the table
    [policy] of a config has them. "token_budget", "bins" and "pool" fill micro-batches
    of their own sizes, and take no global batch:
    ``policy={"kind": "pool", "max_tokens_for_batch": 4096, "pool_size": 256}``.
    ``prefetch``: of minmax, samples in each rank's window. ``order``: "shuffled",
    "sequential", "length_grouped" or "curriculum", or a mapping likewise, such as
    ``{"kind": "curriculum", "path": "order.npy"}`` of a file of `ddpsched sort`; whether
    it is of these data is the caller's to know. A step is one micro-batch a rank here;
    what gives a rank several is refused, and is StepLoader's.

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

    At most 16 padded tokens a list:

    >>> budget = {"kind": "token_budget", "max_tokens_for_batch": 16}
    >>> filled = [BatchSampler([3, 9, 4, 8, 5, 7], None, World(r, 2), budget, order="sequential") for r in range(2)]
    >>> for step, lists in enumerate(zip(*filled)):
    ...     print(*lists, filled[0].sum_scale(step))
    [0] [1] 1.0
    [2, 3] [4, 5] 0.5
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        global_batch: int | None = None,
        world: World | None = None,
        policy: str | Mapping[str, Any] = "balanced",
        prefetch: int | None = None,
        seed: int = 0,
        order: str | Mapping[str, Any] = "shuffled",
    ) -> None:
        if world is None:
            raise ConfigError("BatchSampler needs world: World(rank, size), or World.detect() under torchrun")
        self._source = PlanSource(
            "BatchSampler", lengths, world, _windowed(policy, prefetch), global_batch, seed, order
        )
        self._one_micro_batch()
        self._world = world
        self._start = self._reached = Position()  # of the next iteration; of the one that moved last
        self._handed_out: dict[int, int] = {}  # step -> its global batch, of the epoch that moved last

    def _one_micro_batch(self) -> None:
        policy = self._source.config.policy
        for key in ("batches_per_optimizer_step", "max_microbatches"):
            value = getattr(policy, key)
            if value > 1:
                raise ConfigError(
                    f"BatchSampler: policy.{key} = {value}, but a list is one micro-batch; use ddpsched.StepLoader, "
                    "which yields all micro-batches of a step"
                )
        if policy.same_shape:
            raise ConfigError(
                "BatchSampler: policy.same_shape pads all ranks' micro-batches to one length, which a list of ids "
                "cannot tell; use ddpsched.StepLoader, whose sample_padding_fn gets it"
            )

    def set_epoch(self, epoch: int) -> None:
        """The order of the next iteration, which begins at its first step, or where a loaded state of it stands."""
        epoch = epoch_number(epoch)
        if epoch != self._start.epoch:
            self._start, self._handed_out = Position(epoch), {}
        self._reached = self._start

    @property
    def over_budget(self) -> int:
        """Samples that are longer than the budget of a pool, and run alone; 0 for other policies."""
        return self._source.over_budget

    @property
    def first_step(self) -> int:
        """The step of its epoch with which the next iteration begins: 0, but where a state was loaded."""
        return self._start.step

    def plans(self) -> Iterator[StepPlan]:
        """The plans of the next iteration: all ranks' samples."""
        return self._source.plans(self._start)

    def __iter__(self) -> "RankLists":
        return RankLists(self, self._start)

    def __len__(self) -> int:
        """Steps of the epoch: ceil(N / B); of the whole one, also where an iteration goes on within it.

        Where a policy fills micro-batches this plans the epoch, once; another epoch may have more or fewer.
        """
        return self._source.num_steps(self._start.epoch)

    def sum_scale(self, index: int) -> float:
        """G / B_i for the i-th step of an epoch; B_i is the global batch, smaller in the last step.

        Steps count from the epoch's beginning: ``for i, batch in enumerate(loader, sampler.first_step)``.
        Where a policy fills micro-batches, B_i is known once the list is handed out, or all have been planned by
        ``len()``. IndexError for a step that the epoch does not have, or whose B_i is not known yet.
        """
        return self._world.size / self._global_batch(index)

    def _global_batch(self, index: int) -> int:
        source, epoch = self._source, self._start.epoch
        if not source.fills:
            if not 0 <= index < len(self):
                raise IndexError(f"step {index} of an epoch of {len(self)} steps")
            size = source.config.global_batch
            return min(size, len(source) - index * size)
        if index in self._handed_out:
            return self._handed_out[index]
        sizes = source.known_sizes(epoch)
        if sizes is None:
            raise IndexError(
                f"step {index} of epoch {epoch} is not planned yet, and policy {source.config.policy.kind!r} fills "
                "global batches of sizes of their own; ask once its list is handed out, or call len(sampler) before, "
                "which plans the whole epoch"
            )
        if not 0 <= index < len(sizes):
            raise IndexError(f"step {index} of an epoch of {len(sizes)} steps")
        return sizes[index]

    def state_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them: what makes the plans, and the position.

        After the last list of an epoch nothing of it is left; once its iteration has ended, the next epoch begins.
        """
        return self._source.state(self._reached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, in its epoch; ConfigError where it is of other data or another policy."""
        self._start = self._reached = self._source.position(state)
        self._handed_out = {}

    def _moved(self, position: Position, plan: StepPlan | None = None) -> None:
        # a loaded state is used up by the first list, not by iter(): a DataLoader calls iter() twice
        self._start, self._reached = Position(self._start.epoch), position
        if plan is not None and plan.epoch == self._start.epoch:
            self._handed_out[plan.step] = plan.global_batch


class RankLists(Iterator[list[int]]):
    """One iteration of a BatchSampler, and where it stands."""

    def __init__(self, sampler: BatchSampler, start: Position) -> None:
        self._sampler, self._reached = sampler, start
        self._plans: Iterator[StepPlan] | None = None  # made when the first is asked for: an epoch's order takes O(N)

    def __next__(self) -> list[int]:
        first = self._plans is None
        if self._plans is None:
            self._plans = self._sampler._source.plans(self._reached)
        plan = next(self._plans, None)
        if plan is None:
            if self._reached.cursor:
                self._end(first)
            raise StopIteration
        assert plan.after is not None
        self._reached = plan.after
        self._sampler._moved(self._reached, plan)
        return plan.rank_ids(self._sampler._world.rank).tolist()

    def _end(self, nothing_left: bool) -> None:
        self._reached = Position(self._reached.epoch + 1)
        self._sampler._moved(self._reached)
        if nothing_left:  # a finished StatefulDataLoader with workers loads such a state, and then iterates once more
            self._sampler.set_epoch(self._reached.epoch)

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`BatchSampler.state_dict`, of this iteration."""
        return self._sampler._source.state(self._reached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`BatchSampler.load_state_dict`, of this iteration."""
        self._reached, self._plans = self._sampler._source.position(state), None


def _windowed(policy: str | Mapping[str, Any], prefetch: int | None) -> str | Mapping[str, Any]:
    """The policy with ``prefetch`` in it, which other policies than minmax do not read."""
    options = policy if isinstance(policy, Mapping) else {"kind": policy}
    if prefetch is None or options.get("kind") != "minmax":
        return policy
    if "prefetch" in options:
        raise ConfigError(f"prefetch = {prefetch}, and {options['prefetch']!r} in policy; give it once")
    return {**options, "prefetch": prefetch}
