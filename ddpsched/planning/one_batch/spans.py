"""Padded micro-batches on ranks, within a cap of tokens, where samples may have to stay together.

Where any sample may go anywhere, the line of samples by length is cut (solvers/partition). Else items are put on ranks
by their costs without padding, and also in the order of their longest samples; each rank's items, by falling longest
sample, are then cut into the cheapest micro-batches, by dynamic programming, and the better of the two is taken. The
lower bound is that of samples that may go anywhere.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.errors import InfeasibleError
from ddpsched.planning.one_batch.items import Items
from ddpsched.planning.solvers.partition.several import accumulate_split, fewest_microbatches, lower_bound, usable
from ddpsched.planning.solvers.partition.sorted_batch import Line, line_of

UNREACHED = np.iinfo(np.int64).max // 4


def padded_spans(
    together: Items,
    inner: Items,
    members: list[list[int]],
    max_tokens: int | None,
    most: int | None,
    free: bool,
    equal_counts: bool,
) -> tuple[list[list[Int]], int]:
    """Return each rank's micro-batches, as positions of samples, and a lower bound; arguments as of ``packed_rows``.

    ``equal_counts``: each rank has as many samples, and keeps as many. Raises InfeasibleError where ``most``
    micro-batches a rank cannot hold the samples within ``max_tokens``.
    """
    world_size = len(members)
    limit = None if max_tokens is None else lambda lengths: max_tokens // lengths
    line = line_of(together.lengths, together.cost, limit)
    fewest = fewest_microbatches(line, world_size)
    if free:
        what = f"the samples of a rank need {fewest} padded micro-batches of at most {max_tokens} tokens"
        _refuse(most, fewest, what)
        found = accumulate_split(line, world_size, fewest if most is None else most)
        ends = np.cumsum([size for rank in found.sizes for size in rank])
        parts = iter(np.split(found.positions, ends[:-1]))
        assert found.lower_bound is not None
        return [[np.sort(next(parts)) for _ in rank] for rank in found.sizes], found.lower_bound
    ways, ordered = [members], _in_order(together, members)
    if not equal_counts or all(together.counts[items].sum() == len(line) // world_size for items in ordered):
        ways.append(ordered)
    ranks, _ = min([_cut(inner, together, way, max_tokens, most) for way in ways], key=lambda each: each[1])
    count = max(map(len, ranks))
    what = f"no division that keeps to groups and counts was found with fewer than {count} padded ones a rank"
    _refuse(most, count, what)
    return [[inner.positions(items) for items in rank] for rank in ranks], _bound(line, world_size, count)


def _bound(line: Line, world_size: int, count: int) -> int:
    return lower_bound(line, world_size, usable(line, world_size, count))


def _refuse(most: int | None, needed: int, what: str) -> None:
    if most is not None and needed > most:
        raise InfeasibleError(
            f"balance: max_microbatches = {most}, but {what}; raise max_microbatches to {needed}, or max_tokens"
        )


def _in_order(items: Items, members: list[list[int]]) -> list[list[int]]:
    """Return as many items on each rank, but those that are about as long on one."""
    order, ends = np.argsort(-items.longest, kind="stable"), np.cumsum([len(each) for each in members])
    return [part.tolist() for part in np.split(order, ends[:-1])]


def _cut(
    inner: Items, together: Items, members: list[list[int]], max_tokens: int | None, most: int | None
) -> tuple[list[list[list[int]]], tuple[bool, int]]:
    """Return each rank's micro-batches, and whether they are too many and the largest cost, to be compared."""
    ranks, costs = [], []
    for items in members:
        chosen = sorted(inner.within(together, items), key=lambda item: (-inner.longest[item], item))
        groups, cost = cheapest_spans(inner, chosen, max_tokens, most)
        ranks.append(groups)
        costs.append(cost)
    return ranks, (most is not None and max(map(len, ranks)) > most, max(costs))


def cheapest_spans(
    items: Items, falling: Sequence[int], max_tokens: int | None, most: int | None
) -> tuple[list[list[int]], int]:
    """Return the cheapest cut of items, by falling longest sample, into micro-batches, and its cost.

    At most ``most`` of them; without it, or where it is too few, as few as ``max_tokens`` allows.
    """
    if not falling:
        return [], 0
    chosen = np.array(falling)
    each, longest = items.cost.sample(items.longest[chosen]), items.longest[chosen]
    ends = np.concatenate([[0], np.cumsum(items.counts[chosen])])  # samples before each item
    size = len(chosen)

    def spans_to(end: int) -> Int:
        """Return the cost of each span that ends before item ``end``, by its first item."""
        counts = ends[end] - ends[:end]
        cost = np.maximum(items.cost.least, items.cost.fixed + counts * each[:end])
        return cost if max_tokens is None else np.where(counts * longest[:end] <= max_tokens, cost, UNREACHED)

    table = [spans_to(end) for end in range(1, size + 1)]
    least, starts, reached = [np.array([0] + [UNREACHED] * size)], list[Int](), False
    while len(starts) < size and not (reached and len(starts) >= (most or 1)):
        found, first = np.full(size + 1, UNREACHED), np.zeros(size + 1, dtype=np.int64)
        for end in range(1, size + 1):
            ways = np.minimum(least[-1][:end] + table[end - 1], UNREACHED)
            first[end] = ways.argmin()
            found[end] = ways[first[end]]
        least.append(found)
        starts.append(first)
        reached = reached or bool(found[size] < UNREACHED)
    count = int(np.argmin([layer[size] for layer in least]))
    cuts = [size]
    for layer in range(count - 1, -1, -1):
        cuts.append(int(starts[layer][cuts[-1]]))
    edges = cuts[::-1]
    return [chosen[a:b].tolist() for a, b in pairwise(edges)], int(least[count][size])
