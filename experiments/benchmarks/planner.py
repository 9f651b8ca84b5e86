"""Planning time of a step, from lengths to the plan with its digest, and its growth with the number of ranks.

    python -m experiments.benchmarks.planner [--largest 4096]

32 samples a rank with SST-2's lengths, from 4 ranks on. Methods are timed in turn, after a warm-up, so that a drift of
the machine affects all alike; the figure is the median. `growth` is the exponent p of time ~ B**p, fitted from 64
ranks on, and `of B log B` how many times as long the largest takes as the one of 64 ranks times the growth of B log B:
1 or less is no worse than linear-logarithmic. `gap` is to the bound that counts padding.
"""

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter

import numpy as np
from rich import box
from rich.table import Table

from ddpsched.costs.cost_model import Int, padded_tokens
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.plan import StepPlan
from ddpsched.planning.policies.balanced import Balanced
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.policies.packed import Packed
from ddpsched.planning.policies.static import Static
from ddpsched.planning.solvers.allocation import solve
from ddpsched.planning.solvers.partition.padding_bound import padded_bound
from ddpsched.planning.solvers.partition.sorted_batch import line_of
from ddpsched.planning.steps.batches import GlobalBatch
from ddpsched.terminal import plain_console

SIZES = (4, 16, 64, 256, 1024, 4096)
PER_RANK = 32
WINDOW = 64  # K of minmax
SAMPLES = 2**20  # planned by each method at each size, but at least REPEATS steps
REPEATS = 5


def planner(policy: BatchPolicy) -> Callable[[Int, int], StepPlan]:
    """Return a function that plans one step: (lengths, world_size) -> plan."""

    def run(lengths: Int, world_size: int) -> StepPlan:
        chosen = policy.assign(GlobalBatch(lengths, len(lengths), world_size, 0, padded_tokens))
        return StepPlan.cut(0, 0, chosen.positions, chosen.sizes, chosen.packed, predicted_cost=chosen.costs)

    return run


PLANNERS = {
    "static": planner(Static()),
    "balanced, M = 1": planner(Balanced()),
    "balanced, M = 4": planner(Balanced(max_microbatches=4)),
    "packed": planner(Packed()),
}
METHODS = ("minmax: solve() alone", *PLANNERS)


def measure(world_size: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median seconds of a step by method, and the mean gap of the plans where there is a bound."""
    rng, size = np.random.default_rng(world_size), world_size * PER_RANK
    repeats = max(REPEATS, min(200, SAMPLES // size // 8))
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    gaps: dict[str, list[float]] = {name: [] for name in PLANNERS}
    for repeat in range(repeats + 1):  # the first is the warm-up
        lengths = sst2_lengths(size, rng)
        windows = sst2_lengths(world_size * WINDOW, rng).reshape(world_size, WINDOW)
        costs = np.arange(1, WINDOW + 1) * np.maximum.accumulate(windows, axis=1)
        for turn in range(len(METHODS)):
            name = METHODS[(repeat + turn) % len(METHODS)]
            begin = perf_counter()
            plan = PLANNERS[name](lengths, world_size) if name in PLANNERS else None
            if plan is None:
                solve(costs, size)
            taken = perf_counter() - begin
            if repeat:
                seconds[name].append(taken)
            if plan is not None and plan.predicted_cost and plan.lower_bound:
                bound = plan.lower_bound
                if name == "balanced, M = 4":
                    bound = padded_bound(line_of(lengths, padded_tokens), world_size, 4)
                gaps[name].append(max(plan.predicted_cost) / bound - 1)
    return (
        {name: statistics.median(times) for name, times in seconds.items()},
        {name: statistics.mean(values) for name, values in gaps.items() if values},
    )


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Return p of seconds ~ size**p, by least squares in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def report(largest: int) -> Table:
    """Return the table: a row a method, a column a number of ranks up to ``largest``, and the growth."""
    sizes = [size for size in SIZES if size <= largest]
    measured = [measure(size) for size in sizes]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="microseconds a sample (milliseconds a step)")
    table.add_column("planner", no_wrap=True)
    for size in sizes:
        table.add_column(f"G = {size}\nB = {size * PER_RANK}", justify="right", no_wrap=True)
    table.add_column("growth", justify="right")
    table.add_column("of B log B", justify="right")
    fitted = [index for index, size in enumerate(sizes) if size >= 64]
    batches = [size * PER_RANK for size in sizes]
    for name in METHODS:
        steps = [seconds[name] for seconds, _ in measured]
        cells = [f"{s / b * 1e6:.2f} ({s * 1e3:.3g})" for s, b in zip(steps, batches, strict=True)]
        growth = ["", ""]
        if len(fitted) > 1:
            first, last = fitted[0], fitted[-1]
            linear_log = [batch * np.log(batch) for batch in batches]
            share = steps[last] / steps[first] / (linear_log[last] / linear_log[first])
            growth = [f"{exponent([batches[i] for i in fitted], [steps[i] for i in fitted]):.2f}", f"{share:.2f}"]
        table.add_row(name, *cells, *growth)
    for name in ("balanced, M = 4", "packed"):
        table.add_row(f"gap of {name}", *(f"{gaps[name]:.2%}" for _, gaps in measured), "", "")
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="largest number of ranks")
    shown = report(parser.parse_args().largest)
    plain_console(at_least=140).print(shown)


if __name__ == "__main__":
    main()
