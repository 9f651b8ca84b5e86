"""Cut the line into large items and filler: ways to begin a split into several micro-batches a rank.

The long part of the line becomes *large items*, spans that are placed on ranks whole;
the short rest is *filler*, of which each rank gets one last span that fills it up.
Few large items of little padding are wanted, and enough filler to level the ranks.

Samples of equal length begin as one large item, cut where it is larger than its share
of a rank. Then neighbours are merged, the pair that adds the least padding first
(agglomeration, as in Ward's clustering). After each merge the first ``most`` large items
reach further down the line, and less filler is left: every state with a fresh amount
of filler is one candidate, so one pass gives them all.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import mul

from ddpsched.planning.solvers.partition.sorted_batch import Line

LargeItem = tuple[int, int, int]  # cost, and the span's start and end

# Shares of the work. Less filler than LEAST_FILLER cannot level the ranks, more than MOST_FILLER divided by the
# micro-batches of a rank pads too much; where so many large items leave less than FIRST_FILLER, fewer are begun with.
# On SST-2 and GSM8K, from 4 ranks of 8 samples to 64 of 32, the best candidates lie between.
LEAST_FILLER, FIRST_FILLER, MOST_FILLER = 0.03, 0.1, 1.4
NEXT_FILLER = 0.03  # by which candidates differ
LARGEST = 2.25  # no merged large item costs more than this many even shares of the large items'


def candidates(
    line: Line, ranks: int, most: int, roof: int | None = None
) -> Iterator[tuple[list[LargeItem], int, int]]:
    """Yield large items by falling cost, the place where the filler begins, and the work of both; for linear costs.

    At most ``most`` large items a rank; the filler begins at the line's end where there is none. The work is the cost
    of the large items and that of the filler without padding: however the filler is cut, the ranks do no less together.
    Their number stays and padding is only added, so the work never falls from one candidate to the next: above
    ``roof`` they end.
    """
    weights, limits, size, whole = line.weights, line.limits, len(line), line.work
    share = max(1, whole // (ranks * most))
    largest = int(LARGEST * share)
    starts, counts = runs(line, share)
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


def runs(line: Line, share: int) -> tuple[list[int], list[int]]:
    """Starts and counts of spans of equal samples, each within ``share`` of the work and within memory."""
    weights, limits = line.weights, line.limits
    starts: list[int] = []
    counts: list[int] = []
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
    large_items: list[LargeItem] = []
    i = 0
    while i < edge:
        large_items.append((fixed + counts[i] * values[i], starts[i], starts[i] + counts[i]))
        i = after[i]
    large_items.sort(reverse=True)
    return large_items
