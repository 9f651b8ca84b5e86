"""Micro-batches that all ranks run together, as where each gathers sharded parameters: the slowest rank's sum.

    minimise  sum_m ( fixed + max_r sum_{i in (m, r)} weights[i] )    with as many micro-batches m on each rank

The m-th micro-batches of all ranks are a *level*. Levels need not be equally high: the first one is as high as the
heaviest item asks for, and holds the heaviest items of all; of the rest each is as high as an even share of what is
left. Each rank of a level takes the heaviest item that still fits under it, again and again, so what is left for the
last level is light, and longest first makes that one even. A rank that never waits pays its share of everything:

    cost >= ceil(sum weights / G) + fixed M,    M = ceil(sum tokens / (G max_tokens)) at least

Padded micro-batches are spans of the line of samples by falling length: each level is as high as its longest sample
asks for, and otherwise all are equally high, as low as holds the whole line.
"""

from bisect import bisect_left

from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.lpt import spread
from ddpsched.planning.solvers.partition.sorted_batch import Line, Span, falling

Levels = list[list[list[int]]]  # the items of each level and rank


def fill_levels(weights: IntArray, tokens: IntArray, ranks: int, levels: int, max_tokens: int | None) -> Levels | None:
    """Return the items of each level and rank; None where ``levels`` cannot hold them, or a rank would have none.

    ``weights``, ``tokens``: int64 (n,), at least 1 each. No rank's tokens in a level exceed ``max_tokens``.

    >>> import numpy as np
    >>> fill_levels(np.array([9, 4, 4, 3, 2, 2]), np.array([9, 4, 4, 3, 2, 2]), 2, 2, 10)
    [[[0], [1, 2]], [[3], [5, 4]]]
    """
    if len(weights) < ranks * levels:
        return None
    order = falling(weights)[::-1].tolist()  # rising, so that the heaviest is at the end
    rising, found, total = weights[order].tolist(), Levels(), int(weights.sum())
    needs = tokens.tolist()
    for level in range(levels - 1):
        after = levels - 1 - level  # levels that need an item for each rank
        height = max(rising[-1], -(-total // (ranks * (after + 1))))
        placed: list[list[int]] = []
        for rank in range(ranks):
            spare = len(order) - ranks * after - (ranks - rank - 1)  # items that this rank may take
            placed.append(_filled(order, rising, needs, height, max_tokens, spare))
            total -= int(weights[placed[-1]].sum())
        found.append(placed)
    left = weights[order]
    last = [[order[place] for place in places] for places in spread(left, ranks, swaps=2 * ranks)[0]]
    if max_tokens is not None and any(sum(needs[item] for item in items) > max_tokens for items in last):
        return None
    return [*found, last]


def _filled(
    order: list[int], rising: list[int], needs: list[int], height: int, max_tokens: int | None, spare: int
) -> list[int]:
    """Take up to ``spare`` items out of ``order``, each the heaviest that fits; ``rising``: their weights."""
    taken: list[int] = []
    room = height if max_tokens is None else max_tokens
    while len(taken) < spare:
        place = bisect_left(rising, height + 1) - 1
        while place >= 0 and max_tokens is not None and needs[order[place]] > room:
            place -= 1
        if place < 0:
            break
        taken.append(order.pop(place))
        height -= rising.pop(place)
        room -= needs[taken[-1]]
    return taken


def padded_levels(line: Line, ranks: int, levels: int) -> list[list[Span]] | None:
    """Return the spans of each level and rank; None where ``levels`` cannot hold the line, or a rank would have none.

    >>> import numpy as np
    >>> from ddpsched.costs.cost_model import padded_tokens
    >>> from ddpsched.planning.solvers.partition.sorted_batch import line_of
    >>> padded_levels(line_of(np.array([9, 4, 4, 3, 2, 2]), padded_tokens), 2, 2)
    [[(0, 1), (1, 3)], [(3, 4), (4, 6)]]
    """
    if len(line) < ranks * levels:
        return None
    low, high = 0, line.cost_of(0, len(line))
    best = _filled_line(line, ranks, levels, high)
    while best is not None and low < high:
        middle = (low + high) // 2
        found = _filled_line(line, ranks, levels, middle)
        low, high, best = (middle + 1, high, best) if found is None else (low, middle, found)
    return best


def _filled_line(line: Line, ranks: int, levels: int, height: int) -> list[list[Span]] | None:
    """Return spans that are each as full as their level's height and the spans after them allow."""
    found, start, after = list[list[Span]](), 0, ranks * levels
    for _ in range(levels):
        most, spans = max(height, line.cost_of(start, start + 1)), list[Span]()
        for _ in range(ranks):
            after -= 1
            end = start + min(line.take(most, start), len(line) - start - after)
            spans.append((start, end))
            start = end
        found.append(spans)
    return found if start == len(line) else None
