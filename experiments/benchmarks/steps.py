"""Step times of all policies in one interleaved run: ``python -m experiments.benchmarks.steps CONFIG [key=value ...]``.

A machine whose speed drifts moves whole runs against each other. Here every
policy has its own model and plans in one process, and step s of each runs right
after step s of the others, in rotating turn; so drift meets all of them alike.
Virtual ranks; prints the mean of the largest rank's compute and its ratio to
static, with a 95 % interval over steps.
"""

import sys

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, load
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.planning.samples import load_samples

POLICIES = ("static", "minmax", "balanced")
LEFT_OUT = 3  # first steps of each, while allocators settle


def measure(config: RunConfig) -> dict[str, np.ndarray]:
    """Seconds of the largest rank's compute, (steps,) by policy."""
    from ddpsched.training.virtual import VirtualExecutor

    samples = load_samples(config)
    steps = num_steps(config, len(samples.train))
    arms = {}
    for kind in POLICIES:
        own = config.model_copy(update={"policy": config.policy.model_copy(update={"kind": kind})})
        executor = VirtualExecutor(own, samples, steps)
        arms[kind] = executor, plan_steps(own, samples.train, executor.exchange)
    seconds: dict[str, list[float]] = {kind: [] for kind in POLICIES}
    for step in range(steps):
        for turn in range(len(POLICIES)):
            kind = POLICIES[(step + turn) % len(POLICIES)]
            executor, plans = arms[kind]
            records = executor.execute(next(plans))
            seconds[kind].append(max(record.compute_s or 0.0 for record in records))
    return {kind: np.array(values[LEFT_OUT:]) for kind, values in seconds.items()}


def report(seconds: dict[str, np.ndarray]) -> Table:
    """Means, and ratios of means with a paired interval over steps."""
    static = seconds["static"]
    table = Table("policy", "largest rank's compute, s", "ratio to static", "95 % interval")
    for kind, values in seconds.items():
        found = (
            bootstrap(
                (values, static),
                lambda mine, theirs, axis=-1: mine.mean(axis=axis) / theirs.mean(axis=axis),
                paired=True,
                vectorized=True,
                rng=np.random.default_rng(0),
            ).confidence_interval
            if kind != "static"
            else None
        )
        interval = "" if found is None else f"{found.low:.3f} to {found.high:.3f}"
        table.add_row(kind, f"{values.mean():.4f}", f"{values.mean() / static.mean():.3f}", interval)
    return table


def main(words: list[str]) -> int:
    """Exit code 0 when it was measured."""
    if not words:
        print(__doc__.strip(), file=sys.stderr)
        return 2

    def body() -> None:
        config = load(words[0], words[1:])
        seconds = measure(config)
        Console().print(report(seconds))
        print(f"{len(seconds['static'])} interleaved steps, G = {config.world_size}, B = {config.global_batch}")

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
