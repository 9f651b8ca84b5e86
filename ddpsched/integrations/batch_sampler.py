"""The plans of one rank as a batch sampler, for a torch DataLoader or any other loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from ddpsched.data.lengths import refuse_other_number
from ddpsched.errors import ConfigError
from ddpsched.integrations.iterated_by import (
    InFlight,
    counted_by_accelerate,
    owners,
    refuse_dealing,
    saved_by_torchdata,
)
from ddpsched.integrations.loader_arguments import whole_number
from ddpsched.integrations.plan_source import PlanSource
from ddpsched.integrations.rank_lists import RankLists
from ddpsched.integrations.step_share import StepShare
from ddpsched.step_plan import Position, StepPlan
from ddpsched.world import World


class BatchSampler:
    """Lists of sample ids: what this rank runs, step by step, for one epoch.

        loader = DataLoader(data, batch_sampler=BatchSampler(lengths, global_batch=64))
        for epoch in range(3):
            for batch, scale in ddpsched.scaled(loader):
                (scale * summed_loss(model, batch)).backward()     # with ``model`` in torch's DDP
                optimizer.step()
                optimizer.zero_grad()

    gives the gradient of the mean over each step's global batch.

    ``lengths``: (N,) token lengths of all samples, the same on every rank; so every rank plans for all and no plan is
    communicated. All ranks yield equally often, and every id comes once per epoch.

    ``world``: which rank of how many; without it, that of torch's process group, or else of the environment, when an
    iteration begins. Ranks of a process group then check once that they follow one plan: PlanMismatch where lengths,
    policy, order, seed or ranks do not fit, RankFailure where a rank never begins.

    ``policy``: "static", "minmax", "balanced" or "packed", which divide steps of ``global_batch`` samples; or a mapping
    of its ``kind`` and options, as the table [policy] of a config has them. "token_budget", "bins" and "pool" fill
    micro-batches of sizes that vary, and take no global batch:
    ``policy={"kind": "pool", "max_tokens_for_batch": 4096, "pool_size": 256}``. A step is one micro-batch a rank here;
    options that give a rank several are refused: use StepLoader. "auto" takes the fastest of "static" and "balanced",
    as predicted by a ``cost`` in seconds for the ranks there are; a state goes on with what was taken before.

    ``order``: "shuffled", "sequential", "length_grouped" or "curriculum", or a mapping likewise, such as
    ``{"kind": "curriculum", "path": "order.npy"}`` of a file of `ddpsched sort`, which is not checked to be of these
    data.

    ``last``: what becomes of an epoch's last step in which a rank has no samples, since fewer than ranks are left.
    "smaller": that rank gets the shortest sample as a stand-in, which weighs 0, so that no list is empty and no sample
    counts twice. "join": the step before takes the samples, so it has up to G - 1 more than ``global_batch``; for
    "static", "balanced" and "packed". "drop": they are left out of this epoch. "full": the samples
    are left out wherever they are fewer than ``global_batch``, as by a DataLoader's ``drop_last``.

    ``cost``: what planning balances, "padded_tokens" or a mapping as the table [cost] of a config, such as
    ``{"kind": "calibrated", "path": "device.json"}`` of `ddpsched calibrate`, or ``{"kind": "padded_tokens", "alpha":
    200}`` where a micro-batch costs as much as 200 tokens by itself. ``memory``: ``{"path": "device.json",
    "budget_bytes": 8 * 2**30}`` gives no rank a micro-batch that its memory cannot hold. ``speeds``: how fast each rank
    is, compared with the others, as (1.0, 0.5) where rank 1 takes twice as long. All alike on every rank.

    The gradient is exact when the *summed* loss of the i-th list is multiplied by ``sum_scale(i)``, G / B_i or 0 for a
    stand-in, and gradients are averaged over ranks, as DDP does; ``ddpsched.scaled`` pairs batches and scales.

    An epoch counts as run when its last list is handed out; then the next iteration is of the next epoch, in another
    order. An iteration that is broken off before is begun again. ``set_epoch(e)`` names the epoch. Raises ConfigError
    or DataError for arguments out of range.

    ``state_dict()`` is the position of the iteration that moved last, the same on every rank; with it loaded, the next
    iteration continues there, whatever the number of steps before. A plain DataLoader with workers asks for lists ahead
    of those it hands out: take the state of ``ddpsched.scaled(loader)`` there; here it is refused while workers run.
    torchdata's StatefulDataLoader keeps and loads the state of an iterator itself.

    Attributes: ``policy`` (what plans, as the argument; of "auto" what it takes), ``last``, ``order`` (its kind;
    "sequential" and "curriculum" may be the same in every epoch), and ``over_budget``, samples that are longer than the
    budget of a pool and run alone; 0 for other policies.

    >>> ranks = [BatchSampler([3, 9, 4, 8, 5, 7], global_batch=3, world=World(r, 2), seed=1) for r in range(2)]
    >>> sorted(i for rank in ranks for ids in rank for i in ids)
    [0, 1, 2, 3, 4, 5]
    >>> lists = iter(ranks[0])                                     # of the next epoch
    >>> first, state = next(lists), ranks[0].state_dict()
    >>> resumed = BatchSampler([3, 9, 4, 8, 5, 7], global_batch=3, world=World(0, 2), seed=1)
    >>> resumed.load_state_dict(state)
    >>> resumed.first_step, list(resumed) == list(lists)
    (1, True)

    At most 16 padded tokens a list:

    >>> from functools import partial
    >>> budget = {"kind": "token_budget", "max_tokens_for_batch": 16}
    >>> make = partial(BatchSampler, [3, 9, 4, 8, 5, 7], policy=budget, order="sequential")
    >>> filled = [make(world=World(r, 2)) for r in range(2)]
    >>> for step, lists in enumerate(zip(*filled)):
    ...     print(*lists, filled[0].sum_scale(step))
    [0] [1] 1.0
    [2, 3] [4, 5] 0.5
    """

    def __init__(
        self,
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
    ) -> None:
        self.plan_source = plan_source = PlanSource(
            "BatchSampler", lengths, world, last, several=False, policy=policy, order=order, seed=seed,
            global_batch=global_batch, cost=cost, memory=memory, speeds=speeds,
        )  # fmt: skip
        most = plan_source.policy.most_microbatches
        if most > 1:
            key = "batches_per_optimizer_step" if plan_source.policy.varies else "max_microbatches"
            raise ConfigError(
                f"BatchSampler: policy.{key} = {most}, but a list is one micro-batch; use ddpsched.StepLoader, which "
                "yields all micro-batches of a step"
            )
        if plan_source.policy.one_shape:
            raise ConfigError(
                "BatchSampler: policy.same_shape pads all ranks' micro-batches to one length, which a list of ids "
                "cannot hold; use ddpsched.StepLoader, whose sample_padding_fn gets it"
            )
        self.last, self.order, self.over_budget = last, plan_source.order.options.kind, plan_source.over_budget
        self._origin = Position()  # where the next iteration begins, unless the last one has run its epoch
        self.lists: RankLists | None = None  # the iteration that moved last, until an epoch is named or a state loaded
        self._epoch, self._weights = 0, dict[int, float]()  # of the epoch that moved last: by step
        self.weighs = False  # scales are asked for, so a stand-in weighs 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with this epoch, at its first step, or where a loaded state of it stands."""
        if counted_by_accelerate():
            return
        epoch, start = whole_number("set_epoch", epoch), self.next_start
        if epoch != self._epoch:
            self._weights = {}
        if epoch != start.epoch and self.lists is None:
            self.plan_source.drop(start, epoch)
        self._go_to(start if epoch == start.epoch else Position(epoch))

    @property
    def next_start(self) -> Position:
        """The position at which the next iteration begins: the next epoch, once this one's last batch is handed out."""
        lists = self.lists
        if lists is not None and lists.is_over and not len(lists.in_flight) and lists.epoch == self._origin.epoch:
            self._origin, self.plan_source.followed = Position(self._origin.epoch + 1), lists.agreement
        return self._origin

    def _go_to(self, position: Position) -> None:
        self._origin, self.lists, self.plan_source.followed = position, None, None

    @property
    def batch_sampler(self) -> BatchSampler:
        """This sampler itself, as transformers' Trainer and Lightning (``sampler``) look for parts with set_epoch."""
        return self

    sampler = batch_sampler

    @property
    def policy(self) -> dict[str, Any]:
        """The policy that plans, as the argument takes it; of "auto" what it takes for the ranks there are now."""
        return self.plan_source.taken

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins or continues."""
        return self.next_start.epoch

    @property
    def first_step(self) -> int:
        """The step of its epoch with which the next iteration begins: 0, unless a state was loaded.

        A loader that loads a state as it begins, as StatefulDataLoader does, changes it no sooner.
        """
        return self.next_start.step

    def plans(self) -> Iterator[StepPlan]:
        """Return the plans of the next iteration, with all ranks' samples."""
        return self.plan_source.plans(self.next_start)

    def __iter__(self) -> RankLists:
        callers = list(owners())
        refuse_dealing(self, callers)
        for caller in callers:
            if getattr(caller, "batch_sampler", None) is self:
                refuse_other_number(getattr(caller, "dataset", None), len(self.plan_source.lengths))
        return RankLists(self, self.plan_source, InFlight(callers))

    def __len__(self) -> int:
        """Return the steps of the epoch, ceil(N / B); of the whole one, also where an iteration continues within it.

        Where a policy fills micro-batches this plans the epoch, once; another epoch may have more or fewer.
        """
        return self.plan_source.num_steps(self.next_start.epoch)

    def sum_scale(self, index: int) -> float:
        """Return G / B_i for the i-th step of an epoch; 0 where this rank's list is a stand-in.

        B_i is the global batch, smaller in the last step. Steps count from the epoch's beginning. It is known once the
        list is handed out; before that where B_i is ``global_batch``, or all have been planned by ``len()``. Raises
        IndexError for a step that the epoch does not have, or that is not known yet.
        """
        self.weighs = True
        weight, epoch = self._weights.get(index), self.next_start.epoch
        if weight is None:
            weight = self.plan_source.known_weight(epoch, index)
        if weight is None:
            plan_it = ", or call len(sampler) before, which plans the whole epoch" * self.plan_source.policy.varies
            raise IndexError(
                f"step {index} of epoch {epoch} is not planned yet, and what it holds is not known before; ask once "
                f"its list is handed out{plan_it}"
            )
        return weight

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON takes them: what makes the plans, and the position.

        After the last list of an epoch nothing of it is left; once its iteration has ended, the next epoch begins.
        Raises ConfigError where a loader has asked for lists whose batches it has not handed out.
        """
        ahead = 0 if self.lists is None else len(self.lists.in_flight)
        if ahead and not saved_by_torchdata():
            raise ConfigError(
                f"BatchSampler: the loader has asked for {ahead} list(s) whose batches the loop has not got, so the "
                "sampler's state is ahead of it; take that of `steps = ddpsched.scaled(loader)` (for batch, scale in "
                "steps), or of torchdata's StatefulDataLoader"
            )
        return self.state_at(self.next_start if self.lists is None else self.lists.reached)

    def state_at(self, position: Position) -> dict[str, Any]:
        """Return the state of another position of this stream."""
        return self.plan_source.state(position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken, in its epoch. Raises ConfigError for that of other data or policy."""
        self._go_to(self.plan_source.position(state))
        self._weights = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which begins where the next iteration of this one does."""
        return {**self.__dict__, "_origin": self.next_start, "lists": None}

    def stand_in(self, plan: StepPlan, rank: int) -> int:
        """Return the sample that rank ``rank`` gets where it has none of a plan's."""
        if not self.weighs:
            warnings.warn(
                f"BatchSampler: in step {plan.step} of epoch {plan.epoch} rank {rank} has none of the "
                f"{plan.global_batch} samples and gets sample {self.plan_source.stand_in} as a stand-in, which must "
                "weigh 0: multiply losses by the scale of ddpsched.scaled(loader), or by sum_scale(step). A loop that "
                "takes means by itself, as transformers' Trainer does, needs last='join' or last='drop', which "
                "policies 'static', 'balanced' and 'packed' have",
                stacklevel=3,
            )
        return self.plan_source.stand_in

    def moved(self, lists: RankLists, share: StepShare) -> None:
        """Note that a list of this share is handed out in that iteration."""
        self.lists = lists
        if share.epoch != self._epoch:
            self._epoch, self._weights = share.epoch, {}
        self._weights[share.step] = share.weight

    def nothing_left(self, after: Position) -> None:
        """Note that an iteration from a loaded state has no list, as its epoch had been run."""
        if self._origin.epoch == after.epoch - 1:
            self._origin = after
