"""Step times of several arms in one interleaved run, on virtual ranks or under torchrun.

    python -m experiments.benchmarks.steps CONFIG [arm=POLICY ...] [key=value ...]
    torchrun --standalone --nproc-per-node 2 -m experiments.benchmarks.steps CONFIG world_size=2 \\
        executor.kind=distributed

Where a machine's speed drifts, whole runs do not compare. Here one model runs the plans of all arms: step s of each
right after step s of the others, in rotating turn, so that drift affects all alike. An arm is a policy and its keys,
`arm=balanced,max_microbatches=4` or `arm=peer,peer=batch_rebalance`; without any, those below.
Prints the means over steps of the largest rank's compute and of the whole step, and their ratios to the first arm's,
with 95 % intervals over steps; and the padded tokens that the plans predict.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table
from scipy.stats import bootstrap

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, apply_overrides, load, parse
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.planning.policies import POLICIES
from ddpsched.terminal import plain_console
from ddpsched.world import World

ARMS = ("static", "minmax", "balanced", "balanced,max_microbatches=4", "packed", "peer,peer=batch_rebalance")
LEFT_OUT = 3  # first steps of each, while allocators settle
REPORTED = 3  # figures of a rank and step, in whole millionths: seconds of compute and of the step, padded tokens


def arm_config(config: RunConfig, arm: str) -> RunConfig:
    """Return the config with this arm's policy. Raises ConfigError for an arm that is not valid."""
    kind, *keys = arm.split(",")
    # options of this kind that the config's policy has too
    shared = config.policy.model_dump(include=set(POLICIES[kind].model_fields)) if kind in POLICIES else {}
    policy = apply_overrides({**shared, "kind": kind}, keys)
    return parse({**config.model_dump(), "policy": policy}, source=f"arm={arm}")


def measure(config: RunConfig, arms: Sequence[str]) -> dict[str, npt.NDArray[np.float64]]:
    """Return by arm (steps, 3): compute and step time in seconds, and padded tokens, each the largest over ranks.

    The first steps are left out.
    """
    samples = config.load_samples()
    configs = {arm: arm_config(config, arm) for arm in arms}
    packing = next((each for each in configs.values() if each.policy.packs), config)  # the model must support it
    executor = start_executor(packing, samples)
    steps = num_steps(config.plan_spec(executor.caps), samples.train)
    plans = {arm: _plans(each, samples, executor) for arm, each in configs.items()}
    measured: dict[str, list[npt.NDArray[np.float64]]] = {arm: [] for arm in arms}
    for step in range(steps):
        for turn in range(len(arms)):
            arm = arms[(step + turn) % len(arms)]
            records = executor.execute(next(plans[arm]))
            figures = [[record.compute_s or 0.0, record.step_s or 0.0, record.padded_tokens] for record in records]
            rows = np.rint(np.array(figures) * 1e6).astype(np.int64)
            measured[arm].append(executor.exchange.vote(rows).reshape(-1, REPORTED).max(axis=0) / 1e6)
    executor.exchange.barrier()
    return {arm: np.array(values[LEFT_OUT:]) for arm, values in measured.items()}


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


def _plans(config: RunConfig, samples: Samples, executor: Any) -> Any:
    """Return an arm's plans, made between timed steps; a peer's before all steps, as planning is not measured here."""
    plans = plan_steps(config.plan_spec(executor.caps), samples.train, executor.exchange)
    return iter(list(plans)) if config.policy.kind == "peer" else plans


def ratio(mine: npt.NDArray[np.float64], first: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return mean(first) / mean(mine) with the ends of its paired 95 % interval over steps.

    ``mine``, ``first``: (steps,), seconds of an arm and of the first one.
    """

    def quotient(a: Any, b: Any, axis: int = -1) -> Any:
        return b.mean(axis=axis) / a.mean(axis=axis)

    rng = np.random.default_rng(0)
    interval = bootstrap((mine, first), quotient, paired=True, vectorized=True, rng=rng).confidence_interval
    return {"ratio": float(quotient(mine, first)), "low": float(interval.low), "high": float(interval.high)}


def ratio_text(row: dict[str, float] | None) -> str:
    """Return a ratio and its interval for the terminal; nothing for None."""
    return "" if row is None else f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def report(measured: dict[str, npt.NDArray[np.float64]]) -> Table:
    """Return the table, a line an arm. ``measured``: by arm, as from ``measure``."""
    names = list(measured)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("arm", no_wrap=True)
    first = measured[names[0]]
    for column in (
        "largest\ncompute s",
        f"{names[0]}\n/ this",
        "step s",
        f"{names[0]} / this",
        "padded tokens\nof largest",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for name, values in measured.items():
        compute, step, tokens = values.T
        pairs = () if name == names[0] else ((compute, first[:, 0]), (step, first[:, 1]))
        ratios = [ratio_text(ratio(*pair)) for pair in pairs] or ["", ""]
        table.add_row(name, f"{compute.mean():.3f}", ratios[0], f"{step.mean():.3f}", ratios[1], f"{tokens.mean():.0f}")
    return table


def main(words: list[str]) -> int:
    """Measure, and print the table on rank 0; return the exit code."""
    arms = tuple(word.removeprefix("arm=") for word in words if word.startswith("arm=")) or ARMS
    rest = [word for word in words if not word.startswith("arm=")]
    if not rest:
        print(__doc__.strip(), file=sys.stderr)
        return 2

    def body() -> None:
        config = load(rest[0], rest[1:])
        measured = measure(config, arms)
        if World.detect().is_main:
            plain_console(at_least=130).print(report(measured))
            print(
                f"{len(measured[arms[0]])} interleaved steps, {config.executor.kind}, G = {config.world_size}, "
                f"B = {config.global_batch}, {config.executor.threads} thread(s) a process, cost {config.cost.kind}"
            )

    return guarded(body)


def leave(code: int) -> None:
    """End the process with this exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if World.launched():
        os._exit(code)  # gloo's threads may abort a process that exits normally
    sys.exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
