"""Allocation, which every solver returns, and the checks of a problem before it is solved."""

from dataclasses import dataclass
from operator import index
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ddpsched.errors import InfeasibleError

IntArray = npt.NDArray[np.int64]

# The entry of a cost row for a count beyond the rank's cap. As the largest int64 it is above every threshold and after
# every cost, so rows that do not fall still do not fall.
FORBIDDEN = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class Allocation:
    """The number of samples that each rank takes in one step.

    Attributes:
        counts: int64 `(world_size,)`, samples per rank; sums to the batch size.
        makespan: the largest chosen cost, in the unit of the costs.
        lower_bound: no allocation has a smaller makespan than this; equal to `makespan` when proved.
        status: "optimal" if the makespan is proved to be the smallest, else "feasible".
        tie_break: "exact" if among all allocations of this makespan the variance is proved to be the
            smallest and the counts the lexicographically largest, else "best found".
        method: the name of the solver.
    """

    counts: IntArray
    makespan: int
    lower_bound: int
    status: Literal["optimal", "feasible"]
    tie_break: Literal["exact", "best found"]
    method: str


def checked_costs(costs: npt.ArrayLike) -> IntArray:
    """Return `costs` as int64 `(world_size, K)`; raise ValueError that names what is wrong and where."""
    table = np.asarray(costs)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"costs must have shape (world_size, K) with both at least 1, got shape {table.shape}")
    if table.dtype.kind not in "iu":
        raise ValueError(_not_integers(table))
    if table.dtype == np.uint64:  # above the int64 range it would wrap to negative numbers in silence
        table = np.minimum(table, np.uint64(FORBIDDEN))
    return table.astype(np.int64, copy=False)


def check_range(costs: IntArray) -> None:
    """Raise ValueError for costs below 0 and for the one value that is `FORBIDDEN`."""
    # Read as unsigned, negative costs are the largest: one pass finds both ends.
    if int(costs.view(np.uint64).max()) >= FORBIDDEN:
        rank, column = np.unravel_index(int(costs.view(np.uint64).argmax()), costs.shape)
        raise ValueError(
            f"costs must lie in 0 .. 2**63 - 2, got {costs[rank, column]} at rank {rank}, count {column + 1}"
        )


def checked_caps(caps: npt.ArrayLike, shape: tuple[int, ...]) -> IntArray:
    """Return `caps` as int64 `(world_size,)`; raise ValueError where they are not integers in 0 .. K."""
    world_size, window = shape
    array = np.asarray(caps)
    if array.shape != (world_size,) or array.dtype.kind not in "iu":
        raise ValueError(f"caps must be integers of shape ({world_size},), got {array.dtype} of shape {array.shape}")
    wrong = np.flatnonzero((array < 0) | (array > window))
    if wrong.size:
        raise ValueError(f"caps must lie in 0 .. {window} (K), got {array[wrong[0]]} at rank {wrong[0]}")
    return array.astype(np.int64)


def checked_batch_size(batch_size: int, ranks: int, total_cap: int) -> int:
    """Return `batch_size` as int.

    Raises ValueError below 1, and InfeasibleError unless `ranks` ranks, of `total_cap` samples in all, can share it.
    """
    size = index(batch_size)
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, got {size}")
    if size < ranks:
        raise InfeasibleError(
            f"batch_size {size} is below {ranks}, the number of ranks with a cap of at least 1; "
            "each of them takes at least one sample"
        )
    if size > total_cap:
        raise InfeasibleError(f"batch_size {size} exceeds {total_cap}, the sum of the caps of all ranks; widen K")
    return size


def _not_integers(table: npt.NDArray[Any]) -> str:
    message = f"costs must be integers (tokens, tokens squared or whole nanoseconds), got dtype {table.dtype}"
    if table.dtype.kind != "f":
        return message
    fractional = np.argwhere(~(np.isfinite(table) & (table == np.floor(table))))
    if fractional.size == 0:
        return f"{message}; round them and convert to int64"
    rank, column = fractional[0]
    return f"{message} with {table[rank, column]} at rank {rank}, count {column + 1}"
