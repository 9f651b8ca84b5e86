"""Context: the input of a policy for one epoch: order, lengths and the exchange of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError
from ddpsched.exchange import Exchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.step_plan import Ids, PlanTimes, Position


@dataclass(eq=False)
class Context:
    """One epoch, from ``start`` on.

    ``order``: (N,), ids as the epoch visits them; assignments hold positions in it. ``speeds``: of each rank that this
    process runs, where costs are refined. ``times``: of the step being planned, as far as its policy measures them.
    ``memo``: values that a policy keeps for later epochs of the same stream.
    """

    spec: PlanSpec
    lengths: Lengths
    exchange: Exchange
    start: Position
    speeds: Sequence[Speed] | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    times: PlanTimes = field(default_factory=PlanTimes)

    def __post_init__(self) -> None:
        self.order: Ids = self.spec.epoch_order(self.lengths, self.start.epoch)

    @cached_property
    def positions(self) -> Int:
        """0 .. N-1, from which windows are cut."""
        return np.arange(len(self.order))

    @cached_property
    def waiting(self) -> tuple[Int, ...]:
        """Positions that each rank has waiting at the start, rising; () at an epoch's start.

        Raises ConfigError where the start's windows hold an id that does not come before its cursor in this order.
        """
        if not self.start.windows:
            return ()
        places = np.empty_like(self.positions)
        places[self.order] = self.positions
        waiting = tuple(np.sort(places[ids]) for ids in self.start.windows)
        latest = max((int(positions[-1]) for positions in waiting if len(positions)), default=-1)
        if latest >= self.start.cursor:
            raise ConfigError(
                f"the position's windows hold id {self.order[latest]}, which is not among the first "
                f"{self.start.cursor} of its epoch's order: it was taken with another seed, order or data"
            )
        return waiting
