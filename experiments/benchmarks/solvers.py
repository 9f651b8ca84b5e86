"""Time of `solve` by method: threshold against enumeration and PuLP, on windows of SST-2 lengths.

    python -m experiments.benchmarks.solvers [--pulp-limit 20]

Each method solves the same tables in turn, through the one public function, checks included, after a
warm-up call; all results must agree. A method that refuses a size is left out ("-"). A PuLP run that hits
its limit counts as the limit, and its column is then marked ">".
"""

import argparse
import statistics
import time
from collections import defaultdict

import numpy as np
import numpy.typing as npt
from rich.table import Table

from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.planning.solvers.allocation import Allocation, solve
from ddpsched.terminal import plain_console

# world_size, batch_size, K, number of tables, number of these that PuLP solves too
SIZES = [
    (2, 16, 16, 200, 10),
    (4, 32, 32, 200, 10),
    (8, 64, 16, 200, 10),
    (64, 512, 16, 100, 5),
    (1024, 8192, 32, 20, 1),
]
METHODS = ["threshold", "enumeration", "ilp"]


def padded_prefix_costs(world_size: int, window: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return costs[r, k - 1] = k * (longest of rank r's first k samples), (world_size, window), in padded tokens."""
    # lengths: (world_size, window)
    lengths = sst2_lengths(world_size * window, rng).reshape(world_size, window)
    return np.arange(1, window + 1) * np.maximum.accumulate(lengths, axis=1)


def timed(
    costs: npt.NDArray[np.int64], batch_size: int, method: str, limit_s: float
) -> tuple[float, Allocation | None]:
    """Return the seconds and the result; None if the method refuses the size or PuLP did not finish."""
    start = time.perf_counter()
    try:
        allocation = solve(costs, batch_size, method=method, time_limit_s=limit_s)
    except (ValueError, TimeoutError):
        return time.perf_counter() - start, None
    return time.perf_counter() - start, allocation if allocation.status == "optimal" else None


def measure(world_size: int, batch_size: int, window: int, tables: int, pulp_tables: int, limit_s: float) -> list[str]:
    """Return one row of the report: medians, ratios, and how often ties were broken exactly.

    Raises AssertionError where methods disagree.
    """
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = defaultdict(list)
    slack: list[int] = []
    exact: list[bool] = []
    over = ""
    for method in METHODS[:2]:
        timed(padded_prefix_costs(world_size, window, rng), batch_size, method, limit_s)
    for i in range(tables):
        costs = padded_prefix_costs(world_size, window, rng)
        allocations: list[Allocation] = []
        for method in METHODS if i < pulp_tables else METHODS[:2]:
            taken, allocation = timed(costs, batch_size, method, limit_s)
            if allocation is not None:
                allocations.append(allocation)
                seconds[method].append(taken)
            elif method == "ilp":
                over = ">"
                seconds[method].append(limit_s)
        if any((allocation.counts != allocations[0].counts).any() for allocation in allocations):
            raise AssertionError(f"methods disagree on table {i} of {(world_size, batch_size, window)}: {allocations}")
        slack.append(int((costs <= allocations[0].makespan).sum()) - batch_size)
        exact.append(allocations[0].tie_break == "exact")

    median = {method: statistics.median(times) for method, times in seconds.items()}
    mark = {"ilp": over}
    times = [f"{mark.get(m, '')}{1e3 * median[m]:.3f}" if m in median else "-" for m in METHODS]
    ratios = [f"{mark.get(m, '')}{median[m] / median['threshold']:,.1f}" if m in median else "-" for m in METHODS[1:]]
    return [
        f"{world_size}, {batch_size}, {window}",
        *times,
        *ratios,
        f"{statistics.mean(slack):.2f}",
        f"{100 * statistics.mean(exact):.0f} %",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.solvers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pulp-limit", type=float, default=20.0, help="seconds per PuLP call (default 20)")
    limit_s = parser.parse_args().pulp_limit
    table = Table(title="solve(): median milliseconds a call, and ratios to threshold")
    for name in ("G, B, K", "threshold", "enumeration", "PuLP", "enum./thr.", "PuLP/thr.", "mean slack", "exact ties"):
        table.add_column(name, justify="right", no_wrap=True)
    for size in SIZES:
        table.add_row(*measure(*size, limit_s))
    # A log has 80 columns, the table needs more.
    plain_console(at_least=110).print(table)


if __name__ == "__main__":
    main()
