"""One iteration of a BatchSampler: this rank's lists, with the position that each leads to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ddpsched.errors import ConfigError
from ddpsched.integrations.agreement import Agreement
from ddpsched.integrations.iterated_by import InFlight
from ddpsched.integrations.plan_source import PlanSource, and_last
from ddpsched.integrations.step_share import StepShare
from ddpsched.step_plan import Position, StepPlan
from ddpsched.world import World

if TYPE_CHECKING:
    from ddpsched.integrations.batch_sampler import BatchSampler

MOST_IN_FLIGHT = 1024  # lists that a loader may have asked for ahead of the batch it hands out


class RankLists(Iterator[list[int]]):
    """One iteration of a BatchSampler, with its position.

    A loaded state is not used up before its epoch is run, so looking at one batch on one rank changes nothing.
    ``count``: lists handed out. ``is_over``: the last list is handed out, though workers may still be loading it.
    """

    def __init__(self, sampler: BatchSampler, plan_source: PlanSource, in_flight: InFlight) -> None:
        self._sampler, self._plan_source, self.in_flight = sampler, plan_source, in_flight
        self._at: Position | None = None  # before the first list it is the sampler's, as an epoch may yet be named
        self.epoch, self.count, self.is_over = -1, 0, False
        self._shares: deque[tuple[StepShare, Position, StepPlan]] = deque(maxlen=MOST_IN_FLIGHT)
        self._world = World()
        self.agreement: Agreement | None = None
        # made when the first list is asked for, since an epoch's order takes O(N)
        self._plans: Iterator[tuple[StepPlan, bool]] | None = None

    @property
    def reached(self) -> Position:
        """The position of the stream after the list handed out last."""
        return self._sampler.next_start if self._at is None else self._at

    def __next__(self) -> list[int]:
        self.in_flight.asked()
        if self._plans is None or self.agreement is None:
            start = self.reached
            self._world, self._at, self.epoch = self._plan_source.settle(), start, start.epoch
            self.agreement = self._plan_source.agreement(start)
            self._plans = and_last(self._plan_source.plans(start))
        elif self.count - len(self.in_flight) > self.in_flight.has_workers:
            self.agreement.compare()  # not for lists that workers ask for while the loop has at most one batch
        plan, is_last = next(self._plans, (None, False))
        if plan is None:
            self._end()
            raise StopIteration
        assert plan.after is not None
        self._at, self.is_over = plan.after, is_last
        if is_last:
            self.agreement.end()
        share = StepShare.of(plan, self._plan_source.lengths, self._world)
        self.count += 1
        self._shares.append((share, plan.after, plan))
        self._sampler.moved(self, share)
        return plan.rank_ids(self._world.rank).tolist() or [self._sampler.stand_in(plan, self._world.rank)]

    def _end(self) -> None:
        self.in_flight.ended()
        self._sampler.lists = self
        if self.reached.cursor:
            self._at = Position(self.reached.epoch + 1)
            if not self.count:
                self._sampler.nothing_left(self._at)

    def share(self, number: int) -> tuple[StepShare, Position, StepPlan]:
        """Return the share of a list, numbered from 0, the position after it, and its plan.

        Raises ConfigError where it is not among the last MOST_IN_FLIGHT lists.
        """
        place = number - self.count
        if not -len(self._shares) <= place < 0:
            raise ConfigError(
                f"list {number} is not among the last {len(self._shares)} of {self.count} that the sampler handed out; "
                f"a loader may ask for at most {MOST_IN_FLIGHT} lists ahead: lower num_workers or prefetch_factor"
            )
        return self._shares[place]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this iteration, as :meth:`BatchSampler.state_dict`."""
        return self._sampler.state_at(self.reached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move this iteration to ``state``, as :meth:`BatchSampler.load_state_dict`."""
        self._at, self._plans = self._plan_source.position(state), None
        self.count, self.is_over = 0, False
        self._shares.clear()
