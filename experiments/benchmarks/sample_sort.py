"""Time and memory of sorting over ranks, against sorting in one process.

    python -m experiments.benchmarks.sample_sort [--rows 2000000] [--ranks 2] [--rounds 8] [--launches 5]
    python -m experiments.benchmarks.sample_sort --growth [--launches 5]

Rows are (key, id): the keys are SST-2's lengths, or uniform float64, which do not fit into a packed word; ids are in
random order. In one process: `numpy.lexsort` alone and with the gathering of both columns, two stable `torch.sort`,
ddpsched's sort without ranks (lengths and ids share one packed word of 63 bits), and the sort of Python lists, as in
DeepSpeed's sample sort on each rank, of one row in twenty and scaled. A launch is a fresh group of ranks, which sort
together twice a round (A/A); in the other turns rank 0 sorts all rows alone, and the others wait. Ratios are to the
ranks together, their intervals of launches, and the verdicts' family is both tables. Memory is the peak of a rank while
it sorts, above what the process held before it had its rows, over the bytes of its slice. `--growth` fits
seconds ~ rows^e from 1e5 to 1e7, on 1, 2 and 4 ranks, to medians of three launches, and shows the least and the
largest.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich import box
from rich.table import Table

from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.local_ranks import answers, join_group, leave_group, run_ranks
from ddpsched.orders.lexicographic_sort import sort_rows
from ddpsched.terminal import plain_console
from ddpsched.training.clock import PeakMemory, return_freed_memory
from ddpsched.training.sample_sort import sample_sort
from experiments.benchmarks.bench import Seconds, add_options, in_turn, tables

KEYS = ("lengths", "floats")
GROWTH = (10**5, 10**6, 10**7)
LISTED = 20  # one row in so many is sorted in Python lists, which take long, and gigabytes for ten million rows
TIMEOUT_S = 600.0  # of ranks that wait for the turns of rank 0


def rows_of(keys: str, size: int, rank: int = 0, world_size: int = 1) -> list[np.ndarray]:
    """Return the rows of one rank, [keys, ids], each (rows of the rank,). ``keys``: one of ``KEYS``."""
    rng = np.random.default_rng(7)
    ids = rng.permutation(size)[rank * size // world_size : (rank + 1) * size // world_size].copy()
    rank_rng = np.random.default_rng([7, rank])
    return [sst2_lengths(len(ids), rank_rng) if keys == "lengths" else rank_rng.random(len(ids)), ids]


def lexsort(rows: list[np.ndarray]) -> Any:
    """Return the rows sorted by `numpy.lexsort`."""
    order = np.lexsort(rows[::-1])
    return [column[order] for column in rows]


def lexsort_alone(rows: list[np.ndarray]) -> Any:
    """Return the order of the rows by `numpy.lexsort`, without gathering them."""
    return np.lexsort(rows[::-1])


def two_sorts(rows: list[np.ndarray]) -> Any:
    """Return the rows sorted by two stable `torch.sort`."""
    keys, ids = map(torch.from_numpy, rows)
    order = torch.sort(ids, stable=True).indices
    order = order[torch.sort(keys[order], stable=True).indices]
    return keys[order], ids[order]


def lists(rows: list[np.ndarray]) -> Any:
    """Return the first ``1 / LISTED`` of the rows sorted as Python lists."""
    few = [torch.from_numpy(column[: len(column) // LISTED]).double() for column in rows]
    return torch.tensor(sorted(torch.stack(few, 1).tolist()))


ALONE: dict[str, Callable[[list[np.ndarray]], Any]] = {
    "numpy.lexsort": lexsort_alone,
    "numpy.lexsort, rows gathered": lexsort,
    "two stable torch.sort": two_sorts,
    "ours, one process": sort_rows,
    f"Python lists, as DeepSpeed (1 / {LISTED} of the rows, scaled)": lists,
}


def seconds(way: Callable[[list[np.ndarray]], Any], rows: list[np.ndarray]) -> float:
    """Return the seconds that ``way`` takes to sort the rows, or would take for all of them."""
    begin = perf_counter()
    way(rows)
    return (perf_counter() - begin) * (LISTED if way is lists else 1)


def on_rank(keys: str, size: int, world_size: int) -> tuple[float, float, float]:
    """Return the three figures of ``sort_once``, in a group of ranks that is there for them alone."""
    _join()
    figures = sort_once(keys, size, world_size)
    leave_group()
    return figures


def _join() -> None:
    torch.set_num_threads(1)
    join_group(TIMEOUT_S)


def sort_once(keys: str, size: int, world_size: int) -> tuple[float, float, float]:
    """Sort on this rank with the others; return three figures.

    They are the seconds from the first rank's start to the last one's end, the peak memory over the bytes of this
    rank's slice, and the largest bucket over the mean one.
    """
    rank = dist.get_rank()
    sample_sort([torch.from_numpy(column) for column in rows_of(keys, 1000, rank, world_size)])  # connections, imports
    return_freed_memory()
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    start = memory.read() or 0
    rows = [torch.from_numpy(column) for column in rows_of(keys, size, rank, world_size)]
    return_freed_memory()
    memory.reset()
    held: list[int] = []
    dist.barrier()
    begin = perf_counter()
    sorted_rows = sample_sort(rows, seen=held.extend)
    dist.barrier()
    took = perf_counter() - begin
    peak = (memory.read() or 0) - start
    slice_bytes = sum(column.numel() * 8 for column in sorted_rows)
    return took, peak / slice_bytes, max(held) * world_size / size


def on_rank_in_turn(keys: str, size: int, world_size: int, rounds: int, seed: int) -> tuple[Seconds, float, float]:
    """Return the times of all ways in turn, and this rank's peak memory and largest bucket: one launch."""
    _join()
    _, memory, bucket = sort_once(keys, size, world_size)  # first, while nothing else is held
    rank = dist.get_rank()
    share = [torch.from_numpy(column) for column in rows_of(keys, size, rank, world_size)]
    whole = rows_of(keys, size) if rank == 0 else []

    def together() -> float:
        dist.barrier()
        begin = perf_counter()
        sample_sort(share)
        dist.barrier()
        return perf_counter() - begin

    def alone(way: Callable[[list[np.ndarray]], Any]) -> float:
        dist.barrier()
        return seconds(way, whole) if rank == 0 else 0.0

    arms = {f"{world_size} gloo ranks": together} | {name: partial(alone, way) for name, way in ALONE.items()}
    times = in_turn(arms, rounds, seed)
    leave_group()
    return times, memory, bucket


