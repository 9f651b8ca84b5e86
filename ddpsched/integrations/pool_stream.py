"""Policy pool over an iterable dataset, whose lengths are not known beforehand: each rank chooses from its samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ddpsched.errors import ConfigError
from ddpsched.integrations.agreement import LoaderWorld, warn_of_dropping
from ddpsched.integrations.identity import check_keys, check_same
from ddpsched.integrations.loader_arguments import Arguments, whole_number
from ddpsched.integrations.pool_picks import PoolPicks, Sample, SampleReader
from ddpsched.integrations.pool_shards import ShardReader
from ddpsched.integrations.step_share import StepShare
from ddpsched.planning.policies.pool import Pool
from ddpsched.world import World


class PoolStream:
    """Yield this rank's micro-batches of each optimizer step as a list, chosen from a pool that the iterable feeds.

    ``iterable``: this rank's samples, whatever yields them; a DataLoader with ``batch_size=None`` reads them in worker
    processes. Or a function that returns them for a World, such as ``lambda world: data[world.rank :: world.size]``:
    then a run may go on with another number of ranks. ``length_fn(sample)``: tokens. ``policy``: "pool", or a mapping
    with its ``kind`` and options, as the table [policy] of a config has them. The pool holds ``pool_size`` samples; a
    micro-batch begins with the oldest and takes others by ``strategy`` ("prefer_closest" in length, or
    "prefer_first"), as long as count * longest stays within ``max_tokens_for_batch``; with ``sequence_packing`` as
    long as their sum does, whatever the strategy. A longer sample runs alone; ``over_budget`` counts these.

    ``memory``: as of BatchSampler; no micro-batch is larger than it holds. (The pool reads no cost, and no speeds.)

    A step has ``batches_per_optimizer_step`` of them; each is ``collate_fn(samples)``, or the list of samples, which
    ``sample_padding_fn(sample, length)`` has filled up to the longest of them. ``infinite_loop``: an epoch that is over
    is followed by the next, announced by the iterable's ``set_epoch(e)``, and the pool stays full; so all ranks yield
    ``max_num_steps`` lists, or lists without end.

    ``world``: which rank of how many; without it, that of torch's process group, or else of the environment, when an
    iteration begins; ranks of a process group then check that they have the same policy. An epoch counts as run once
    its iteration has ended; the next iteration is of the next one, which ``set_epoch(e)`` may name.

    *Ranks of a step* do not know each other's samples without ``agree``: given this rank's number of samples in the
    step it returns that of all ranks, as ``ddpsched.integrations.agree.sum_over_ranks`` does. Then ``step.sum_scale``
    is G / B, and with ``infinite_loop=False``, which needs it on several ranks, all end together: a rank without
    samples yields empty lists until all have none, and joins the others with a gradient of zero, such as that of a
    batch seen before, times zero. Where ``agree`` returns a bool, it says whether the step takes place, and B stays
    unknown.

    ``step``: the :class:`StepShare` of the list yielded last. ``state_dict()`` holds the samples that wait, so it is
    for torch.save or pickle, and each rank has another. With it loaded the next iteration continues there: at once
    where the iterable has ``state_dict`` and ``load_state_dict`` too, else by reading this epoch's samples again.
    With another number of ranks, load what ``for_world_size(states, n)`` makes of the states of all ranks: each sample
    still comes once an epoch. Raises ConfigError for arguments out of range, DataError for bad samples.

    Source: cosmos-rl's ``LoadBalancedDataset``, whose defaults these are, and whose choices but for packed rows; it
    resumes by choosing all batches before again.

    >>> class Words:
    ...     def __iter__(self):
    ...         return iter("an essay of nine words fills a pool quickly".split())
    >>> policy = {"kind": "pool", "pool_size": 4, "max_tokens_for_batch": 10}
    >>> stream = PoolStream(Words(), len, policy=policy, infinite_loop=False)
    >>> for batches in stream:
    ...     print(batches, stream.step.rank_tokens)
    [['an', 'of']] 4
    [['essay', 'words']] 10
    [['nine', 'pool']] 8
    [['fills', 'a']] 6
    [['quickly']] 7
    """

    def __init__(
        self,
        iterable: Iterable[Any] | Callable[[World], Iterable[Any]],
        length_fn: Callable[[Any], int],
        *,
        world: World | None = None,
        policy: str | Mapping[str, Any] = "pool",
        max_num_steps: int | None = None,
        infinite_loop: bool = True,
        memory: Mapping[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sample_padding_fn: Callable[[Any, int], Any] | None = None,
        agree: Callable[[int], int] | None = None,
    ) -> None:
        self.ranks = LoaderWorld("PoolStream", world)
        arguments = Arguments.of("PoolStream", policy=policy, max_num_steps=max_num_steps, memory=memory)
        caps = arguments.caps("PoolStream", 1, 1)
        self._cap, self._memory = None if caps is None else caps[0], arguments.memory_identity()
        pool = arguments.policy
        if not isinstance(pool, Pool):
            raise ConfigError(
                f"PoolStream: policy {pool.kind!r} needs the lengths of all samples, which an iterable dataset does "
                "not have; use policy 'pool', or ddpsched.StepLoader over a data set with samples by id"
            )
        self.policy = pool
        if pool.packs and sample_padding_fn is not None:
            raise ConfigError("PoolStream: packed rows have no padding; leave sample_padding_fn out")
        for remark in pool.remarks:
            warnings.warn(remark, stacklevel=2)
        self._infinite, self.max_num_steps = infinite_loop and pool.endless, arguments.max_num_steps
        self._length_fn, self._agree = length_fn, agree
        # an iterable may be callable as well
        self._samples_of = iterable if callable(iterable) and not isinstance(iterable, Iterable) else None
        self._iterable = iterable
        self._collate, self._pad = collate_fn, sample_padding_fn
        self._next = self._reached = self._begin(0)  # the next iteration's; and that of the last one
        self._skip = 0  # steps that the next iteration leaves out
        self.over_budget = 0
        self.step: StepShare | None = None
        self._check_ends(World() if world is None else world)

    @property
    def world(self) -> World:
        """The given world; else the one detected now, or when the last iteration began."""
        return self.ranks.world

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins or continues."""
        return self._next.reader.epoch

    def _check_ends(self, world: World) -> None:
        if not self._infinite and world.size > 1 and self._agree is None:
            raise ConfigError(
                f"PoolStream: with infinite_loop=False, each of {world.size} ranks ends with its data, and the others "
                "do not know when; give agree=sum_over_ranks (ddpsched.integrations.agree)"
            )

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with this epoch, or where a loaded state of it stands; skips stay."""
        epoch = whole_number("set_epoch", epoch)
        if epoch not in (self._next.first_epoch, self._next.reader.epoch):
            if self._next is self._reached and self._next.has_waiting:  # of a loaded state
                warn_of_dropping("PoolStream", self._next.reader.epoch, self._next.steps, epoch)
            self._next = self._begin(epoch)
        self._reached = self._next

    def skip_batches(self, count: int) -> None:
        """Leave out the next ``count`` optimizer steps: their samples are read, but neither padded nor collated.

        They count as steps of the next iteration, whichever epoch ``set_epoch`` names before or after, and are read
        as it begins, or as a state is asked for. Ranks do not agree meanwhile: skip the same number on each.
        """
        self._skip += whole_number("skip_batches", count)
        self._reached = self._next

    def _read_skipped(self) -> None:
        for _ in range(self._skip):
            self._picked(self._next)
            self._next.steps += 1
        self._skip = 0

    def __iter__(self) -> Iterator[list[Any]]:
        world = self.ranks.settle()
        self._check_ends(world)
        if self._samples_of is not None:  # of the world that is known only now
            begun, self._next = self._next, self._begin(0)
            self._next.load_state_dict(begun.state_dict())
        self._read_skipped()
        # the beginning of the next iteration stays as it is until an epoch is run, so looking at one batch changes
        # nothing
        picks, self._next = self._next, self._begin(0)
        self._next.load_state_dict(picks.state_dict())
        return self._lists(picks, world)

    def _begin(self, epoch: int) -> PoolPicks:
        iterable = self._iterable if self._samples_of is None else self._samples_of(self.world)
        own = SampleReader(iterable, self._length_fn, self._infinite, epoch)
        return PoolPicks(self.policy, ShardReader(own, None if self._samples_of is None else self._shard), self._cap)

    def _shard(self, world: World) -> SampleReader:
        assert self._samples_of is not None
        return SampleReader(self._samples_of(world), self._length_fn, infinite=False, epoch=0)

    def _lists(self, picks: PoolPicks, world: World) -> Iterator[list[Any]]:
        begun, last = picks.steps, self.max_num_steps
        identity = {key: value for key, value in self._identity().items() if key not in ("rank", "world_size")}
        agreement = self.ranks.agree(identity, {"step": begun, "max_num_steps": last})
        while last is None or picks.steps < last:
            if picks.steps > begun:
                agreement.compare()
            step = self._picked(picks)
            if picks.steps + 1 == last or not any(step):  # noted while the other ranks still wait for this one
                agreement.end()
            share = self._share(picks, step, world)
            if share is None:
                self._next = self._begin(picks.reader.epoch + 1)
                if last is None:  # the end of a run of so many steps is kept, since more may follow it
                    self._reached = self._next
                return
            picks.steps += 1
            self._reached, self.step = picks, share
            if picks.steps == last:
                self._next = self._begin(picks.reader.epoch + 1)
            yield [self._batch(micro) for micro in step]

    def _picked(self, picks: PoolPicks) -> list[list[Sample]]:
        step = picks.next_step()
        budget = self.policy.max_tokens_for_batch
        self.over_budget += sum(any(length > budget for length, _ in micro) for micro in step)
        return step

    def _share(self, picks: PoolPicks, step: list[list[Sample]], world: World) -> StepShare | None:
        """Return this rank's share of the step; None where no rank has a sample left."""
        count, tokens = sum(map(len, step)), sum(length for micro in step for length, _ in micro)
        total = count if self._agree is None else self._agree(count)
        if not total:
            return None
        alone, known = world.size == 1, self._agree is not None and not isinstance(total, bool)
        if known and total < count:
            raise ConfigError(f"agree({count}) gave {total}: all ranks together have no fewer samples than this one")
        return StepShare(
            epoch=picks.reader.epoch,
            step=picks.steps,
            world_size=world.size,
            rank_samples=count,
            rank_tokens=tokens,
            rank_microbatches=len(step),
            num_samples=count if alone else int(total) if known else None,
            num_tokens=tokens if alone else None,
        )

    def _batch(self, micro: list[Sample]) -> Any:
        longest, samples = max(length for length, _ in micro), [sample for _, sample in micro]
        if self._pad is not None:
            samples = [self._pad(sample, longest) for sample in samples]
        return samples if self._collate is None else self._collate(samples)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy, the position after the list yielded last, and this rank's samples that wait."""
        if self._reached is self._next:
            self._read_skipped()
        return {**self._identity(), "over_budget": self.over_budget, **self._reached.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken. Raises ConfigError where it is of another rank, world size or policy.

        Other data is refused with the next list, where the iterable's samples are read again.
        """
        identity, picks = self._identity(), self._begin(0)
        check_keys("PoolStream", state, [*identity, "over_budget", *picks.state_dict()])
        check_same("PoolStream", state, identity)
        for key in ("steps", "first_epoch", "over_budget"):
            if type(state[key]) is not int or state[key] < 0:
                raise ConfigError(f"the state's {key} = {state[key]!r}, needs an integer of 0 or more")
        if self.max_num_steps is not None and state["steps"] > self.max_num_steps:
            raise ConfigError(
                f"the state is after {state['steps']} steps, but max_num_steps = {self.max_num_steps}; raise it"
            )
        try:
            picks.load_state_dict(state)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ConfigError(f"the state of a PoolStream does not fit: {type(error).__name__}: {error}") from error
        self.over_budget, self._skip = state["over_budget"], 0
        self._next = self._reached = picks

    def _identity(self) -> dict[str, Any]:
        policy, world = self.policy, self.world
        return {
            **policy.model_dump(include={"pool_size", "max_tokens_for_batch", "batches_per_optimizer_step"}),
            "strategy": "sequence_packing" if policy.sequence_packing else policy.strategy,
            "infinite_loop": self._infinite,
            "memory": self._memory,
            "rank": world.rank,
            "world_size": world.size,
        }
