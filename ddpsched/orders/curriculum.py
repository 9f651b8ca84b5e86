"""Orders of rising difficulty: sorted samples, the share open at each step, and the shards of ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddpsched.data.lengths import Lengths
from ddpsched.data.order_file import OrderedFile
from ddpsched.errors import DataError
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.lexicographic_sort import sort_rows
from ddpsched.step_plan import Ids


@dataclass(frozen=True, eq=False)
class Sorted:
    """The rows of a whole source, easiest first, from the file at ``path``."""

    path: str
    rows: Ids
    digest: str

    @classmethod
    def read(cls, path: str) -> "Sorted":
        """Read a file of `ddpsched sort`. Raises DataError where it is not one."""
        file = OrderedFile.open(Path(path).expanduser())
        return cls(path, file.ids(), file.digest)


def sorted_ids(lengths: Lengths, file: Sorted | None) -> Ids:
    """Return the ids of ``lengths``, (N,), easiest first: in the file's order, or by length; equals by id.

    Rows of the file that are no samples of ``lengths`` are skipped. Raises DataError where samples are missing.
    """
    if file is None:
        ids = np.arange(len(lengths), dtype=np.int64)
        return sort_rows([lengths.lengths(ids), ids])[1]
    rows = np.arange(len(lengths), dtype=np.int64) if lengths.rows is None else lengths.rows
    if lengths.rows is None and len(file.rows) != len(rows):
        raise DataError(f"order.path = {file.path}: orders {len(file.rows)} samples, but there are {len(rows)}")
    place = np.full(max(len(file.rows), int(rows[-1]) + 1), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    ids = place[file.rows]
    ids = ids[ids >= 0]
    once = np.bincount(ids, minlength=len(rows)) == 1
    if not once.all():
        raise DataError(
            f"order.path = {file.path}: of the {len(rows)} samples it orders {once.sum()} once; write it again with "
            "`ddpsched sort`"
        )
    return ids


def reshuffled(order: Ids, window: int, generator: np.random.Generator) -> Ids:
    """Return the order with each run of ``window`` neighbours shuffled.

    >>> reshuffled(np.arange(6), 2, np.random.default_rng(0)).tolist()
    [1, 0, 3, 2, 4, 5]
    """
    if window == 1:
        return order
    runs = np.arange(len(order)) // window
    return order[np.lexsort((generator.random(len(order)), runs))]


PACES: dict[str, Callable[[float, OrderConfig], float]] = {
    "linear": lambda x, order: order.start + (1 - order.start) * x,
    # the rate of new samples is inversely proportional to the share: Platanios et al. 2019
    "root": lambda x, order: float(np.sqrt(order.start**2 + (1 - order.start**2) * x)),
    "step": lambda x, order: order.start + (1 - order.start) * np.floor(order.stairs * x) / order.stairs,
}


def open_samples(order: OrderConfig, num_samples: int, global_batch: int) -> list[int]:
    """Return the number of samples open at each step of an epoch, the easiest, and at least those used by then.

    With x = step / (over * steps), at most 1: linear s + (1 - s) x, root (s^2 + (1 - s^2) x)^(1/2), step
    s + (1 - s) floor(stairs x) / stairs, as shares of all samples, s = ``start``.

    >>> open_samples(OrderConfig(kind="curriculum", pacing="linear", start=0.5, over=1.0), 40, 10)
    [20, 25, 30, 40]
    """
    assert order.pacing is not None
    pace, steps = PACES[order.pacing], -(-num_samples // global_batch)
    shares = [pace(min(1.0, step / (order.over * steps)), order) for step in range(steps)]
    needed = range(global_batch, (steps + 1) * global_batch, global_batch)
    return [min(num_samples, max(round(share * num_samples), used)) for share, used in zip(shares, needed, strict=True)]


def paced(easiest: Ids, opened: Sequence[int], global_batch: int, generator: np.random.Generator) -> Ids:
    """Return an order whose steps are drawn from the ``opened[step]`` easiest samples not yet used."""
    pool, size, seen, drawn = np.empty_like(easiest), 0, 0, []
    for until in opened:
        pool[size : size + until - seen] = easiest[seen:until]
        size, seen = size + until - seen, until
        if seen == len(easiest):
            drawn.append(generator.permutation(pool[:size]))
            break
        chosen = generator.choice(size, min(global_batch, size), replace=False)
        drawn.append(pool[chosen])
        size -= len(chosen)
        # the pool's end moves into the holes before it
        end = np.setdiff1d(np.arange(size, size + len(chosen)), chosen, assume_unique=True)
        pool[chosen[chosen < size]] = pool[end]
    return np.concatenate(drawn)


def local(easiest: Ids, world_size: int) -> list[Ids]:
    """Return each rank's shard of the data, ids r * N // G to (r + 1) * N // G, easiest first.

    >>> [ids.tolist() for ids in local(np.array([5, 0, 3, 2, 1, 4]), 2)]
    [[0, 2, 1], [5, 3, 4]]
    """
    bounds = [rank * len(easiest) // world_size for rank in range(world_size + 1)]
    owner = np.searchsorted(bounds, easiest, side="right") - 1
    return [easiest[owner == rank] for rank in range(world_size)]


def interleaved(shards: Sequence[Ids]) -> Ids:
    """Return the samples of all shards, one of each shard in turn.

    >>> interleaved([np.array([0, 2, 1]), np.array([5, 3])]).tolist()
    [0, 5, 2, 3, 1]
    """
    rank = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
    turn = np.concatenate([np.arange(len(shard)) for shard in shards])
    return np.concatenate(shards)[np.lexsort((rank, turn))]