def compare(size: int, world_size: int, rounds: int, launches: int) -> list[Table]:
    """Return a table of all ways for each of ``KEYS``."""
    sections = {}
    for keys in KEYS:
        arguments = (keys, size, world_size, rounds)
        groups = [
            answers(run_ranks(on_rank_in_turn, world_size, *arguments, seed, timeout_s=TIMEOUT_S))
            for seed in range(launches)
        ]
        memory, bucket = (statistics.median(max(each[k] for each in ranks) for ranks in groups) for k in (1, 2))
        title = (
            f"{size:,} rows of ({keys}, id); memory of a rank {memory:.2f} x its slice; "
            f"largest bucket {bucket:.3f} x the mean"
        )
        sections[title] = [ranks[0][0] for ranks in groups]
    return tables(sections)


def together(keys: str, size: int, world_size: int) -> float:
    """Return the seconds that ranks take together, the largest over ranks."""
    figures = answers(run_ranks(on_rank, world_size, keys, size, world_size, timeout_s=TIMEOUT_S, limit_s=TIMEOUT_S))
    return max(took for took, _, _ in figures)


def growth(launches: int) -> Table:
    """Return the table of seconds by rows and ranks, with the exponent that fits them. ``launches``: for each."""
    table = Table(title="seconds of the sample sort, and e in seconds ~ rows^e", box=box.SIMPLE)
    for column in ("keys", "ranks", *(f"{size:,}" for size in GROWTH), "e"):
        table.add_column(column, justify="right")
    for keys in KEYS:
        for world_size in (1, 2, 4):
            took = [sorted(together(keys, size, world_size) for _ in range(launches)) for size in GROWTH]
            slope = np.polyfit(np.log(GROWTH), np.log([statistics.median(each) for each in took]), 1)[0]
            cells = (f"{statistics.median(each):.3f} ({each[0]:.3f} to {each[-1]:.3f})" for each in took)
            table.add_row(keys, str(world_size), *cells, f"{slope:.2f}")
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.sample_sort",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=2 * 10**6)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--growth", action="store_true", help="print the growth of time with rows and ranks instead")
    add_options(parser)
    options = parser.parse_args()
    console = plain_console(at_least=140)
    if options.growth:
        console.print(growth(options.launches))
        return
    for table in compare(options.rows, options.ranks, options.rounds, options.launches):
        console.print(table)


if __name__ == "__main__":
    main()
