"""Large items and filler: where to cut the line, which ranks run the pieces, and exchanges that level the ranks.

The long part of the line becomes *large items*, spans that are placed on ranks whole, each on the lightest rank. The
short rest is *filler*, of which each rank gets one last span that fills it up. Few large items of little padding are
wanted, and enough filler to level the ranks.

Samples of equal length begin as one large item, cut where it is larger than its share of a rank. Then neighbours are
merged, the pair that adds the least padding first (agglomeration, as in Ward's clustering). After each merge the first
``most`` large items reach further down the line, and less filler is left: every state with a new amount of filler is
one candidate, so one pass gives them all.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate
from operator import mul
from typing import Any

from ddpsched.planning.solvers.partition.sorted_batch import Line, Span

LargeItem = tuple[int, int, int]  # cost, and the span's start and end

# Shares of the work. Less filler than LEAST_FILLER cannot level the ranks, more than MOST_FILLER divided by the
# micro-batches of a rank pads too much; where so many large items leave less than FIRST_FILLER, fewer are begun with.
# On SST-2 and GSM8K, from 4 ranks of 8 samples to 64 of 32, the best candidates lie between.
LEAST_FILLER, FIRST_FILLER, MOST_FILLER = 0.03, 0.1, 1.4
NEXT_FILLER = 0.03  # by which candidates differ
LARGEST = 2.25  # no merged large item costs more than this many even shares of the large items'
SPARE = 16  # counts that are tried even if no optimum has so many: spare ones help to level the ranks
DENSE = 64  # up to here each count is tried
ROUNDS = 6  # of exchanges; more change nothing from B = 32 on
LIGHTEST = 2  # ranks to exchange with: of more, the gain is not worth the time


def candidates(
    line: Line, ranks: int, most: int, roof: int | None = None
) -> Iterator[tuple[list[LargeItem], int, int]]:
    """Yield large items by falling cost, the place where the filler begins, and the work of both; for linear costs.

    There are at most ``most`` large items a rank. The filler begins at the line's end where there is none. The work is
    the cost of the large items and that of the filler without padding, which no cut of the filler undercuts. It never
    falls from one candidate to the next, since merges only add padding; candidates end where it is above ``roof``.
    """
    weights, limits, size, whole = line.weights, line.limits, len(line), line.work
    share = max(1, whole // (ranks * most))
    largest = int(LARGEST * share)
    starts, counts = _runs(line, share)
    total = len(starts)
    values = [weights[start] for start in starts]
    work = [0, *accumulate(map(mul, counts, values))]  # work[i]: real work before run i
    after, before = [*range(1, total + 1)], [*range(-1, total - 1)]  # neighbours that are still there
    # A merge is one integer, padding * total + i, where i is the left of the pair; stale ones differ from merge[i].
    merge = [counts[i + 1] * (values[i] - values[i + 1]) * total + i for i in range(total - 1)]
    heap = merge.copy()
    heapify(heap)
    merge.append(-1)  # the last one has no right neighbour
    while most > 1 and (ranks * most >= total or whole - work[ranks * most] < FIRST_FILLER * whole):
        most -= 1  # so many large items would leave no filler
    edge = min(ranks * most, total)  # the first large item that counts as filler
    last = MOST_FILLER / (most + 1) + NEXT_FILLER
    least = whole + line.fixed * edge
    while roof is None or least <= roof:
        place = starts[edge] if edge < total else size
        filler = (whole - work[edge]) / whole
        if place == size or LEAST_FILLER <= filler <= last - NEXT_FILLER:
            last = filler
            yield _large_items(line.fixed, starts, counts, values, after, edge), place, least
        if filler < LEAST_FILLER:
            return
        while heap:
            key = heappop(heap)
            i = key % total
            if merge[i] == key:
                j = after[i]
                both = counts[i] + counts[j]
                if both * values[i] <= largest and (limits is None or both <= limits[starts[i]]):
                    break
        else:
            return
        k = after[i] = after[j]
        counts[i] += counts[j]
        merge[j] = -1
        if k < total:
            before[k] = i
            merge[i] = counts[k] * (values[i] - values[k]) * total + i
            heappush(heap, merge[i])
        else:
            merge[i] = -1
        h = before[i]
        if h >= 0:
            merge[h] = counts[i] * (values[h] - values[i]) * total + h
            heappush(heap, merge[h])
        if j < edge < total:  # one large item less to the left, so the first run of filler becomes one
            least += key // total + counts[edge] * values[edge] - (work[after[edge]] - work[edge])
            edge = after[edge]
        elif j == edge:  # filler joins the last large item
            least += counts[j] * values[i] - (work[k] - work[j])
            edge = k


def placements(line: Line, world_size: int, count: int, below: int, makespan: int) -> Iterator["Placement"]:
    """Yield placements of up to ``count`` micro-batches a rank, before any exchange, each cheaper than ``below``.

    Those with more work than the ranks can share below ``makespan`` are left out: no exchange changes the work.
    """
    if line.floored or 2 * world_size * count > len(line):
        starts, sizes = _runs(line, max(1, line.work // (world_size * count)))
        if len(starts) <= world_size * count and line.work + len(starts) * line.fixed <= world_size * (makespan - 1):
            # samples of equal length together are few enough to be large items, without filler
            items = [(line.cost_of(a, a + n), a, a + n) for a, n in zip(starts, sizes, strict=True)]
            whole = _placed(line, sorted(items, reverse=True), len(line), world_size, count, below)
            if whole is not None:
                yield whole
    best = None
    roof = world_size * (min(below, makespan) - 1)
    for large_items, place, least in candidates(line, world_size, count - 1, roof):
        if least > world_size * (below - 1):
            break
        better = _placed(line, large_items, place, world_size, count - 1, below)
        if better is not None:
            best, below = better, better.makespan
    if best is not None:
        yield best


def _runs(line: Line, share: int) -> tuple[list[int], list[int]]:
    """Return starts and counts of spans of equal samples, each within ``share`` of the work and within memory."""
    weights, limits = line.weights, line.limits
    starts, counts = list[int](), list[int]()
    for start, size in line.runs:
        most = max(1, share // weights[start])
        if limits is not None:
            most = min(most, limits[start])
        if size <= most:
            starts.append(start)
            counts.append(size)
            continue
        parts = -(-size // most)
        even, more = divmod(size, parts)
        for part in range(parts):
            starts.append(start)
            counts.append(even + (part < more))
            start += counts[-1]
    return starts, counts


def _large_items(
    fixed: int, starts: list[int], counts: list[int], values: list[int], after: list[int], edge: int
) -> list[LargeItem]:
    """Return the runs before ``edge`` that are still there, by falling cost."""
    items, i = list[LargeItem](), 0
    while i < edge:
        items.append((fixed + counts[i] * values[i], starts[i], starts[i] + counts[i]))
        i = after[i]
    return sorted(items, reverse=True)


@dataclass(frozen=True)
class Placement:
    """Large items with the rank that runs each, and the makespan up to which filler levels the ranks."""

    makespan: int
    large_items: list[LargeItem]
    ranks: list[int]  # of each large item
    loads: list[int]  # cost of each rank's large items
    place: int  # in the line, where the filler begins

    def spans(self, line: Line) -> list[list[Span]]:
        """Return each rank's micro-batches: its large items, then its filler."""
        start = self.place
        spans: list[list[Span]] = [[] for _ in self.loads]
        for rank, (_, a, b) in zip(self.ranks, self.large_items, strict=True):
            spans[rank].append((a, b))
        for rank in sorted(range(len(spans)), key=self.loads.__getitem__):
            if start == len(line):
                break
            count = (self.makespan - self.loads[rank] - line.fixed) // line.weights[start]  # as in _level
            if line.limits is not None:
                count = min(count, line.limits[start])
            if count > 0:
                spans[rank].append((start, min(len(line), start + count)))
                start = spans[rank][-1][1]
        return spans


