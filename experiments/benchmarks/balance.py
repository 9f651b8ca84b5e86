"""``ddpsched.balance`` on rollouts beside what trainers of rollouts do, as Markdown.

    python -m experiments.benchmarks.balance [--seeds N]

Each figure is the slowest rank's cost over the lower bound, the worst of N batches of synthetic rollouts (rollouts.py),
and the median time of a call. The others are reimplemented here:

- Karmarkar-Karp: the largest differencing method over ranks, with equal counts where they must be.
- first fit: the rows of a rank, longest sample first, each into the first row with room under the cap.
- torchtitan, NeMo-RL, slime: as ``ddpsched.peers`` has them.
- capped longest first: as many rows on each rank as the cap asks for, each sample, longest first, into the least full
  row that has room for it; the fullest rows then run together.

In lockstep a step takes the sum over rows of the slowest rank's, and a rank without a row waits.
"""

import argparse
from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np

from ddpsched import balance
from ddpsched.costs.cost_model import Int
from ddpsched.peers.karmarkar_karp import largest_differencing
from ddpsched.peers.rows import first_fit_decreasing, modified_first_fit_decreasing, next_fit, of_even_number
from ddpsched.peers.slime import ranks_rows
from ddpsched.planning.solvers.partition.lpt import spread
from experiments.benchmarks.rollouts import rollouts

BATCHES = ((512, 8), (4096, 64))  # B, G
CAP = 16_384  # tokens of a row
RULES = ("slowest rank", "sum of the slowest")  # what a step takes; the latter in lockstep
Ranks = list[list[list[int]]]  # positions of each rank's rows


def first_fit(lengths: Int, members: list[int]) -> list[list[int]]:
    """Return a rank's rows: longest sample first, each into the first row that has room."""
    rows = first_fit_decreasing(lengths[members].tolist(), CAP)
    return [[members[place] for place in row] for row in rows]


def capped_longest_first(lengths: Int, ranks: int, cap: int = CAP) -> Ranks:
    """Return rows of all ranks: the fewest that hold the samples, filled evenly, the fullest of all ranks together."""
    count = -(-int(lengths.sum()) // (ranks * cap))
    while True:
        rows, loads = [list[int]() for _ in range(count * ranks)], [0] * (count * ranks)
        for position in np.argsort(-lengths, kind="stable").tolist():
            row = min(range(len(rows)), key=loads.__getitem__)
            rows[row].append(position)
            loads[row] += int(lengths[position])
        if max(loads) <= cap:
            break
        count += 1
    order = sorted(range(len(rows)), key=lambda row: -loads[row])
    return [[rows[order[level * ranks + rank]] for level in range(count)] for rank in range(ranks)]


def differenced(lengths: Int, ranks: int, equal: bool) -> Ranks:
    """Return one row a rank, by Karmarkar and Karp's method."""
    return [[members] for members in largest_differencing(lengths.tolist(), ranks, equal)]


def in_rows(lengths: Int, ranks: Ranks) -> Ranks:
    """Return the rows of each rank's samples, by first fit, the fullest first."""
    rows = [first_fit(lengths, [position for row in rank for position in row]) for rank in ranks]
    return [sorted(rank, key=lambda row: -lengths[row].sum()) for rank in rows]


def longest_first(lengths: Int, ranks: int) -> Ranks:
    """Return one row a rank, longest processing time first."""
    return [[members] for members in spread(lengths, ranks, swaps=0)[0]]


def dealt(rows: list[list[int]], ranks: int) -> Ranks:
    """Return rows dealt to ranks in turn."""
    return [rows[rank::ranks] for rank in range(ranks)]


def slowest(lengths: Int, ranks: Ranks, lockstep: bool) -> int:
    """Return the tokens of the slowest rank; in lockstep summed over rows."""
    loads = [[int(lengths[row].sum()) for row in rank] for rank in ranks]
    if not lockstep:
        return max(map(sum, loads))
    most = max(map(len, loads))
    return sum(max(rank[row] if row < len(rank) else 0 for rank in loads) for row in range(most))


def others() -> Iterator[tuple[str, bool, Callable[[Int, int], Ranks]]]:
    """Yield each method of others: its name, whether in lockstep, and the method."""
    yield "Karmarkar-Karp", False, lambda lengths, ranks: differenced(lengths, ranks, False)
    yield "Karmarkar-Karp, equal counts", False, lambda lengths, ranks: differenced(lengths, ranks, True)
    yield "longest first", False, longest_first
    yield (
        "Karmarkar-Karp, equal counts, first fit",
        True,
        lambda lengths, ranks: in_rows(lengths, differenced(lengths, ranks, True)),
    )
    yield "longest first, first fit", True, lambda lengths, ranks: in_rows(lengths, longest_first(lengths, ranks))
    yield "capped longest first", True, capped_longest_first
    yield "torchtitan", True, lambda lengths, ranks: dealt(next_fit(lengths.tolist(), CAP), ranks)
    yield (
        "NeMo-RL",
        True,
        lambda lengths, ranks: dealt(
            of_even_number(modified_first_fit_decreasing(lengths.tolist(), CAP), ranks), ranks
        ),
    )
    yield "slime", True, lambda lengths, ranks: ranks_rows(lengths.tolist(), ranks, CAP)


OURS: dict[str, dict[str, object]] = {
    "balance": {},
    "balance, equal_counts": {"equal_counts": True},
    "balance, groups of 8": {"groups": 8},
    "balance, padded, M <= 8": {"packed": False, "max_microbatches": 8},
    "balance, lockstep": {"lockstep": True, "max_tokens": CAP},
}


def measure(size: int, ranks: int, seeds: int) -> Iterator[tuple[str, str, float, float]]:
    """Yield each method's rule, name, worst ratio to the bound and median milliseconds."""
    batches = [rollouts(size, seed) for seed in range(seeds)]
    for name, options in OURS.items():
        ratios, times = [], []
        for lengths in batches:
            given = {**options, "groups": np.arange(size) // 8} if "groups" in options else options
            begin = perf_counter()
            found = balance(lengths, ranks, **given)  # type: ignore[arg-type]
            times.append(perf_counter() - begin)
            ratios.append(1 + found.gap)
        yield RULES[found.lockstep], name, max(ratios), 1e3 * float(np.median(times))
    for name, lockstep, method in others():
        ratios, times = [], []
        for lengths in batches:
            begin = perf_counter()
            rows = method(lengths, ranks)
            times.append(perf_counter() - begin)
            bound = balance(lengths, ranks, lockstep=lockstep, max_tokens=CAP if lockstep else None).lower_bound
            ratios.append(slowest(lengths, rows, lockstep) / bound)
        yield RULES[lockstep], name, max(ratios), 1e3 * float(np.median(times))


def main() -> None:
    """Print a table for each batch."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.balance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=20, help="batches of each size")
    seeds = parser.parse_args().seeds
    for size, ranks in BATCHES:
        print(
            f"\nB = {size:,}, G = {ranks}, {seeds} batches\n\n| step | method | worst / bound | ms |\n|:--|:--|--:|--:|"
        )
        rows = sorted(measure(size, ranks, seeds), key=lambda row: (RULES.index(row[0]), row[2]))
        for rule, name, ratio, milliseconds in rows:
            print(f"| {rule} | {name} | {ratio:.5f} | {milliseconds:.2f} |")


if __name__ == "__main__":
    main()
