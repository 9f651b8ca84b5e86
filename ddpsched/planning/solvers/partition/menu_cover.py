"""Several padded micro-batches a rank on a menu of shapes, whose cost is not linear in the count.

The samples by falling length are covered by shapes, and these are placed on the ranks. Which shapes is a dynamic
program: with the samples from i on,

    C(i) = min over shapes (rows, length), length >= lengths[i], price <= cap  of  price + penalty + C(i + rows)

A cover is the cheapest of all: give its shapes, by falling length, the samples in that order, each filled up, and no
sample meets a shape that is too short. So C(0) without cap and penalty over G is a lower bound of the makespan, and so
is the cheapest shape that holds the longest sample.

The cheapest cover need not be level: small shapes pad less and fill up ranks, and too many of them find no place. So
several caps are tried, and for each the smallest penalty (by doubling) at which at most G * M shapes are used. They are
placed by falling price, each on the rank that has the least and room for one more. Of all that is tried, and of one
micro-batch a rank, which is solved exactly, the best is returned.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from ddpsched.costs.cost_model import Int
from ddpsched.costs.shape_menu import MenuCost
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.solvers.partition.min_max_split import split_line
from ddpsched.planning.solvers.partition.sorted_batch import Line, Ranks, Span, line_of

CAPS = 8  # prices of shapes that are tried as the largest
PENALTIES = 12  # doublings

Priced = tuple[int, int]  # price and rows of a shape


def menu_split(lengths: Int, cost: MenuCost, world_size: int, max_microbatches: int) -> Assignment:
    """Return the best placement found of at most ``max_microbatches`` micro-batches on each of ``world_size`` ranks.

    ``lengths``: (B,). Raises InfeasibleError for a sample that is longer than the menu.

    >>> import numpy as np
    >>> from ddpsched.costs.cost_model import padded_tokens
    >>> from ddpsched.costs.shape_menu import on_menu
    >>> cost = on_menu(padded_tokens, [(1, 60), (4, 10), (8, 60)])
    >>> split = menu_split(np.array([60, 9, 8, 7, 9, 8, 10, 9, 7]), cost, 2, 2)
    >>> split.sizes, split.costs, split.lower_bound
    (((1,), (4, 4)), (60, 80), 70)
    """
    rounded = cost.rounded(lengths)
    line = line_of(lengths, cost)
    ordered = rounded[line.order].tolist()  # few distinct ones, which cost the same
    cheapest, _ = _cover(_candidates(ordered, cost, None), 0)
    bound = max(int(cost.padded(1, ordered[0])), -(-cheapest // world_size))
    ranks = _one_each(line, world_size)
    best = max(line.costs(ranks))
    if max_microbatches > 1 and best > bound:
        for cap in _caps(cost, int(cost.padded(1, ordered[0])), best):
            spans = _few_enough(_candidates(ordered, cost, cap), world_size, max_microbatches, best)
            if spans is None:
                continue
            placed = _placed(line, spans, world_size, max_microbatches)
            makespan = max(line.costs(placed))
            if makespan < best:
                best, ranks = makespan, placed
    return line.assignment(ranks, bound)


def _one_each(line: Line, world_size: int) -> Ranks:
    spans, _ = split_line(line, world_size)
    return [[span] for span in spans] + [[]] * (world_size - len(spans))


def _caps(cost: MenuCost, least: int, most: int) -> list[int]:
    """Return the prices of shapes to try as the largest, rising: those between ``least`` and ``most``, not too many."""
    prices = sorted({price for price, _, _ in cost.priced})
    useful = [price for price in prices if least <= price < most]
    return [useful[(len(useful) - 1) * place // (CAPS - 1)] for place in range(CAPS)] if len(useful) > CAPS else useful


def _candidates(ordered: Sequence[int], cost: MenuCost, cap: int | None) -> list[list[Priced]]:
    """Return for each sample the shapes that may begin with it: none that another has as many rows as for less."""
    shapes = [shape for shape in cost.priced if cap is None or shape[0] <= cap]
    by_length: dict[int, list[Priced]] = {}
    for length in set(ordered):
        kept: list[Priced] = []
        for price, rows, longest in shapes:
            if longest >= length and (not kept or rows > kept[-1][1]):
                kept.append((price, rows))
        by_length[length] = kept
    return [by_length[length] for length in ordered]


def _cover(candidates: list[list[Priced]], penalty: int) -> tuple[int, list[Span]]:
    """Return the price of the cheapest cover, with ``penalty`` for each shape, and its spans."""
    size = len(candidates)
    assert candidates[0], "caps leave a shape for the longest sample"
    most = candidates[-1][-1][1]  # rows, as all shapes may begin with the shortest
    total, rows_of = [0] * (size + most), [0] * size
    for i in range(size - 1, -1, -1):
        price, rows_of[i] = candidates[i][0]
        least = price + total[i + rows_of[i]]
        for price, rows in candidates[i]:
            whole = price + total[i + rows]
            if whole < least:
                least, rows_of[i] = whole, rows
        total[i] = least + penalty
    spans, start = [], 0
    while start < size:
        end = min(size, start + rows_of[start])
        spans.append((start, end))
        start = end
    return total[0], spans


def _few_enough(candidates: list[list[Priced]], world_size: int, most: int, best: int) -> list[Span] | None:
    """Return a cover of at most ``most`` spans a rank, at about the smallest penalty that makes it so.

    None where there is none, or none that could be placed below ``best``: a cover's price is shared by the ranks.
    """
    penalty = 0
    for _ in range(PENALTIES):
        price, spans = _cover(candidates, penalty)
        if price - penalty * len(spans) >= world_size * best:
            return None
        if len(spans) <= world_size * most:
            return spans
        penalty = 2 * penalty or -(-price // (8 * world_size * most))
    return None


def _placed(line: Line, spans: list[Span], world_size: int, most: int) -> Ranks:
    """Return the spans on ranks: by falling cost, each where least is so far, of ranks with fewer than ``most``."""
    ranks: Ranks = [[] for _ in range(world_size)]
    open_ranks = [(0, rank) for rank in range(world_size)]
    heapify(open_ranks)
    for span in sorted(spans, key=lambda span: (-line.cost_of(*span), span)):
        load, rank = heappop(open_ranks)
        ranks[rank].append(span)
        if len(ranks[rank]) < most:
            heappush(open_ranks, (load + line.cost_of(*span), rank))
    return ranks
