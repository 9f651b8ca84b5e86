"""Batches paired with the scales of their steps, whatever a loader does between a sampler and the loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.integrations.agreement import LoaderWorld
from ddpsched.integrations.batch_sampler import BatchSampler
from ddpsched.integrations.iterated_by import begun_anew, is_accelerates
from ddpsched.integrations.plan_source import PlanSource
from ddpsched.integrations.pool_stream import PoolStream
from ddpsched.integrations.rank_lists import RankLists
from ddpsched.integrations.step_loader import StepLoader
from ddpsched.integrations.step_share import StepShare
from ddpsched.integrations.stream_scheduler import StreamScheduler
from ddpsched.integrations.world_size import for_world_size
from ddpsched.step_plan import Position, StepPlan
from ddpsched.training.attention import warn_of_cudnn_attention


def scaled(loader: Any, count: Callable[[Any], Any] | None = None) -> Scaled:
    """Return an iterable of ``(batch, scale)``: each batch of ``loader``, and what its *summed* loss is multiplied by.

        steps = ddpsched.scaled(DataLoader(data, batch_sampler=sampler, num_workers=4))
        for batch, scale in steps:
            (scale * summed_loss(model, batch)).backward()     # gradients are averaged over ranks, as DDP does
            ...
            torch.save({"steps": steps.state_dict(), ...}, path)

    ``loader``: a torch DataLoader, torchdata's StatefulDataLoader or accelerate's loader of one process over a
    BatchSampler; a BatchSampler itself; what ``ddpsched.balanced`` returned; a StreamScheduler; a StepLoader or
    PoolStream, whose batch is the list of a step's micro-batches.
    ``scale``: G / B of the step, 0 where the batch is a stand-in or this rank has none. With ``count(batch)``, the
    label tokens of a batch (of each micro-batch, where a step has a list of them), it is G / N instead, N the label
    tokens of the step on all ranks, for the mean over these; then every step begins with an all-reduce of one number.

    ``step``: the :class:`StepShare` of the batch yielded last. ``state_dict()`` is of that batch too, whatever workers
    have loaded ahead, and the same on every rank; with it loaded the next iteration continues after it.

    Raises ConfigError where the lists of batches are not known: a wrapper between loader and sampler, batches out of
    order (``in_order=False``), a loader that skips.

    >>> from ddpsched import BatchSampler, World
    >>> from torch.utils.data import DataLoader
    >>> sampler = BatchSampler([3, 9, 4, 8, 5, 7], global_batch=4, world=World(0, 2), order="sequential")
    >>> for batch, scale in scaled(DataLoader(range(6), batch_sampler=sampler)):
    ...     print(batch.tolist(), scale)
    [1, 3] 0.5
    [4] 1.0
    """
    steps = getattr(loader, "steps", None)  # of a balanced loader
    if isinstance(steps, Scaled):
        if count is not None:
            raise ConfigError("scaled: the loader of ddpsched.balanced counts itself; give balanced(loader, count=...)")
        return steps
    return Scaled(loader, count)


class Scaled:
    """An iterable of ``(batch, scale)``, as :func:`scaled` returns it."""

    def __init__(self, loader: Any, count: Callable[[Any], Any] | None = None) -> None:
        self.loader, self._count = loader, count
        self._sampler = None if isinstance(loader, StepLoader | PoolStream | StreamScheduler) else _sampler_of(loader)
        if self._sampler is not None:
            self._sampler.weighs = True
        planner: Any = loader if self._sampler is None else self._sampler
        self._planner = planner
        ranks: LoaderWorld = planner.plan_source if self.has_plans else planner.ranks
        ranks.counted = count is not None
        self.balanced: Any = None  # the balanced loader whose steps these are
        self.step: StepShare | None = None
        self._reached: Position | None = None  # after the batch yielded last
        self._plan: StepPlan | None = None  # of that batch

    @property
    def has_plans(self) -> bool:
        """Whether each step's plan is known here: of a stream each rank knows its own samples alone."""
        return not isinstance(self._planner, PoolStream | StreamScheduler)

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins or continues, a loaded state's among them."""
        return int(self._planner.epoch)

    @property
    def plan(self) -> StepPlan:
        """The plan of the batch yielded last."""
        plan = self.loader.plan if self._sampler is None else self._plan
        assert plan is not None, "a batch was yielded"
        return plan

    @property
    def plan_source(self) -> PlanSource:
        """The plans that the loader follows, where it ``has_plans``: their lengths, world and tables."""
        source: PlanSource = self._planner.plan_source
        return source

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        warn_of_cudnn_attention()
        if self._sampler is not None:
            yield from self.pairs(iter(self.loader))
            return
        for batches in self.loader:
            self.step = self.loader.step
            one = isinstance(self.loader, StreamScheduler)
            if isinstance(self.loader, StepLoader):  # ranks meet in a backward pass, which needs a batch
                batches = _met(self.loader, batches)
            yield batches, self._scale(self.loader.step, [batches] if one else batches)

    def pairs(self, batches: Iterator[Any]) -> Iterator[tuple[Any, float]]:
        """Yield the same from an iterator of the loader, from its first batch on.

        Raises ConfigError where its batches are not the sampler's lists, one by one.
        """
        assert self._sampler is not None
        lists = batches if isinstance(batches, RankLists) else getattr(batches, "_sampler_iter", None)
        # a StatefulDataLoader that continues between two snapshots has passed over the first of these lists
        number = getattr(batches, "_rcvd_idx", 0)
        for batch in batches:
            if lists is None:  # of accelerate's loader, a generator: what its first batch began
                lists = self._sampler.lists
            if not isinstance(lists, RankLists):
                raise ConfigError(
                    f"scaled({type(self.loader).__name__}): which lists the batches of its iterator "
                    f"{type(batches).__name__} are cannot be seen; give a torch DataLoader(data, batch_sampler=sampler)"
                )
            if getattr(batches, "_sampler_iter", lists) is not lists:
                raise begun_anew("scaled")
            self.step, self._reached, self._plan = lists.share(number)
            number += 1
            yield batch, self._scale(self.step, [batch])
        self._reached = None

    def _scale(self, step: StepShare, batches: Iterable[Any]) -> float:
        return step.weight if self._count is None else step.token_scale(sum(map(self._counted, batches)))

    def _counted(self, batch: Any) -> int:
        assert self._count is not None
        count = self._count(batch)
        try:
            number = int(count)
            is_count = number >= 0 and number == float(count)
        except (TypeError, ValueError, RuntimeError):
            is_count = False
        if not is_count:
            raise ConfigError(
                f"scaled: count(batch) returned {count!r:.60}, needs a whole number from 0 on, its label tokens"
            )
        return number

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next iteration."""
        self._planner.set_epoch(epoch)
        self._reached = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch yielded last."""
        if self._sampler is None or self._reached is None or self._sampler.lists is None:
            state: dict[str, Any] = self._planner.state_dict()
        else:
            state = self._sampler.state_at(self._reached)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch of ``state``. Raises ConfigError where it is of another loader; see BatchSampler."""
        self._planner.load_state_dict(state)
        self._reached = None

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch of ``state``, with another number of ranks too, as a framework's checkpoint asks.

        Raises ConfigError where it is of other data, another policy or another global batch.
        """
        size = self.plan_source.world.size if self.has_plans else None
        resized = size is not None and isinstance(state, Mapping) and state.get("world_size") not in (None, size)
        self.load_state_dict(for_world_size(state, size) if resized and size is not None else state)

    def leave_finished_epoch(self) -> None:
        """Let the next iteration begin with the next epoch, where a loaded state is of an epoch's last batch.

        Else that iteration yields nothing, as what is left of its epoch. Needs a loader that ``has_plans``.
        """
        if next(self._planner.plans(), None) is None:
            self._planner.set_epoch(self._planner.epoch + 1)


