"""The plans of a run, prefetched, and made anew with lower memory caps once a rank ran out of memory."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ddpsched.costs.memory_cap import lowered
from ddpsched.costs.rank_speed import Speed
from ddpsched.costs.shape_menu import MenuCost
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import Exchange, LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import PrefetchedPlans, num_steps, plan_steps
from ddpsched.step_plan import Position, StepPlan

log = logging.getLogger("ddpsched")


class PlanStream:
    """An iterator over plans, equal on every rank. Arguments are those of ``plan_steps``.

    ``rooms``: by rank, the memory that it has left after it ran out, as ``lower`` or an earlier process found it.
    """

    def __init__(
        self,
        spec: PlanSpec,
        lengths: Lengths,
        exchange: Exchange,
        speeds: Sequence[Speed] | None = None,
        start: Position | None = None,
        ranks_before: int | None = None,
        rooms: Mapping[int, int] | None = None,
    ) -> None:
        self._spec, self._lengths, self._exchange, self._speeds = spec, lengths, exchange, speeds
        self.rooms, self._keeps = dict(rooms or {}), not isinstance(spec.cost, MenuCost)
        self._after, self._ranks_before = start, ranks_before
        self._plans = self._begin()

    @property
    def spec(self) -> PlanSpec:
        """The input of planning as it is now."""
        if not self.rooms:
            return self._spec
        return replace(self._spec, caps=lowered(self._spec.caps, self.rooms, self._spec.world_size))

    def _begin(self) -> PrefetchedPlans:
        start, ranks_before = self._after, self._ranks_before
        return PrefetchedPlans(plan_steps(self.spec, self._lengths, self._exchange, self._speeds, start, ranks_before))

    def num_steps(self) -> int:
        """Return the optimizer steps of the whole run: those done, and those that are left with the memory left."""
        if not self.rooms or not self._spec.policy.varies or self._after is None:
            return num_steps(self._spec, self._lengths)
        local = LocalExchange(self._spec.world_size)
        left = plan_steps(self.spec, self._lengths, local, start=self._after, ranks_before=self._ranks_before)
        return self._after.step + sum(1 for _ in left)

    def __iter__(self) -> Iterator[StepPlan]:
        """Return itself."""
        return self

    def __next__(self) -> StepPlan:
        """Return the next plan, and let the one after it be made. Raises what planning raised."""
        try:
            plan = next(self._plans)
        except (InfeasibleError, ConfigError) as error:
            if not self.rooms:
                raise
            log.warning("memory caps are as at the start again; steps that run out of memory are repeated: %s", error)
            self.rooms, self._keeps = {}, False
            self._restart()
            plan = next(self._plans)
        self._after, self._ranks_before = plan.after, None
        return plan

    def lower(self, rooms: Mapping[int, int]) -> bool:
        """Plan from the next step on for ranks with this memory left; return False, with a warning, where none can.

        All ranks call it, after the same step. On a menu of shapes nothing is smaller than its smallest shape.
        """
        if not self._keeps or self._after is None:
            where = " on a menu of shapes" if isinstance(self._spec.cost, MenuCost) else ""
            kept = f"policy {self._spec.policy.kind}{where} cannot keep to less memory"
            log.warning("%s; steps are repeated where it runs out", kept)
            return False
        self.rooms |= {rank: min(room, self.rooms.get(rank, room)) for rank, room in rooms.items()}
        self._restart()
        return True

    def _restart(self) -> None:
        self._plans.settle()  # on all ranks alike: their planning threads meet in the exchange
        self._plans.close()
        self._plans = self._begin()

    def settle(self) -> None:
        """Wait here for the next plan; see ``PrefetchedPlans.settle``."""
        self._plans.settle()

    def close(self) -> None:
        """End the planning thread, after the plan that it is at."""
        self._plans.close()
