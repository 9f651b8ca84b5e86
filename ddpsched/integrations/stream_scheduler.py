"""StreamScheduler: minmax over iterable datasets, whose lengths nobody knows before they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np

from ddpsched.costs.config import check_range, cost_model
from ddpsched.costs.rank_speed import AS_CALIBRATED, slowed
from ddpsched.errors import ConfigError, RankFailure
from ddpsched.exchange import Exchange, LocalExchange, offer_row, read_offers
from ddpsched.integrations.agreement import Agreement, LoaderWorld, timeout_of, warn_of_dropping
from ddpsched.integrations.identity import check_keys, check_same
from ddpsched.integrations.loader_arguments import Arguments, whole_number
from ddpsched.integrations.pool_picks import Sample, SampleReader
from ddpsched.integrations.same_samples import warn_of_ranks
from ddpsched.integrations.step_share import StepShare
from ddpsched.planning.assignment import refuse_too_long
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.policies.minmax import usual_prefetch
from ddpsched.planning.solvers.allocation import solve
from ddpsched.step_plan import Ids
from ddpsched.world import World

# what a rank offers in place of a cap where it cannot go on, so that all raise together
FAILED, EMPTY = -1, -2
PROBLEMS = {
    FAILED: "could not read or measure its next samples; its own error says why",
    EMPTY: "has no samples at all; every rank's stream needs at least one, which stands in where it ends early",
}


class StreamScheduler:
    """Yield this rank's batch of each step: as many of its next samples as make the costliest rank cheapest.

        stream = ddpsched.StreamScheduler(shard, length_fn=len, global_batch=64, collate_fn=collate)
        for batch, scale in ddpsched.scaled(stream):
            (scale * summed_loss(model, batch)).backward()         # with ``model`` in torch's DDP
            optimizer.step()
            optimizer.zero_grad()

    Each rank keeps ``prefetch`` samples of its own stream ready. What its first 1, 2, ... of them cost is gathered from
    all ranks while the step before computes; every rank solves the same allocation of ``global_batch`` samples, and
    takes its share from the front: policy "minmax", of a run with online lengths. The gradient is that of the mean over
    the step's samples. Where streams end, steps grow smaller, a rank without samples gets an earlier one as a stand-in
    of scale 0, and all ranks end together; every sample is run once.

    ``iterable``: this rank's samples; a DataLoader with ``batch_size=None`` reads them in worker processes.
    ``length_fn(sample)``: tokens. ``global_batch``: B, samples of a step over all ranks. ``prefetch``: K; 2 B / G
    without it. ``world``, ``cost``, ``memory``, ``speeds``: as of BatchSampler. ``collate_fn(samples)`` makes the
    batch; without it that is the list of samples.

    An epoch counts as run once its iteration has ended; the next one is of the next epoch, announced by the iterable's
    ``set_epoch(e)``. All ranks iterate at the same time, and torch's process group connects them. ``step``: the
    :class:`StepShare` of the batch yielded last. ``state_dict()`` is of that batch too, another on each rank, and holds
    the samples that wait: it is for torch.save. With it loaded the next iteration continues there, by reading this
    epoch's samples again where the iterable keeps no state of its own.

    Raises ConfigError for arguments out of range, DataError for bad samples, on the others RankFailure.

    >>> stream = StreamScheduler("an essay of nine words fills a window".split(), len, global_batch=3)
    >>> [(batch, stream.step.sum_scale == 1 / len(batch)) for batch in stream]
    [(['an', 'essay', 'of'], True), (['nine', 'words', 'fills'], True), (['a', 'window'], True)]
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        length_fn: Callable[[Any], int],
        *,
        global_batch: int,
        prefetch: int | None = None,
        world: World | None = None,
        cost: str | Mapping[str, Any] = "padded_tokens",
        memory: Mapping[str, Any] | None = None,
        speeds: Sequence[float] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.ranks = LoaderWorld("StreamScheduler", world)
        given = Arguments.of(
            "StreamScheduler", policy="minmax", global_batch=global_batch, cost=cost, memory=memory, speeds=speeds
        )
        assert given.global_batch is not None
        caps = given.caps("StreamScheduler", 1, 1)
        self._given, self._cost, self._cap = given, cost_model(given.cost), None if caps is None else caps[0]
        self._size, self._prefetch = given.global_batch, prefetch
        self._iterable, self._length_fn, self._collate = iterable, length_fn, collate_fn
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stream")
        self._planning: Future[Ids] | None = None  # the counts of the next step
        self._exchange: Exchange | None = None
        self._stand_in: Sample | None = None
        self._differ = False  # it is known whether ranks read other samples
        self._begin(0)
        self.step: StepShare | None = None
        self._spec(World() if world is None else world)

    @property
    def world(self) -> World:
        """The given world; else the one detected now, or when the last iteration began."""
        return self.ranks.world

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins or continues."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with this epoch, or where a loaded state of it stands."""
        if (epoch := whole_number("set_epoch", epoch)) != self._epoch:
            if self._window and not self._has_moved:  # of a loaded state
                warn_of_dropping("StreamScheduler", self._epoch, self._step, epoch)
            self._begin(epoch)

    def __iter__(self) -> Iterator[Any]:
        world = self.ranks.settle()
        if self._has_moved:  # the iteration before was broken off
            self._begin(self._epoch)
        spec = self._spec(world)
        agreement = self.ranks.agree(self._identity(world), {"epoch": self._epoch, "step": self._step})
        agreement.compare()  # before messages are exchanged, whose size follows from it
        if self._exchange is None:
            self._exchange = LocalExchange(1) if world.size == 1 else _group_exchange(world)
        counts = self._plan(spec, agreement)  # here, as the workers of a loader are best begun by the main thread
        while counts.any():
            samples = self._taken(counts, world)
            self._planning = self._thread.submit(self._plan, spec, agreement)
            yield samples if self._collate is None else self._collate(samples)
            counts = self._planned()
        self._begin(self._epoch + 1)

    def _begin(self, epoch: int) -> None:
        self._planned()
        self._epoch, self._step, self._has_moved = epoch, 0, False
        self._reader = SampleReader(self._iterable, self._length_fn, infinite=False, epoch=epoch)
        self._window: list[Sample] = []

    def _planned(self) -> Ids:
        """Return the counts of the next step, once the thread has them; all ranks take part in that."""
        planning, self._planning = self._planning, None
        return np.zeros(1, dtype=np.int64) if planning is None else planning.result()

    def _spec(self, world: World) -> PlanSpec:
        """Return the arguments of planning in this world. Raises ConfigError where they do not fit it."""
        prefetch = self._prefetch or usual_prefetch(self._size, world.size)
        policy = Arguments.of("StreamScheduler", policy={"kind": "minmax", "prefetch": prefetch}).policy
        self._given.check_speeds("StreamScheduler", world.size)
        try:
            return PlanSpec(world.size, self._size, policy, epochs=1, cost=self._cost, lengths_known=False)
        except ConfigError as error:
            raise ConfigError(f"StreamScheduler: {error}") from None

    def _plan(self, spec: PlanSpec, agreement: Agreement) -> Ids:
        """Fill the window, exchange what its samples cost, and return the counts of all ranks, (world_size,).

        Raises on every rank where one cannot go on.
        """
        assert self._exchange is not None
        failure: Exception | None = None
        assert spec.policy.window is not None
        prefetch = spec.policy.window[1]
        try:
            self._fill(prefetch)
            if not self._window:  # noted before the exchange, after whose last one rank 0 may leave with the store
                agreement.end()
            costs, cap = self._offer()
        except Exception as error:  # of the user's iterable and length_fn, whatever it is: the others must not wait
            failure, costs, cap = error, np.zeros(0, dtype=np.int64), FAILED
        row = offer_row(self._epoch, self._step, costs, cap, prefetch)
        try:
            table = self._exchange.offer(np.append(row, self._reader.first.mark)[None])
        except RuntimeError as error:
            raise RankFailure(f"StreamScheduler: other ranks did not answer ({str(error).splitlines()[0]})") from error
        if failure is not None:
            raise failure
        all_costs, caps = read_offers(table[:, :-1], self._epoch, self._step)
        self._differ = self._differ or warn_of_ranks(table[:, -1])
        for flag, problem in PROBLEMS.items():
            if (caps == flag).any():
                raise RankFailure(f"StreamScheduler: rank {int((caps == flag).argmax())} {problem}")
        size = min(self._size, int(caps.sum()))
        return solve(all_costs, size, caps=caps).counts if size else caps

    def _fill(self, prefetch: int) -> None:
        while len(self._window) < prefetch and (pair := self._reader.read()) is not None:
            self._window.append(pair)

    def _offer(self) -> tuple[Ids, int]:
        """Return the costs of this rank's first 1, 2, ... samples, and how many of them fit its memory."""
        if not self._window:
            return np.zeros(0, dtype=np.int64), 0 if self._stand_in else EMPTY
        lengths = np.array([length for length, _ in self._window])
        check_range(self._cost, len(lengths), int(lengths.max()))
        costs, cap = self._cost.prefixes(lengths), len(lengths) if self._cap is None else self._cap.prefix(lengths)
        if not cap:
            refuse_too_long(int(lengths[0]))
        if slowness := self._given.slowness:
            costs = slowed(costs, round(slowness[self.world.rank] * AS_CALIBRATED))
        return costs, cap

    def _taken(self, counts: Ids, world: World) -> list[Any]:
        """Return this rank's samples of the step, or the stand-in."""
        count = int(counts[world.rank])
        taken, self._window = self._window[:count], self._window[count:]
        self._stand_in = min([*taken, *([] if self._stand_in is None else [self._stand_in])], key=lambda pair: pair[0])
        self.step = StepShare(
            epoch=self._epoch,
            step=self._step,
            world_size=world.size,
            rank_samples=count,
            rank_tokens=sum(length for length, _ in taken),
            rank_microbatches=int(count > 0),
            num_samples=int(counts.sum()),
        )
        self._step, self._has_moved = self._step + 1, True
        return [sample for _, sample in taken or [self._stand_in]]

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch yielded last, and this rank's samples that wait."""
        if self._planning is not None:
            self._planning.result()  # the samples that it read wait, too
        world = self.world
        return {
            **self._identity(world), "rank": world.rank, "epoch": self._epoch, "step": self._step,
            "waiting": list(self._window), "stand_in": self._stand_in, "reader": self._reader.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken. Raises ConfigError where it is of another rank, world size or cost."""
        identity = {**self._identity(self.world), "rank": self.world.rank}
        check_keys("StreamScheduler", state, [*identity, "epoch", "step", "waiting", "stand_in", "reader"])
        check_same("StreamScheduler", state, identity)
        epoch, step = (whole_number("load_state_dict", state[name]) for name in ("epoch", "step"))
        if step and state["stand_in"] is None:
            raise ConfigError(
                f"the state of a StreamScheduler has no stand_in after {step} steps; give what state_dict() returned"
            )
        self._begin(epoch)
        self._step, self._stand_in = step, state["stand_in"]
        self._window = [(length, sample) for length, sample in state["waiting"]]
        self._reader.load_state_dict(state["reader"])

    def _identity(self, world: World) -> dict[str, Any]:
        window = self._spec(world).policy.window
        assert window is not None, "minmax takes its samples from windows"
        return {
            "global_batch": self._size, "prefetch": window[1], "cost": asdict(self._cost),
            "memory": self._given.memory_identity(), "speeds": self._given.speeds,
            "world_size": world.size,
        }  # fmt: skip


def _group_exchange(world: World) -> Exchange:
    """Return the exchange over a process group of gloo; all ranks make it."""
    import torch.distributed.distributed_c10d as c10d

    from ddpsched.training.group_exchange import GroupExchange

    if not c10d.is_initialized() or c10d.get_world_size() != world.size:
        raise ConfigError(
            f"StreamScheduler: the costs of {world.size} ranks are exchanged over torch's process group, and there is "
            "none of so many processes; call torch.distributed.init_process_group before"
        )
    return GroupExchange(world, timeout_of(c10d).total_seconds())
