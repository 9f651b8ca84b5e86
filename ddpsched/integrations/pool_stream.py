"""Policy pool over an iterable data set, whose lengths nobody knows beforehand: each rank chooses from its own."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ddpsched.config import validate
from ddpsched.errors import ConfigError
from ddpsched.integrations.agreement import Agreement
from ddpsched.integrations.plan_source import (
    Arguments,
    epoch_number,
    number_among,
    number_of_steps,
    options_of,
    plain_values,
    whole_number,
)
from ddpsched.integrations.pool_picks import Picked, PoolPicks
from ddpsched.integrations.sample_reader import SampleReader
from ddpsched.integrations.step_share import StepShare
from ddpsched.planning.policies.pool import Pool
from ddpsched.world import World


class PoolStream:
    """Yield this rank's micro-batches of each optimizer step as a list, chosen from a pool that the iterable feeds.

    ``iterable``: this rank's samples, whatever yields them; a DataLoader with
    ``batch_size=None`` reads them in worker processes. ``length_fn(sample)``: tokens.
    ``policy``: "pool", or a mapping with its ``kind`` and options, as the table [policy] of a config has them.
    The pool holds ``pool_size`` samples; a micro-batch begins with the oldest and takes
    others as ``strategy`` says ("prefer_closest" in length, or "prefer_first"), as long
    as count * longest stays within ``max_tokens_for_batch``; with ``sequence_packing``
    as long as their sum does, whatever the strategy. A longer sample runs alone;
    ``over_budget`` counts these.

    A step has ``batches_per_optimizer_step`` of them; each is ``collate_fn(samples)``, or
    the list of samples, which ``sample_padding_fn(sample, length)`` has filled up to the
    longest of them. ``infinite_loop``: an epoch that is over is followed by the next,
    announced by the iterable's ``set_epoch(e)``, and the pool stays full; so all ranks
    yield ``max_num_steps`` lists, or lists without end.

    ``world``: which rank of how many; without it, what torch's process group or else the environment says when an
    iteration begins; ranks of a process group then check that they have the same policy. An epoch
    counts as run once its iteration has ended; the next iteration is of the next one, which ``set_epoch(e)`` may name.

    *Ranks of a step* do not know each other's samples, unless ``agree`` tells them:
    given this rank's samples in the step it answers those of all ranks, as
    ``ddpsched.integrations.agree.sum_over_ranks`` does. Then ``step.sum_scale`` is
    G / B, and with ``infinite_loop=False``, which needs it on several ranks, all end
    together: a rank that ran dry yields empty lists until all have, and joins the others
    with a gradient of zero, say that of a batch seen before, times zero. An ``agree``
    that answers with a bool says whether the step takes place, and B stays unknown.

    ``step``: the :class:`StepShare` of the list yielded last. ``state_dict()`` holds
    the samples that wait, so it is for torch.save or pickle, and each rank has its own.
    With it loaded the next iteration goes on there: at once where the iterable has
    ``state_dict`` and ``load_state_dict`` too, else by reading this epoch's samples
    again. Raises ConfigError for arguments out of range, DataError for bad samples.

    Source: cosmos-rl's ``LoadBalancedDataset``, whose defaults these are, and whose
    choices but for packed rows; it resumes by choosing all batches before again.

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
        iterable: Iterable[Any],
        length_fn: Callable[[Any], int],
        *,
        world: World | None = None,
        policy: str | Mapping[str, Any] = "pool",
        max_num_steps: int | None = None,
        infinite_loop: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sample_padding_fn: Callable[[Any, int], Any] | None = None,
        agree: Callable[[int], int] | None = None,
    ) -> None:
        self._given, self._settled = world, world
        self.policy = _pool(policy)
        if max_num_steps is not None:
            max_num_steps = whole_number("PoolStream: max_num_steps", max_num_steps, 1, "needs an integer of 1 or more")
        if self.policy.packs and sample_padding_fn is not None:
            raise ConfigError("PoolStream: packed rows have no padding; leave sample_padding_fn out")
        for remark in self.policy.remarks:
            warnings.warn(remark, stacklevel=2)
        self._infinite = infinite_loop and self.policy.endless
        self.max_num_steps = max_num_steps
        self._iterable, self._length_fn, self._agree = iterable, length_fn, agree
        self._collate, self._pad = collate_fn, sample_padding_fn
        self._next = self._reached = self._begin(0)  # what the next iteration goes on with; where the last one stands
        self._skip = 0  # steps that the next iteration leaves out
        self._number = number_among(world)
        self._agreement: Agreement | None = None  # of the last iteration; a copy has none
        self.over_budget = 0
        self.step: StepShare | None = None
        self._check_ends()

    @property
    def world(self) -> World:
        """The one given, or that of the running iteration, or what is to be seen now."""
        return self._settled or World.detect()

    def _check_ends(self) -> None:
        size = 1 if self._settled is None else self._settled.size
        if not self._infinite and size > 1 and self._agree is None:
            raise ConfigError(
                f"PoolStream: with infinite_loop=False, each of {size} ranks ends with its own data, which "
                "the others do not know; give agree=sum_over_ranks (ddpsched.integrations.agree)"
            )

    def set_epoch(self, epoch: int) -> None:
        """The next iteration begins with this epoch, or where a loaded state of it stands; skipped steps stay so."""
        epoch = epoch_number(epoch)
        if epoch not in (self._next.first_epoch, self._next.reader.epoch):
            self._next = self._begin(epoch)
        self._reached = self._next

    def skip_batches(self, count: int) -> None:
        """Leave out the next ``count`` optimizer steps: their samples are read, but neither padded nor collated.

        They count as steps of the next iteration, whichever epoch ``set_epoch`` names before or after, and are read
        as it begins, or as a state is asked for. Ranks do not agree meanwhile: skip the same number on each.
        """
        self._skip += number_of_steps(count)
        self._reached = self._next

    def _read_skipped(self) -> None:
        for _ in range(self._skip):
            self._picked(self._next)
            self._next.steps += 1
        self._skip = 0

    def __iter__(self) -> Iterator[list[Any]]:
        world = self._settled = self._given or World.detect()
        self._check_ends()
        self._read_skipped()
        # what the next iteration begins with stays as it is until an epoch is run, so that whoever looks at one batch
        # changes nothing
        picks, self._next = self._next, self._begin(0)
        self._next.load_state_dict(picks.state_dict())
        return self._lists(picks, world)

    def _begin(self, epoch: int) -> PoolPicks:
        return PoolPicks(self.policy, SampleReader(self._iterable, self._length_fn, self._infinite, epoch))

    def _lists(self, picks: PoolPicks, world: World) -> Iterator[list[Any]]:
        begun = picks.steps
        identity = {key: value for key, value in self._identity().items() if key not in ("rank", "world_size")}
        start = {"step": begun, "max_num_steps": self.max_num_steps}
        waits = self._agreement is None or not self._agreement.has_compared
        agreement = self._agreement = Agreement("PoolStream", world, identity, start, self._number, waits)
        agreement.first()
        while self.max_num_steps is None or picks.steps < self.max_num_steps:
            if picks.steps > begun:
                agreement.second()
            micro = self._picked(picks)
            share = self._share(picks, micro)
            if share is None:
                self._next = self._begin(picks.reader.epoch + 1)
                if self.max_num_steps is None:  # of a whole run the end is kept, which more steps may go on from
                    self._reached = self._next
                return
            picks.steps += 1
            self._reached, self.step = picks, share
            if picks.steps == self.max_num_steps:
                self._next = self._begin(picks.reader.epoch + 1)
            yield [self._batch(each) for each in micro]

    def _picked(self, picks: PoolPicks) -> list[Picked]:
        micro = picks.next_step()
        self.over_budget += sum(max(each.lengths) > picks.budget for each in micro)
        return micro

    def _share(self, picks: PoolPicks, micro: list[Picked]) -> StepShare | None:
        """None where no rank has a sample left."""
        own = sum(len(each.samples) for each in micro)
        total = own if self._agree is None else self._agree(own)
        if not total:
            return None
        alone, told = self.world.size == 1, self._agree is not None and not isinstance(total, bool)
        if told and total < own:
            raise ConfigError(f"agree({own}) gave {total}: all ranks together cannot have fewer samples than this one")
        tokens = sum(sum(each.lengths) for each in micro)
        return StepShare(
            epoch=picks.reader.epoch,
            step=picks.steps,
            world_size=self.world.size,
            rank_samples=own,
            rank_tokens=tokens,
            rank_microbatches=len(micro),
            num_samples=own if alone else int(total) if told else None,
            num_tokens=tokens if alone else None,
        )

    def _batch(self, micro: Picked) -> Any:
        samples = micro.samples
        if self._pad is not None:
            samples = [self._pad(sample, max(micro.lengths)) for sample in samples]
        return samples if self._collate is None else self._collate(samples)

    def state_dict(self) -> dict[str, Any]:
        """Return what makes this rank's choices, where the list yielded last stands, and the samples that wait."""
        if self._reached is self._next:
            self._read_skipped()
        return {**self._identity(), "over_budget": self.over_budget, **self._reached.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; ConfigError where it is of another rank, world size or policy.

        Other data is found out with the next list, where the iterable's samples are read again.
        """
        own, picks = self._identity(), self._begin(0)
        needed = sorted([*own, "over_budget", *picks.state_dict()])
        if not isinstance(state, Mapping) or set(state) != set(needed):
            given = sorted(map(str, state)) if isinstance(state, Mapping) else repr(state)
            raise ConfigError(f"the state of a PoolStream needs exactly {needed}, got {given}")
        differs = [f"{key} = {state[key]!r}, here {value!r}" for key, value in own.items() if state[key] != value]
        if differs:
            raise ConfigError(f"the state is of another PoolStream: {'; '.join(differs)}")
        wrong = [key for key in ("steps", "first_epoch", "over_budget") if not _is_number(state[key])]
        if wrong:
            raise ConfigError(f"the state's {wrong[0]} = {state[wrong[0]]!r}, needs an integer of 0 or more")
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
        policy = self.policy
        return {
            "pool_size": policy.pool_size,
            "max_tokens_for_batch": policy.max_tokens_for_batch,
            "strategy": "sequence_packing" if policy.sequence_packing else policy.strategy,
            "batches_per_optimizer_step": policy.batches_per_optimizer_step,
            "infinite_loop": self._infinite,
            "rank": self.world.rank,
            "world_size": self.world.size,
        }


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 0


def _pool(given: str | Mapping[str, Any]) -> Pool:
    """Return the policy with its options; ConfigError for one that needs lengths which an iterable does not tell."""
    values = {"seed": 0, "order": {}, "global_batch": None, "policy": options_of("PoolStream", "policy", given)}
    policy = validate(Arguments, plain_values(values), "PoolStream").policy
    if not isinstance(policy, Pool):
        raise ConfigError(
            f"PoolStream: policy {policy.kind!r} needs the lengths of all samples, which an iterable does not tell; "
            "use policy 'pool', or ddpsched.StepLoader over a data set with samples by id"
        )
    return policy
