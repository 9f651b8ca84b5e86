"""Share of a step's time that timing and record keeping take, on real gloo ranks.

    python -m experiments.benchmarks.bookkeeping CONFIG [key=value ...]

Every function that stamps, measures memory, or makes and writes records and the timeline is wrapped in a timer, with
`executor.timeline = true`; the timer's cost counts as bookkeeping too. A share is of its own step, so that no times of
two runs are compared.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, load
from ddpsched.local_ranks import answers, run_ranks
from experiments.benchmarks.bench import LEFT_OUT

SAYS = "share of a step's time that timing and record keeping take, on real gloo ranks"


def timed(seconds: list[float], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function wrapped in a timer, which adds the time of each outermost call to the last of ``seconds``."""
    inside = False

    def wrapper(*args: Any, **keywords: Any) -> Any:
        nonlocal inside
        if inside:
            return function(*args, **keywords)
        begin = perf_counter()
        inside = True
        try:
            return function(*args, **keywords)
        finally:
            inside = False
            seconds[-1] += perf_counter() - begin

    return wrapper


def shares(config: RunConfig, folder: str) -> list[float]:
    """Return bookkeeping over step time for each step. Runs on each rank; ``folder``: for the run's outputs."""
    from ddpsched import run_loop
    from ddpsched.records import RecordWriter
    from ddpsched.training import clock, distributed, rank_step
    from ddpsched.training.sync.synchroniser import CollectiveLog

    spent, steps = [0.0], []
    for owner, names in (
        (clock.Clock, ("mark", "anchor", "seconds", "host_s")),
        (clock.PeakMemory, ("reset", "read")),
        (CollectiveLog, ("launched", "finished", "take")),
        (rank_step.RankStep, ("columns", "times")),
        (RecordWriter, ("write",)),
    ):
        for name in names:
            setattr(owner, name, timed(spent, getattr(owner, name)))
    distributed.plan_columns = timed(spent, distributed.plan_columns)
    execute = distributed.DistributedExecutor.execute

    def counted(self: Any, plan: Any) -> Any:
        records = execute(self, plan)
        steps.append(records[0].step_s or 0.0)
        spent.append(0.0)  # writing this step's record counts with the next step
        return records

    distributed.DistributedExecutor.execute = counted  # type: ignore[method-assign]
    run_loop.run(config.model_copy(update={"outputs": folder}))
    return [bookkeeping / step for bookkeeping, step in zip(spent[LEFT_OUT:], steps[LEFT_OUT:], strict=False)]


def main(words: Sequence[str]) -> int:
    """Measure, and print the mean and P95 over steps; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.bookkeeping", description=SAYS)
    parser.add_argument("config", metavar="CONFIG", help="of a run")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the config")
    given = parser.parse_args(words)

    def body() -> None:
        config = load(given.config, [*given.overrides, "executor.kind=distributed", "executor.timeline=true"])
        with tempfile.TemporaryDirectory() as folder:
            ranks = answers(run_ranks(shares, config.world_size, config, str(Path(folder))))
        table = np.array(ranks)  # (ranks, steps)
        print(
            f"{config.model.name}, {config.world_size} gloo ranks, sync {config.sync.kind}, {table.shape[1]} steps: "
            f"timing and records take {table.mean():.3%} of a step on average, {np.quantile(table, 0.95):.3%} at P95"
        )

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
