"""Time and memory of sorting over ranks, against sorting in one process.

    python -m experiments.benchmarks.sample_sort [--rows 10000000] [--ranks 2] [--rounds 3]
    python -m experiments.benchmarks.sample_sort --growth

Rows are (key, id): the keys are SST-2's lengths, or uniform float64, which do not fit into a packed word; ids are in
random order. In one process: `numpy.lexsort` alone and with the gathering of both columns, two stable `torch.sort`,
ddpsched's sort without ranks (lengths and ids share one packed word of 63 bits), and the sort of Python lists, as in
DeepSpeed's sample sort on each rank. The ways are timed in turn; figures are medians of the rounds. Memory is the peak
of a rank while it sorts, above what the process held before it had its rows, over the bytes of its slice. `--growth`
fits seconds ~ rows^e from 1e5 to 1e7, on 1, 2 and 4 ranks.
"""

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich import box
from rich.table import Table

from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.local_ranks import answers, join_group, run_ranks
from ddpsched.orders.lexicographic_sort import sort_rows
from ddpsched.terminal import plain_console
from ddpsched.training.clock import PeakMemory, return_freed_memory
from ddpsched.training.sample_sort import sample_sort

KEYS = ("lengths", "floats")
GROWTH = (10**5, 10**6, 10**7)
PYTHON_ROWS = 10**6  # of Python lists; ten million would take gigabytes


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
    """Return the first ``PYTHON_ROWS`` rows sorted as Python lists."""
    return torch.tensor(sorted(torch.stack([torch.from_numpy(c).double() for c in rows], 1)[:PYTHON_ROWS].tolist()))


ALONE: dict[str, Callable[[list[np.ndarray]], Any]] = {
    "numpy.lexsort": lexsort_alone,
    "numpy.lexsort, rows gathered": lexsort,
    "two stable torch.sort": two_sorts,
    "ours, one process": sort_rows,
}


def seconds(way: Callable[[list[np.ndarray]], Any], rows: list[np.ndarray]) -> float:
    """Return the seconds that ``way`` takes to sort the rows."""
    begin = perf_counter()
    way(rows)
    return perf_counter() - begin


def on_rank(keys: str, size: int, world_size: int) -> tuple[float, float, float]:
    """Sort on this rank with the others; return three figures.

    They are the seconds from the first rank's start to the last one's end, the peak memory over the bytes of this
    rank's slice, and the largest bucket over the mean one.
    """
    torch.set_num_threads(1)
    join_group()
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
    dist.destroy_process_group()
    return took, peak / slice_bytes, max(held) * world_size / size


def together(keys: str, size: int, world_size: int) -> tuple[float, float, float]:
    """Return the figures of ``on_rank``, each the largest over ranks."""
    figures = answers(run_ranks(on_rank, world_size, keys, size, world_size, timeout_s=600, limit_s=600))
    return tuple(max(each[k] for each in figures) for k in range(3))


def compare(keys: str, size: int, world_size: int, rounds: int) -> Table:
    """Return the table of all ways, timed in turn."""
    torch.set_num_threads(1)
    rows = rows_of(keys, size)
    times: dict[str, list[float]] = {name: [] for name in ALONE}
    ours: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        for name, way in ALONE.items():
            times[name].append(seconds(way, rows))
        ours.append(together(keys, size, world_size))
    took, memory, bucket = (statistics.median(each[k] for each in ours) for k in range(3))
    python = seconds(lists, rows) * size / min(size, PYTHON_ROWS)
    title = (
        f"{size:,} rows of ({keys}, id): {world_size} gloo ranks {took:.2f} s; memory of a rank {memory:.2f} x its "
        f"slice; largest bucket {bucket:.3f} x the mean"
    )
    table = Table(title=title, box=box.SIMPLE)
    for column in ("one process", "seconds", "/ ours together"):
        table.add_column(column, justify="left" if column == "one process" else "right")
    for name, each in times.items():
        table.add_row(name, f"{statistics.median(each):.2f}", f"{statistics.median(each) / took:.2f}")
    label = f"Python lists, as DeepSpeed ({min(size, PYTHON_ROWS):,} rows, scaled)"
    table.add_row(label, f"{python:.2f}", f"{python / took:.2f}")
    return table


def growth(rounds: int) -> Table:
    """Return the table of seconds by rows and ranks, with the exponent that fits them."""
    table = Table(title="seconds of the sample sort, and e in seconds ~ rows^e", box=box.SIMPLE)
    for column in ("keys", "ranks", *(f"{size:,}" for size in GROWTH), "e"):
        table.add_column(column, justify="right")
    for keys in KEYS:
        for world_size in (1, 2, 4):
            took = [statistics.median(together(keys, size, world_size)[0] for _ in range(rounds)) for size in GROWTH]
            slope = np.polyfit(np.log(GROWTH), np.log(took), 1)[0]
            table.add_row(keys, str(world_size), *(f"{each:.3f}" for each in took), f"{slope:.2f}")
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", action="store_true", help="print the growth of time with rows and ranks instead")
    options = parser.parse_args()
    console = plain_console(width=140)
    if options.growth:
        console.print(growth(options.rounds))
        return
    for keys in KEYS:
        console.print(compare(keys, options.rows, options.ranks, options.rounds))


if __name__ == "__main__":
    main()
