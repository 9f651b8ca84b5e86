"""Large items onto ranks, each onto the lightest; then filler, a span a rank, that levels them.

The large items are spans of :mod:`candidates` that are placed whole; the filler is the
rest of the line.
"""

from bisect import bisect_left
from dataclasses import dataclass
from heapq import heappop, heapreplace

from ddpsched.planning.solvers.partition.candidates import LargeItem
from ddpsched.planning.solvers.partition.sorted_batch import Line, Span

SPARE = 16  # counts that are tried even if no optimum has so many: spare ones help to level the ranks
DENSE = 64  # up to here each count is tried


@dataclass(frozen=True)
class Found:
    """Large items with the ranks they lie on, and the level that the filler of each rank reaches."""

    makespan: int
    large_items: list[LargeItem]
    owners: list[int]
    loads: list[int]  # of the large items alone
    place: int


def counts_to_try(lowest: int, useful: int, most: int) -> list[int]:
    """The numbers of micro-batches that are tried; of a larger ``most`` some more.

    >>> counts_to_try(62, 80, 300)
    [62, 63, 64, 72, 81, 162]
    """
    found: list[int] = []
    count = lowest
    while count <= most:
        found.append(count)
        count += 1 if count < DENSE else count if count > useful else count // 8
    return found


def placed(
    line: Line, large_items: list[LargeItem], place: int, world_size: int, most: int, below: int
) -> Found | None:
    """Place each large item on the lightest rank with fewer than ``most``, then the filler.

    Return None where that is no better than ``below``.
    """
    counts, owners = [0] * world_size, []
    # A rank is one integer, load * world_size + rank: the least is the lightest, equal ones by rank.
    lightest, full, roof = list(range(world_size)), [], below * world_size
    for cost, _, _ in large_items:
        rank = lightest[0] % world_size
        laden = lightest[0] + cost * world_size
        if laden >= roof:
            return None
        owners.append(rank)
        counts[rank] += 1
        if counts[rank] < most:
            heapreplace(lightest, laden)
        else:
            heappop(lightest)
            full.append(laden)
    loads = [0] * world_size
    for laden in lightest + full:
        loads[laden % world_size] = laden // world_size
    makespan = max(loads) if place == len(line) else _level(line, place, loads, below)
    return None if makespan is None else Found(makespan, large_items, owners, loads, place)


def _level(line: Line, place: int, loads: list[int], below: int) -> int | None:
    """Return the level of ranks at which one span each, the lightest rank first, holds the filler from ``place`` on.

    By bisection; None where ``below`` is not undercut.
    """
    weights, limits, size = line.weights, line.limits, len(line)
    paid = [load + line.fixed for load in sorted(loads)]

    def reaches(makespan: int) -> bool:
        start = place
        for before in paid:
            count = (makespan - before) // weights[start]
            if limits is not None and count > limits[start]:
                count = limits[start]
            if count > 0:
                start += count
                if start >= size:
                    return True
        return False

    low = max(max(loads), -(-(sum(loads) + sum(weights[place:])) // len(loads)))
    high = below - 1
    if low > high or not reaches(high):
        return None
    step = 1  # mostly a few units above the even share: steps that double, then bisection
    while low + step < high and not reaches(low + step):
        low, step = low + step + 1, 2 * step
    return low + bisect_left(range(low, min(low + step, high)), True, key=reaches)


def spans_of(line: Line, found: Found) -> list[list[Span]]:
    """Each rank's micro-batches: its large items, then its filler."""
    loads, start = found.loads, found.place
    ranks: list[list[Span]] = [[] for _ in loads]
    for rank, (_, a, b) in zip(found.owners, found.large_items, strict=True):
        ranks[rank].append((a, b))
    for rank in sorted(range(len(loads)), key=loads.__getitem__):
        if start < len(line):
            count = (found.makespan - loads[rank] - line.fixed) // line.weights[start]  # as in _level
            if line.limits is not None:
                count = min(count, line.limits[start])
            if count > 0:
                end = min(len(line), start + count)
                ranks[rank].append((start, end))
                start = end
    return ranks
