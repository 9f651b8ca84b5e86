"""All ranks on paper: a plan's records with time from a cost model instead of a clock."""

from collections.abc import Mapping
from typing import Any

from ddpsched.config import RunConfig
from ddpsched.costs.cost_model import CostModel
from ddpsched.data.lengths import Lengths
from ddpsched.exchange import Flag, LocalExchange
from ddpsched.plan import StepPlan
from ddpsched.planning.record_columns import plan_columns
from ddpsched.records import StepRecord


class SimulatedExecutor:
    """Every rank's compute is ``alpha_s + beta_s*tokens + gamma_s*count*max_length**2`` per micro-batch.

    In a packed one each sample counts with its own length, and a rank of declared
    slowness takes that many times as long.
    A step takes the slowest rank's compute and one ring all-reduce of
    ``gradient_bytes``: 2(G-1)/G * bytes / bandwidth + 2(G-1) * latency.
    """

    def __init__(self, config: RunConfig, source: Lengths) -> None:
        clock = config.executor
        self.exchange = LocalExchange(config.world_size)
        budget = config.memory.budget_bytes
        self.caps = None if budget is None else [budget] * config.world_size
        self._config, self._source = config, source
        self._slowness = clock.slowness or [1.0] * config.world_size
        self._time = CostModel(clock.alpha_s, clock.beta_s, clock.gamma_s)
        hops = 2 * (config.world_size - 1)
        traffic = clock.gradient_bytes / config.world_size
        self._network_s = hops * (traffic / clock.bandwidth_bytes_per_s + clock.latency_s)

    timeline = None
    facts: Mapping[str, Any] = {"device": "none: simulated", "num_parameters": None, "clocks": None}

    def expect(self, total_steps: int) -> None:
        """There is no learning rate."""

    def execute(self, plan: StepPlan) -> list[StepRecord]:
        """One record per rank; the step's messages are perfect and free."""
        columns = [plan_columns(self._config.labels, plan, rank, self._source) for rank in range(plan.world_size)]
        compute = [self._compute_s(plan, rank) for rank in range(plan.world_size)]
        return [
            StepRecord(
                **own,
                compute_s=seconds,
                wait_s=max(compute) - seconds + self._network_s,
                step_s=max(compute) + self._network_s,
            )
            for own, seconds in zip(columns, compute, strict=True)
        ]

    def _compute_s(self, plan: StepPlan, rank: int) -> float:
        seconds = 0.0
        for micro in plan.ranks[rank]:
            lengths = self._source.lengths(micro.ids)
            seconds += self._time.price(micro, lengths) / self._time.scale
        return self._slowness[rank] * seconds

    def object(self, flag: Flag) -> bool:
        """There are no other ranks to hear of it."""
        return False

    def evaluate(self) -> None:
        """Nothing was trained."""

    def close(self) -> None:
        """Nothing is open."""