def _sampler_of(loader: Any) -> BatchSampler:
    """Return the BatchSampler whose lists are this loader's batches. Raises ConfigError where there is none."""
    parts = [loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    sampler = next((part for part in parts if isinstance(part, BatchSampler)), None)
    kind, torchdata = type(loader), sys.modules.get("torchdata.stateful_dataloader")
    plain = {DataLoader.__iter__} if torchdata is None else {DataLoader.__iter__, torchdata.StatefulDataLoader.__iter__}
    known = sampler is loader or is_accelerates(loader, "DataLoaderShard") or getattr(kind, "__iter__", None) in plain
    if sampler is None or not known:
        raise ConfigError(
            f"scaled({kind.__name__} over {type(parts[1] or parts[2]).__name__}): its batches are not lists of a "
            "ddpsched.BatchSampler one by one; give DataLoader(data, batch_sampler=ddpsched.BatchSampler(...)), a "
            "StepLoader or a PoolStream"
        )
    if not getattr(loader, "in_order", True):
        raise ConfigError(
            "scaled: in_order=False yields batches as they are ready, so their scales are not known; leave it out"
        )
    if getattr(loader, "skip_batches", 0):
        raise ConfigError(
            f"scaled: the loader skips {loader.skip_batches} batches; load the state of an earlier scaled(loader)"
        )
    return sampler


def _met(loader: StepLoader, batches: list[Any]) -> list[Any]:
    """Return a rank's batches, or as many stand-ins as all ranks run together where it has none."""
    plan, lockstep = loader.plan, loader.plan_source.policy.in_lockstep
    assert plan is not None
    most = max(map(len, plan.ranks)) if lockstep else 1
    if any(0 < len(rank) < most for rank in plan.ranks) and lockstep:  # on all ranks, or the others would wait
        raise InfeasibleError(
            f"StepLoader: step {plan.step} of epoch {plan.epoch} has {plan.global_batch} samples, too few for {most} "
            f"micro-batches on each of {plan.world_size} ranks, which run them together; give last='drop'"
        )
    return batches or [loader.stand_in() for _ in range(most)]
