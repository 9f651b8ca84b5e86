"""The simulated executor: a plan's records of all ranks, with times from a cost model instead of a clock."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.costs.calibration import Identity, Seconds, check_identity
from ddpsched.costs.config import CostConfig, check_range
from ddpsched.costs.memory_cap import UNLIMITED
from ddpsched.costs.network import BACKWARD, Network
from ddpsched.costs.shape_menu import on_menu
from ddpsched.costs.step_times import QUIET, StepTimes, calibrated_times
from ddpsched.data.lengths import Lengths
from ddpsched.exchange import Flag, LocalExchange
from ddpsched.heartbeat import Heartbeat
from ddpsched.planning.record_columns import plan_columns
from ddpsched.planning.shapes.choose import Menu
from ddpsched.planning.step_seconds import StepSeconds
from ddpsched.records import StepRecord
from ddpsched.step_plan import StepPlan


class SimulatedExecutor:
    """An executor without model: a micro-batch takes ``alpha_s + beta_s*tokens + gamma_s*count*max_length**2``.

    Or what a calibration says, by its fit and the curve beside that. In a packed one each sample counts with its
    length, and a rank of configured slowness takes that many times as long. A step takes the slowest rank's compute (in
    lockstep the sum over micro-batches of the slowest rank's) and what ranks then wait for messages, as
    :class:`ddpsched.costs.network.Network` has it: of one ring all-reduce of ``gradient_bytes``, or of all messages of
    the network's file. ``force``: with files of another model or device.

    Raises ConfigError for such files without it, and for files that cannot be read.
    """

    def __init__(self, config: RunConfig, lengths: Lengths, force: bool = False) -> None:
        self.exchange = LocalExchange(config.world_size)
        budget = config.memory.budget_bytes
        self.caps = None if budget is None else [budget] * config.world_size
        self._config, self._lengths = config, lengths
        self._slowness = None if config.executor.slowness is None else np.array(config.executor.slowness)
        self.times, self._network = clocks(config, force)
        self._time = self.times.cost
        self._cost = config.cost_on(())
        check_range(self._time, config.global_batch, config.data.max_length)

    timeline, packs = None, True
    cap, needs, repeats = UNLIMITED, (), False
    facts: Mapping[str, Any] = {"device": "none: simulated", "num_parameters": None, "clocks": None}

    def use(self, config: RunConfig, menu: Menu) -> None:
        """Take the policy and the cost of this config, and a menu of shapes."""
        self._config, self._cost = config, config.cost_on(menu.shapes)
        self._time = on_menu(self.times.cost, menu.shapes) if menu.shapes else self.times.cost

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
        seconds = StepSeconds(plan, self._lengths, self._time, self.times.padded_curve, self._slowness)
        slowest = seconds.slowest(self._config.policy.in_lockstep)
        exposed = float(self._network.exposed_s(plan.world_size, BACKWARD * seconds.last_of_slowest()))
        return [
            StepRecord(
                **plan_columns(self._config.labels, plan, rank, self._lengths, self._cost),
                compute_s=mine, wait_s=slowest - mine + exposed, step_s=slowest + exposed,
            )
            for rank, mine in enumerate(seconds.compute.tolist())
        ]  # fmt: skip

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


def clocks(config: RunConfig, force: bool = False) -> tuple[StepTimes, Network]:
    """Return the times of simulated ranks and the network between them that a config names.

    Rows without padding take as long for each token as padded ones. ``rest_s``: waits for messages that hide behind no
    backward. Raises ConfigError where a file cannot be read, or was measured for another model or device than this
    config or the other file is of, unless ``force``.
    """
    clock, path = config.executor, config.executor.calibration
    network = Network(
        latency_s=clock.latency_s,
        bandwidth_bytes_per_s=clock.bandwidth_bytes_per_s,
        messages=(clock.gradient_bytes,) if clock.gradient_bytes else (),
    )
    if clock.network is not None:
        network = Network.load(clock.network)
    if path is not None:
        times = calibrated_times(CostConfig(kind="calibrated", path=path))
    else:
        padded = Seconds(alpha=clock.alpha_s, beta=clock.beta_s, gamma=clock.gamma_s, delta=0.0, floor=0.0)
        times = StepTimes(identity=None, world_size=1, padded=padded, packed=None, rest_s=0.0, error=0.0, noise=QUIET)
    run = Identity(model=config.model.name, threads=clock.threads, max_length=config.data.max_length)
    for source, found in ((path, times.identity), (clock.network, network.identity)):
        if source is not None and found is not None:
            check_identity(source, found, run, force)
    if clock.network is not None and times.identity is not None and network.identity is not None:
        check_identity(clock.network, network.identity, times.identity, force)
    alike = {"packed": times.padded, "packed_curve": times.padded_curve, "world_size": config.world_size}
    return times.model_copy(update={**alike, "rest_s": float(network.exposed_s(config.world_size))}), network
