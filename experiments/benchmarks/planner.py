"""Planning time of a step, from lengths to the plan with its digest, and its growth with the number of ranks.

    python -m experiments.benchmarks.planner [--largest 4096] [--rounds 200] [--launches 5]

32 samples a rank with SST-2's lengths, from 4 ranks on. At each size all methods run in turn, the first one twice
(A/A), in several launches, each a process; figures are means over launches of the medians over rounds. `growth` is the
exponent p of time ~ B**p, fitted from 64 ranks on, the least and the largest of the launches, and `of B log B` how many
times as long the largest takes as the one of 64 ranks times the growth of B log B: 1 or less is no worse than
linear-logarithmic. `gap` is to the bound that counts padding.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from analysis.stats import MIN_STEPS
from ddpsched.costs.cost_model import Int, padded_tokens
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.planning.policies.balanced import Balanced
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.policies.packed import Packed
from ddpsched.planning.policies.static import Static
from ddpsched.planning.solvers.allocation import solve
from ddpsched.planning.solvers.partition.padding_bound import padded_bound
from ddpsched.planning.solvers.partition.sorted_batch import line_of
from ddpsched.planning.steps.batches import GlobalBatch
from ddpsched.step_plan import StepPlan
from ddpsched.terminal import plain_console
from experiments.benchmarks.bench import AA, Seconds, add_options, in_turn, launched, ratios

SIZES = (4, 16, 64, 256, 1024, 4096)
PER_RANK = 32
WINDOW = 64  # K of minmax
GROWN = 64  # ranks from which growth is fitted
SAMPLES = 2**20  # planned by each method at each size, an eighth of them a launch
LEAST_ROUNDS, MOST_ROUNDS = MIN_STEPS, 200
MICRO, MILLI = 1e6, 1e3


@dataclass
class Arm:
    """A method at one size: each call plans the next of its batches and returns the seconds.

    Attributes:
        policy: what plans; None for minmax's `solve()` alone.
        world_size: G; a batch has ``PER_RANK`` samples a rank.
        gaps: makespan over bound - 1 of each plan that has a bound.
    """

    policy: BatchPolicy | None
    world_size: int
    gaps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin its batches: the same ones for every method."""
        self._rng = np.random.default_rng(self.world_size)

    def __call__(self) -> float:
        """Plan the next batch."""
        size = self.world_size * PER_RANK
        lengths = sst2_lengths(size, self._rng)
        windows = sst2_lengths(self.world_size * WINDOW, self._rng).reshape(self.world_size, WINDOW)
        costs = np.arange(1, WINDOW + 1) * np.maximum.accumulate(windows, axis=1)
        begin = perf_counter()
        if self.policy is None:
            solve(costs, size)
            return perf_counter() - begin
        plan = self._plan(self.policy, lengths)
        taken = perf_counter() - begin
        if plan.predicted_cost and plan.lower_bound:
            bound = plan.lower_bound
            if self.policy is IN_PARTS:
                bound = padded_bound(line_of(lengths, padded_tokens), self.world_size, IN_PARTS.max_microbatches)
            self.gaps.append(max(plan.predicted_cost) / bound - 1)
        return taken

    def _plan(self, policy: BatchPolicy, lengths: Int) -> StepPlan:
        chosen = policy.assign(GlobalBatch(lengths, len(lengths), self.world_size, 0, padded_tokens))
        return StepPlan.cut(
            0,
            0,
            chosen.positions,
            chosen.sizes,
            chosen.packed,
            predicted_cost=chosen.costs,
            lower_bound=chosen.lower_bound,
        )


IN_PARTS = Balanced(max_microbatches=4)
POLICIES = {
    "static": Static(),
    "minmax: solve() alone": None,
    "balanced, M = 1": Balanced(),
    "balanced, M = 4": IN_PARTS,
    "packed": Packed(),
}
WITH_GAPS = ("balanced, M = 4", "packed")


def measure(sizes: Sequence[int], rounds: int, seed: int) -> list[tuple[Seconds, dict[str, float]]]:
    """Return, for each number of ranks, the times in turn and the mean gaps of plans with a bound: one launch."""
    found = []
    for world_size in sizes:
        arms = {name: Arm(policy, world_size) for name, policy in POLICIES.items()}
        first = next(iter(arms))
        repeats = max(LEAST_ROUNDS, min(rounds, SAMPLES // (world_size * PER_RANK) // 8))
        seconds = in_turn({**arms, AA: Arm(POLICIES[first], world_size)}, repeats, seed)
        found.append((seconds, {name: statistics.mean(arms[name].gaps) for name in WITH_GAPS}))
    return found


def exponent(sizes: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64]) -> float:
    """Return p of seconds ~ size**p, by least squares in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def report(sizes: Sequence[int], launches: Sequence[Sequence[tuple[Seconds, dict[str, float]]]]) -> Table:
    """Return the table: a row a method, a column a number of ranks, and the growth. ``launches``: of ``measure``."""
    batches = [size * PER_RANK for size in sizes]
    medians = {
        name: np.array([[np.median(times[name]) for times, _ in launch] for launch in launches])  # (launches, sizes)
        for name in POLICIES
    }
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="microseconds a sample (milliseconds a step)")
    table.add_column("planner", no_wrap=True)
    for size, batch in zip(sizes, batches, strict=True):
        table.add_column(f"G = {size}\nB = {batch}", justify="right", no_wrap=True)
    table.add_column("growth", justify="right", no_wrap=True)
    table.add_column("of B log B", justify="right")
    for name, each in medians.items():
        mean = each.mean(axis=0)
        cells = [f"{s / b * MICRO:.2f} ({s * MILLI:.3g})" for s, b in zip(mean, batches, strict=True)]
        table.add_row(name, *cells, *growth(sizes, each))
    first = next(iter(POLICIES))
    noise = [ratios([launch[place][0] for launch in launches])[AA] for place in range(len(sizes))]
    table.add_row(f"A/A, of {first}", *(f"{each.value:.2f}" for each in noise), "", "")
    table.add_row("  95 %", *("-" if each.reason else f"{each.low:.2f} to {each.high:.2f}" for each in noise), "", "")
    for name in WITH_GAPS:
        gaps = (statistics.mean(launch[place][1][name] for launch in launches) for place in range(len(sizes)))
        table.add_row(f"gap of {name}", *(f"{gap:.2%}" for gap in gaps), "", "")
    return table


def growth(sizes: Sequence[int], seconds: npt.NDArray[np.float64]) -> tuple[str, str]:
    """Return a method's cells of growth, empty where fewer than two sizes are large. ``seconds``: (launches, sizes)."""
    fitted = [place for place, size in enumerate(sizes) if size >= GROWN]
    if len(fitted) < 2:
        return "", ""
    batches = np.array([sizes[place] * PER_RANK for place in fitted])
    exponents = [exponent(batches, row[fitted]) for row in seconds]
    linear_log = batches * np.log(batches)
    mean = seconds.mean(axis=0)[fitted]
    share = mean[-1] / mean[0] / (linear_log[-1] / linear_log[0])
    return f"{min(exponents):.2f} to {max(exponents):.2f}", f"{share:.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.planner",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="largest number of ranks")
    add_options(parser, rounds=MOST_ROUNDS)
    options = parser.parse_args()
    sizes = [size for size in SIZES if size <= options.largest]
    launches = launched(measure, sizes, options.rounds, launches=options.launches)
    plain_console(at_least=140).print(report(sizes, launches))


if __name__ == "__main__":
    main()
