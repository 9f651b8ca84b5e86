"""Steps until plans follow a slow rank: one of several repeats part of its work, with and without cost.online.

    python -m experiments.benchmarks.slow_rank CONFIG [--slowness 2.0] [key=value ...]
    torchrun --standalone --nproc-per-node 2 -m experiments.benchmarks.slow_rank CONFIG executor.kind=distributed ...

CONFIG names a calibration as its cost. Prints the imbalance of measured compute, largest rank / mean, step by step:
a ratio within each step, so that no times of two runs are compared.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.cli import guarded, leave
from ddpsched.config import RunConfig, load
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.planning.record_columns import rank_cost
from ddpsched.world import World

SAYS = "steps until plans follow a slow rank, with and without cost.online"


def imbalance(config: RunConfig) -> npt.NDArray[np.float64]:
    """Return the largest over the mean of the ranks' measured compute times, (steps,)."""
    samples, ratios = config.load_samples(), []
    executor = start_executor(config, samples)
    spec = config.plan_spec(executor.caps)
    executor.expect(num_steps(spec, samples.train))
    speeds = [Speed() for _ in executor.exchange.ranks] if spec.refined else None
    for plan in plan_steps(spec, samples.train, executor.exchange, speeds):
        records = executor.execute(plan)
        for record, speed in zip(records, speeds or [], strict=speeds is not None):
            speed.add(rank_cost(spec.cost, plan, record.rank, samples.train), record.compute_s or 0.0)
        rank_seconds = np.array([[record.compute_s or 0.0] for record in records])
        seconds = executor.exchange.vote(np.rint(rank_seconds * 1e9).astype(np.int64))[:, 0]  # of all ranks
        ratios.append(seconds.max() / seconds.mean())
    executor.close()
    return np.array(ratios)


def start_executor(config: RunConfig, samples: Samples) -> Any:
    """Return the executor of plans: all ranks here in turn, or this process as one of them.

    Raises ConfigError for simulated ranks, which measure nothing.
    """
    if config.executor.kind == "distributed":
        from ddpsched.training.distributed import DistributedExecutor

        return DistributedExecutor(config, samples, World.detect())
    if config.executor.kind != "virtual":
        raise ConfigError(f"executor.kind = {config.executor.kind!r} measures nothing; use virtual or distributed")
    from ddpsched.training.virtual import VirtualExecutor

    return VirtualExecutor(config, samples)


def main(words: Sequence[str]) -> int:
    """Measure, and print the imbalance step by step; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.slow_rank", description=SAYS)
    parser.add_argument("config", metavar="CONFIG", help="of a run, with a calibration as its cost")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the config")
    parser.add_argument("--slowness", type=float, default=2.0, help="of the first rank (2.0)")
    given = parser.parse_intermixed_args(words)

    def body() -> None:
        base = load(given.config, given.overrides)
        # a process can join only one process group
        for online in ("true",) if base.executor.kind == "distributed" else ("true", "false"):
            slow = [given.slowness] + [1.0] * (base.world_size - 1)
            config = load(given.config, [*given.overrides, f"cost.online={online}", f"executor.slowness={slow}"])
            steps = imbalance(config)
            late = steps[10:20]
            if not World.detect().is_main:
                continue
            print(f"cost.online = {online}: steps 10 to 19 {late.mean():.3f} ({late.min():.2f} to {late.max():.2f})")
            print("  by step", " ".join(f"{value:.2f}" for value in steps))

    return guarded(body)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
