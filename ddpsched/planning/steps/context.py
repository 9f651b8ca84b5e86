"""Context: all that a policy is given of an epoch, its order, its lengths and the exchange of ranks."""

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
from ddpsched.plan import Ids, PlanTimes, Position
from ddpsched.planning.plan_spec import PlanSpec


@dataclass(eq=False)
class Context:
    """One epoch, from ``start`` on.

    ``order``: (N,), ids as the epoch visits them; policies answer in positions of it. ``speeds``: of each rank that
    this process plays, where costs are refined. ``times``: of the step being planned, as far as its policy measures
    them. ``memo``: what a policy found in an earlier epoch of the same stream.
    """

    spec: PlanSpec
    lengths: Lengths
    exchange: Exchange
    start: Position
    order: Ids
    speeds: Sequence[Speed] | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    times: PlanTimes = field(default_factory=PlanTimes)

    @cached_property
    def positions(self) -> Int:
        """0 .. N-1, of which windows are cut."""
        return np.arange(len(self.order))

    @cached_property
    def waiting(self) -> tuple[Int, ...]:
        """Positions that each rank has waiting at the start, rising; () at an epoch's start.

        Raises ConfigError where this order did not hand out the ids of the start's windows before its cursor.
        """
        if not self.start.windows:
            return ()
        places = np.empty(len(self.order), dtype=np.int64)
        places[self.order] = np.arange(len(self.order))
        waiting = tuple(np.sort(places[ids]) for ids in self.start.windows)
        for own in waiting:
            if len(own) and own[-1] >= self.start.cursor:
                raise ConfigError(
                    f"the position's windows hold id {self.order[own[-1]]}, which is not among the first "
                    f"{self.start.cursor} of its epoch's order: it was taken with another seed, order or data"
                )
        return waiting
