"""The simulated executor: a plan's records of all ranks, with times from a cost model instead of a clock."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ddpsched.config import RunConfig
from ddpsched.costs.config import check_range
from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.memory_cap import UNLIMITED
from ddpsched.costs.shape_menu import on_menu
from ddpsched.data.lengths import Lengths
from ddpsched.exchange import Flag, LocalExchange
from ddpsched.heartbeat import Heartbeat
from ddpsched.parts import finish_times
from ddpsched.planning.record_columns import plan_columns
from ddpsched.planning.shapes.choose import Menu
from ddpsched.records import StepRecord
from ddpsched.step_plan import Microbatch, StepPlan


class SimulatedExecutor:
    """An executor without model: a micro-batch takes ``alpha_s + beta_s*tokens + gamma_s*count*max_length**2``.

    In a packed one each sample counts with its length, and a rank of configured slowness takes that many times as long.
    A step takes the slowest rank's compute (in lockstep the sum over micro-batches of the slowest rank's) and one ring
    all-reduce of ``gradient_bytes``:
    2(G-1)/G * bytes / bandwidth + 2(G-1) * latency.
    """

    def __init__(self, config: RunConfig, lengths: Lengths) -> None:
        clock = config.executor
        self.exchange = LocalExchange(config.world_size)
        budget = config.memory.budget_bytes
        self.caps = None if budget is None else [budget] * config.world_size
        self._config, self._lengths = config, lengths
        self._slowness = clock.slowness or [1.0] * config.world_size
        self._time = self.clock = CostModel(clock.alpha_s, clock.beta_s, clock.gamma_s)
        self._cost = config.cost_on(())
        check_range(self._time, config.global_batch, config.data.max_length)
        chunk_s = clock.gradient_bytes / config.world_size / clock.bandwidth_bytes_per_s
        self.network_s = 2 * (config.world_size - 1) * (chunk_s + clock.latency_s)

    timeline, packs = None, True
    cap, needs, repeats = UNLIMITED, (), False
    facts: Mapping[str, Any] = {"device": "none: simulated", "num_parameters": None, "clocks": None}

    def use(self, config: RunConfig, menu: Menu) -> None:
        """Take the policy and the cost of this config, and a menu of shapes."""
        self._config, self._cost = config, config.cost_on(menu.shapes)
        self._time = on_menu(self.clock, menu.shapes) if menu.shapes else self.clock

    def expect(self, total_steps: int, done: int = 0) -> None:
        """Do nothing, as there is no learning rate."""

    def snapshot(self) -> None:
        """Return None: there is nothing to go on from."""

    def restore(self, folder: Path) -> None:
        """Do nothing, as there is no model."""

    def save_model(self, path: Path) -> None:
        """Do nothing, as there is no model."""

    def execute(self, plan: StepPlan) -> list[StepRecord]:
        """Return a record per rank. The messages that ranks exchange beside gradients take no time."""
        micros = [self._microbatches_s(plan, rank) for rank in range(plan.world_size)]
        compute = [sum(seconds) for seconds in micros]
        slowest = max(compute)
        if self._config.policy.in_lockstep:
            slowest = sum(map(max, zip_longest(*micros, fillvalue=0.0)))
        if plan.parts:
            slowest = max(finish_times(list(map(_in_parts, plan.ranks, micros))))
        return [
            StepRecord(
                **plan_columns(self._config.labels, plan, rank, self._lengths, self._cost),
                compute_s=seconds, wait_s=slowest - seconds + self.network_s,
                step_s=slowest + self.network_s,
            )
            for rank, seconds in enumerate(compute)
        ]  # fmt: skip

    def _microbatches_s(self, plan: StepPlan, rank: int) -> list[float]:
        scale = self._slowness[rank] / self._time.scale
        return [scale * self._time.price(micro, self._lengths.lengths(micro.ids)) for micro in plan.ranks[rank]]

    def object(self, flag: Flag) -> bool:
        """Return False, as there are no other ranks."""
        return False

    def recover(self) -> None:
        """Do nothing: no step breaks off."""

    def beat_into(self, heart: Heartbeat) -> None:
        """Do nothing, as nobody waits for this process."""

    def evaluate(self) -> None:
        """Return None, as nothing was trained."""

    def close(self) -> None:
        """Do nothing, as nothing is open."""


def _in_parts(micros: Sequence[Microbatch], seconds: Sequence[float]) -> list[tuple[float, int | None]]:
    """Return the seconds of each micro-batch, with the sample that it is a part of."""
    ids = [None if micro.part is None else int(micro.ids[0]) for micro in micros]
    return list(zip(seconds, ids, strict=True))
