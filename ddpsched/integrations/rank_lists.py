"""One iteration of a batch sampler: the lists of this rank, and what is known of each that was handed out."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ddpsched.errors import ConfigError
from ddpsched.integrations.agreement import Agreement
from ddpsched.integrations.iterated_by import InFlight
from ddpsched.integrations.plan_source import PlanSource
from ddpsched.integrations.step_share import StepShare
from ddpsched.plan import Position, StepPlan
from ddpsched.world import World

if TYPE_CHECKING:
    from ddpsched.integrations.batch_sampler import BatchSampler

MOST_IN_FLIGHT = 1024  # lists that a loader may have asked for ahead of the batch it hands out


class HandedOut:
    """The last lists of one iteration: what each is a share of, and where the stream stands after it."""

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[tuple[StepShare, Position]] = deque(maxlen=MOST_IN_FLIGHT)

    def add(self, share: StepShare, after: Position) -> None:
        self.count += 1
        self._last.append((share, after))

    def __getitem__(self, number: int) -> tuple[StepShare, Position]:
        """Those of the list with this number, from 0; ConfigError where it is not among the last."""
        place = number - self.count
        if not -len(self._last) <= place < 0:
            raise ConfigError(
                f"list {number} is not among the last {len(self._last)} of {self.count} that the sampler handed out; a "
                f"loader may ask for at most {MOST_IN_FLIGHT} lists ahead: lower num_workers or prefetch_factor"
            )
        return self._last[place]


class RankLists(Iterator[list[int]]):
    """One iteration of a BatchSampler: where it stands, and what it has handed out.

    Nothing of a loaded state is used up before its epoch is run, so whoever looks at one batch on one rank changes
    nothing; ``is_over``: the last list is handed out, though workers may still be loading it.
    """

    def __init__(self, sampler: "BatchSampler", source: PlanSource, in_flight: InFlight) -> None:
        self._sampler, self._source, self.in_flight = sampler, source, in_flight
        self._at: Position | None = None  # before the first list it is the sampler's, as an epoch may yet be named
        self.epoch, self.handed_out, self.is_over = -1, HandedOut(), False
        self._world = World()
        self.agreement: Agreement | None = None
        self._plans: Iterator[StepPlan] | None = None  # made when the first is asked for: an epoch's order takes O(N)
        self._next: StepPlan | None = None  # planned one step ahead, to know the last one as it is handed out

    @property
    def reached(self) -> Position:
        """The position of the stream after the list handed out last."""
        return self._sampler.next_start if self._at is None else self._at

    def __next__(self) -> list[int]:
        self.in_flight.asked()
        if self._plans is None:
            self._begin()
        elif self.handed_out.count - len(self.in_flight) > self.in_flight.has_workers:
            assert self.agreement is not None
            self.agreement.second()  # not for lists that workers ask for while the loop has at most one batch
        plan = self._next
        if plan is None:
            self._end()
            raise StopIteration
        assert self._plans is not None
        assert plan.after is not None
        self._next = next(self._plans, None)
        self._at, self.is_over = plan.after, self._next is None
        if self.is_over:
            assert self.agreement is not None
            self.agreement.over()
        share = StepShare.of(plan, self._source.lengths, self._world)
        self.handed_out.add(share, plan.after)
        self._sampler.moved(self, share)
        return plan.rank_ids(self._world.rank).tolist() or [self._sampler.stand_in(plan, self._world.rank)]

    def _begin(self) -> None:
        self._world, self._at = self._source.settle(), self.reached
        if (ended := self._sampler.followed) is not None:
            ended.all_over()
        self.epoch = self._at.epoch
        self.agreement = self._source.agreement(self.reached)
        self._plans = self._source.plans(self.reached)
        self._next = next(self._plans, None)

    def _end(self) -> None:
        self.in_flight.ended()
        self._sampler.lists = self
        if self.reached.cursor:
            self._at = Position(self.reached.epoch + 1)
            if not self.handed_out.count:
                self._sampler.nothing_left(self.reached)

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`BatchSampler.state_dict`, of this iteration."""
        return self._sampler.state_at(self.reached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`BatchSampler.load_state_dict`, of this iteration."""
        self._at, self._plans = self._source.position(state), None
        self.handed_out, self.is_over = HandedOut(), False
