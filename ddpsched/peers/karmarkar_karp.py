"""The largest differencing method, by which reinforcement-learning trainers split a batch; packed rows.

Karmarkar and Karp (1982), "The differencing method of set partitioning". Every sample begins as one partition into k
sets, k-1 of them empty; the two partitions with the largest spread (largest minus smallest sum) are merged, largest
sets with smallest, until one is left.
"""

from collections.abc import Iterator
from functools import partial
from heapq import heapify, heappop, heappush

from ddpsched.peers.peer import Peer, Problem, Step

PACKAGE = "ddpsched's reimplementation"
Sets = list[tuple[int, list[int]]]  # (sum, positions), by falling sum


def largest_differencing(lengths: list[int], groups: int, equal: bool = False) -> list[list[int]]:
    """Return positions of ``lengths`` in ``groups`` lists, their sums made nearly equal.

    ``equal``: counts differ by at most one, because neighbours in length begin in different sets.

    >>> largest_differencing([8, 7, 6, 5, 4], 2)
    [[4, 1, 3], [0, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i]) if equal else range(len(lengths))
    size = groups if equal else 1
    starts = [order[i : i + size] for i in range(0, len(order), size)]
    heap = []
    for turn, start in enumerate(starts):
        sets: Sets = [(lengths[i], [i]) for i in start] + [(0, []) for _ in range(groups - len(start))]
        heap.append((sets[-1][0] - sets[0][0], turn, sets))
    heapify(heap)
    for turn in range(len(starts), 2 * len(starts) - 1):
        (_, _, one), (_, _, other) = heappop(heap), heappop(heap)
        merged = [(a + b, left + right) for (a, left), (b, right) in zip(one, reversed(other), strict=True)]
        merged.sort(key=lambda group: -group[0])
        heappush(heap, (merged[-1][0] - merged[0][0], turn, merged))
    return [members for _, members in heap[0][2]]


def _steps(problem: Problem, equal: bool = False) -> Iterator[Step]:
    for start in range(0, len(problem.order), problem.global_batch):
        batch = problem.order[start : start + problem.global_batch]
        groups = largest_differencing(problem.lengths[batch].tolist(), problem.world_size, equal)
        yield [[batch[group]] if group else [] for group in groups]


PEERS = (
    Peer("karmarkar_karp", PACKAGE, True, _steps),
    Peer("karmarkar_karp_equal", PACKAGE, True, partial(_steps, equal=True)),
)
