"""A torch loader of whole optimizer steps: the list of this rank's micro-batches, for any training loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, IterableDataset

from ddpsched.data.lengths import refuse_other_number
from ddpsched.errors import ConfigError
from ddpsched.integrations.iterated_by import begun_anew
from ddpsched.integrations.loader_arguments import whole_number
from ddpsched.integrations.packed_rows import warn_of_rows
from ddpsched.integrations.plan_source import PlanSource
from ddpsched.integrations.step_batches import Asked, Keys, MicroBatches, keys_of
from ddpsched.integrations.step_share import StepShare
from ddpsched.step_plan import Position, StepPlan
from ddpsched.world import World

if TYPE_CHECKING:
    from ddpsched.integrations.split_samples import PartBatches  # which needs transformers

OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order")  # of DataLoader's arguments


class StepLoader:
    """Yield this rank's collated micro-batches of each optimizer step as a list, by any policy.

        for batches, weight in ddpsched.scaled(loader):            # one optimizer step
            for batch in ddpsched.micro_batches(model, batches):   # this rank's
                (weight * summed_loss(model, batch)).backward()
            optimizer.step()
            optimizer.zero_grad()

    gives, with ``model`` in torch's DDP, the gradient of the mean over the step's global batch: ``sum_scale`` is for
    gradients that are averaged over ranks, ``add_scale`` for those that are added up. All ranks yield equally often,
    and their samples are every id once per epoch. At an epoch's end a rank may have fewer micro-batches than others,
    and the list may be empty; DDP's ranks must meet once a step all the same, so ``scaled`` gives it the ``stand_in``,
    whose weight is 0. ``last`` = "join", "drop" or "full", as of BatchSampler, leaves no list empty.

    ``dataset``: with ``[id]``, or ``__getitems__``. ``lengths``: (N,) tokens of its samples, or (N, 2) of two parts,
    the same on every rank. ``world``, ``policy``, ``global_batch``, ``order``, ``seed``, ``cost``, ``memory``,
    ``speeds``: as of BatchSampler, and ranks of a process group agree likewise. A mapping may give a rank several
    micro-batches, as ``{"kind": "balanced", "max_microbatches": 4}``, of which the cost decides how many are worth it;
    or ``{"kind": "pool", "max_tokens_for_batch": 4096, "batches_per_optimizer_step": 4}``, with which an epoch's last
    step may hold fewer than the others. "auto" takes "static" or "balanced" with 1, 2, ... ``max_microbatches`` (4).

    *How long*: ``max_num_steps`` optimizer steps, through as many epochs as these take (``infinite_loop=False``: to the
    end of the first at most, for all ranks alike); or ``epochs``; with neither, one epoch an iteration. Once the last
    list of an iteration is yielded, the next iteration begins with the epoch after; one that is broken off before is
    begun again. ``set_epoch(e)`` names the epoch to begin with.

    *How samples become batches*: ``sample_padding_fn(sample, length)`` fills one sample up to ``length``, its
    micro-batch's longest or what ``same_shape`` asks for; ``collate_fn(samples)`` makes the batch, else torch's. Packed
    rows come to collate_fn as the list of their samples, unpadded, and ``strategy`` is ignored. ``loader_options``, as
    ``num_workers`` and ``pin_memory``, are DataLoader's; a worker loads a whole step.

    ``step``: the :class:`StepShare` of the list yielded last. ``state_dict()`` is the position after that list,
    whatever workers have loaded ahead, and is the same on every rank; with it loaded, the next iteration continues
    there without the steps before.

    Attributes: ``policy``, ``order`` and ``over_budget``, as of BatchSampler.

    Raises ConfigError or DataError for arguments out of range.

    >>> lengths = [3, 9, 4, 8, 5, 7]
    >>> policy = {"kind": "token_budget", "max_tokens_for_batch": 9, "batches_per_optimizer_step": 2}
    >>> loader = StepLoader(range(6), lengths, world=World(0, 1), policy=policy, order="sequential", collate_fn=list)
    >>> for batches in loader:
    ...     print(batches, loader.step.num_tokens, loader.step.sum_scale)
    [[0], [1]] 12 0.5
    [[2], [3]] 12 0.5
    [[4], [5]] 12 0.5
    """

    def __init__(
        self,
        dataset: Any,
        lengths: npt.ArrayLike,
        *,
        global_batch: int | None = None,
        world: World | None = None,
        policy: str | Mapping[str, Any] = "balanced",
        order: str | Mapping[str, Any] = "shuffled",
        seed: int = 0,
        last: str = "smaller",
        cost: str | Mapping[str, Any] = "padded_tokens",
        memory: Mapping[str, Any] | None = None,
        speeds: Sequence[float] | None = None,
        max_num_steps: int | None = None,
        epochs: int | None = None,
        infinite_loop: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sample_padding_fn: Callable[[Any, int], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        **loader_options: Any,
    ) -> None:
        self.plan_source = plan_source = PlanSource(
            "StepLoader", lengths, world, last, several=True, policy=policy, order=order, seed=seed, cost=cost,
            global_batch=global_batch, max_num_steps=max_num_steps, epochs=epochs, memory=memory, speeds=speeds,
        )  # fmt: skip
        _check_data(dataset, len(plan_source.lengths))
        self._infinite = infinite_loop and plan_source.policy.endless
        self._max_num_steps, self._epochs = plan_source.arguments.max_num_steps, plan_source.arguments.epochs
        if max_num_steps is not None and epochs is not None:
            raise ConfigError(f"StepLoader: max_num_steps = {max_num_steps} and epochs = {epochs}: give one of the two")
        if not self._infinite and (self._epochs or 1) > 1:
            raise ConfigError(f"StepLoader: epochs = {epochs}, but infinite_loop=False ends after one; leave one out")
        if plan_source.policy.packs and sample_padding_fn is not None:
            raise ConfigError(
                "StepLoader: packed rows have no padding, so sample_padding_fn has nothing to do; leave it out, and "
                "let collate_fn lay the samples end to end"
            )
        if plan_source.policy.one_shape and sample_padding_fn is None:
            raise ConfigError(
                "StepLoader: policy.same_shape pads all micro-batches of a step to one length, which "
                "sample_padding_fn gets; give one"
            )
        taken = [name for name in OURS if name in loader_options]
        if taken:
            given = ", ".join(f"{name} = {loader_options[name]!r}" for name in taken)
            raise ConfigError(f"StepLoader: {given}: the policy decides which samples come when; leave this out")
        self.order, self.over_budget = plan_source.order.options.kind, plan_source.over_budget
        self._batches, self._keys = MicroBatches(dataset, collate_fn, sample_padding_fn), Keys()
        self._loader = DataLoader(
            self._batches,
            batch_size=None,
            sampler=self._keys,
            collate_fn=list,  # the data set has collated
            num_workers=num_workers,
            pin_memory=pin_memory,
            **loader_options,
        )
        self._first = 0  # the epoch with which the next iteration begins, or its loaded state's began
        self._origin = Position()  # where the next iteration begins, but for the steps that are skipped
        self._skip = 0
        self._began = 0  # the first epoch of the iteration that moved last
        self._asked: Asked | None = None  # of the running iteration
        self._unseen_rows = plan_source.policy.packs  # no packed row of several samples was looked at
        self._reached: Position | None = None  # after the list yielded last; None before any, and after an epoch
        self.step: StepShare | None = None
        self.parts: PartBatches | None = None  # of split samples, set by split_samples
        self.plan: StepPlan | None = None  # of the list yielded last

    @property
    def policy(self) -> dict[str, Any]:
        """The policy that plans, as the argument takes it; of "auto" what it takes for the ranks there are now."""
        return self.plan_source.taken

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins or continues."""
        return self._start.epoch

    @property
    def first_step(self) -> int:
        """The step with which the next iteration begins: 0, unless a state was loaded or steps are skipped."""
        return self._origin.step + self._skip

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with this epoch, or where a loaded state of it stands; skips stay."""
        epoch = whole_number("set_epoch", epoch)
        if epoch not in (self._first, self._origin.epoch):
            if self._reached is None:
                self.plan_source.drop(self._origin, epoch)
            self._next_epoch(epoch, self._skip)
        self._reached = self.plan_source.followed = None

    def skip_batches(self, count: int) -> None:
        """Leave out the next ``count`` optimizer steps: they are planned, but no sample is loaded.

        They count as steps of the next iteration, whichever epoch ``set_epoch`` names before or after. Where it has
        fewer, it raises ConfigError as it begins.
        """
        self._skip, self._reached = self._skip + whole_number("skip_batches", count), None

    @property
    def _start(self) -> Position:
        """The position at which the next iteration begins: after the steps that are skipped."""
        position, done = self._origin, 0
        for plan in itertools.islice(self._plans(position), self._skip):
            assert plan.after is not None
            position, done = plan.after, done + 1
        if done < self._skip:
            raise ConfigError(f"skip_batches({self._skip}): only {done} optimizer steps are left; skip at most these")
        return position

    def stand_in(self) -> Any:
        """Return a batch of the shortest sample, which a rank without samples puts through its model, times zero."""
        batch = self.batch([self.plan_source.stand_in])
        return batch if self.parts is None else self.parts.whole(batch)

    def batch(self, ids: list[int]) -> Any:
        """Return the samples of these ids as one batch."""
        longest = int(self.plan_source.lengths.lengths(np.array(ids)).max())
        return self._batches.micro_batch(ids, longest)

    def plans(self) -> Iterator[StepPlan]:
        """Return the plans of the next iteration, with all ranks' samples; nothing is loaded."""
        return self._plans(self._start)

    def __len__(self) -> int:
        """Return the optimizer steps of an iteration; of the whole one, also where it continues within.

        Where a policy fills micro-batches and epochs decide, this plans each of them, once.
        """
        most = self._max_num_steps
        if most is not None and self._infinite:
            return most
        steps = sum(self.plan_source.num_steps(self._first + number) for number in range(self._epochs or 1))
        return steps if most is None else min(most, steps)

    def __iter__(self) -> Iterator[list[Any]]:
        if self.plan_source.policy.splits and self.parts is None:
            raise ConfigError(
                "StepLoader: policy 'split' yields parts of samples, for which a model has to gather keys and values; "
                "iterate it within ddpsched.split_samples(model, loader)"
            )
        refuse_other_number(self._batches.dataset, len(self.plan_source.lengths))  # it may have grown
        world = self.plan_source.settle()
        start, end, self._began = self._start, self._end, self._first
        agreement = self.plan_source.agreement(start, max_num_steps=self._max_num_steps, epochs=self._epochs)
        asked = self._asked = Asked()  # batches on their way: workers are ahead
        plans = partial(self.plan_source.run, start, end, self._max_num_steps)
        # of values alone: a way from workers that stay back to this loader would be a cycle, which may be collected
        # within a worker forked later, where torch waits for the others in vain
        self._keys.make = partial(keys_of, plans, world.rank, self.plan_source.lengths, asked)
        position, yielded = start, False
        for batches in self._loader:
            if self._loader.persistent_workers and self._asked is not asked:
                raise begun_anew("StepLoader")
            if yielded:
                agreement.compare()
            plan, is_last = asked.popleft()
            assert plan.after is not None
            position, yielded, self._reached = plan.after, True, plan.after
            self.step, self.plan = StepShare.of(plan, self.plan_source.lengths, world), plan
            if is_last:  # nothing of a loaded state, and no skip, is used up before
                self._next_epoch(plan.epoch + 1)
                self.plan_source.followed = agreement
                agreement.end()
            if self._unseen_rows:
                rows = plan.ranks[world.rank]
                self._unseen_rows = not warn_of_rows(rows, batches, self.plan_source.lengths)
            yield batches if self.parts is None else self.parts.of_step(plan, batches, world.rank)
        if yielded:
            agreement.compare()
        if self._one_epoch and position.cursor:
            self._reached = None  # the end of a run of several epochs is kept, since more steps may follow it
            if not yielded and self._origin.epoch == position.epoch:  # nothing was left of a loaded state's epoch
                self._next_epoch(position.epoch + 1)

    def _plans(self, start: Position) -> Iterator[StepPlan]:
        return self.plan_source.run(start, self._end, self._max_num_steps)

    def _next_epoch(self, epoch: int, skip: int = 0) -> None:
        self._first, self._origin, self._skip = epoch, Position(epoch), skip

    @property
    def _one_epoch(self) -> bool:
        return self._max_num_steps is None and self._epochs is None

    @property
    def _end(self) -> int | None:
        """The epoch that is not begun any more; None where steps alone decide."""
        if self._max_num_steps is not None and self._infinite:
            return None
        return self._first + (self._epochs or 1)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON takes them: what makes the plans, and the position after the last list yielded.

        Once an iteration over one epoch has ended, the next epoch begins.
        """
        reached, began = (self._start, self._first) if self._reached is None else (self._reached, self._began)
        return self.plan_source.state(reached, first_epoch=reached.epoch if self._one_epoch else began)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken.

        Raises ConfigError where it is of other data or another policy, seed, order or world size. ``max_num_steps`` and
        ``epochs`` may be others than they were there, as long as they lie beyond it.
        """
        position = self.plan_source.position(state, "first_epoch")
        first, problem = state["first_epoch"], None
        begun = f"the state is in epoch {position.epoch} of a run that began with {first}, but"
        if type(first) is not int or not 0 <= first <= position.epoch:
            problem = f"the state's first_epoch = {first!r} is not one of 0 to {position.epoch}, its position's"
        elif self._max_num_steps is not None and position.step > self._max_num_steps:
            problem = f"the state is after {position.step} steps, but max_num_steps = {self._max_num_steps}; raise it"
        elif self._one_epoch and first != position.epoch:
            problem = f"{begun} here an iteration is one epoch; give max_num_steps or epochs"
        elif self._epochs is not None and position.epoch > first + self._epochs:
            problem = f"{begun} epochs = {self._epochs}"
        if problem:
            raise ConfigError(problem)
        self._next_epoch(first)
        self._origin, self._reached, self.plan_source.followed = position, None, None


def _check_data(dataset: Any, num_lengths: int) -> None:
    has_ids = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if isinstance(dataset, IterableDataset) or not has_ids:
        raise ConfigError(
            f"StepLoader: {type(dataset).__name__} has no samples by id; use ddpsched.PoolStream for an iterable "
            "dataset"
        )
    refuse_other_number(dataset, num_lengths)