def counts_to_try(lowest: int, useful: int, most: int) -> list[int]:
    """Return the numbers of micro-batches to try: each up to ``DENSE``, then an eighth more; twice above ``useful``.

    >>> counts_to_try(62, 80, 300)
    [62, 63, 64, 72, 81, 162]
    """
    counts, count = list[int](), lowest
    while count <= most:
        counts.append(count)
        if count < DENSE:
            count += 1
        else:
            count += count if count > useful else count // 8
    return counts


def _placed(
    line: Line, large_items: list[LargeItem], place: int, world_size: int, most: int, below: int
) -> Placement | None:
    """Place each large item on the lightest rank with fewer than ``most``, then the filler that begins at ``place``.

    Return None where the makespan is not below ``below``.
    """
    counts, ranks = [0] * world_size, []
    # A rank is one integer, load * world_size + rank: the least is the lightest, equal ones by rank.
    lightest, full, roof = list(range(world_size)), [], below * world_size
    for cost, _, _ in large_items:
        rank = lightest[0] % world_size
        laden = lightest[0] + cost * world_size
        if laden >= roof:
            return None
        ranks.append(rank)
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
    return None if makespan is None else Placement(makespan, large_items, ranks, loads, place)


def _level(line: Line, place: int, loads: list[int], below: int) -> int | None:
    """Return the least makespan at which a span on each rank, the lightest first, holds the filler from ``place`` on.

    None where it is not below ``below``.
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


def level_ranks(line: Line, ranks: list[list[Span]], most: int) -> list[int]:
    """Exchange micro-batches between the costliest rank and the lightest ones, in place; return the costs of all ranks.

    Each round gives one micro-batch of the costliest rank for one of a lighter rank, or for none: the pair after which
    the larger of the two costs is least. A rank keeps at most ``most`` micro-batches.
    """
    costs = [[line.cost_of(a, b) for a, b in spans] for spans in ranks]
    loads = [sum(each) for each in costs]
    tables: list[list[list[Any]]] = [ranks, costs]
    for _ in range(ROUNDS):
        by_load = sorted(range(len(loads)), key=loads.__getitem__)
        high = by_load[-1]
        least, best = loads[high], None
        for low in by_load[: min(LIGHTEST, len(by_load) - 1)]:
            gap, base = loads[high] - loads[low], loads[low]
            returns = list(enumerate(costs[low]))
            if len(ranks[low]) < most:
                returns.append((-1, 0))
            for x, given in enumerate(costs[high]):
                for y, back in returns:
                    moved = given - back
                    if 0 < moved < gap:
                        larger = max(loads[high] - moved, base + moved)
                        if larger < least:
                            least, best = larger, (low, x, y, moved)
        if best is None:
            break
        low, x, y, moved = best
        for table in tables:
            leaving = table[high].pop(x)
            if y >= 0:
                table[high].append(table[low].pop(y))
            table[low].append(leaving)
        loads[high] -= moved
        loads[low] += moved
    return loads
