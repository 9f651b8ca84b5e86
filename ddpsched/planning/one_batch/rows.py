"""Rows without padding, each within a cap, on ranks.

A rank pays ``fixed`` for each row, and the cost of its samples, whichever row they lie in. With R rows in all, at least
one on each rank that works and enough for all tokens, some rank pays at least the mean; and some rank runs the heaviest
item in as many rows as its tokens need:

    makespan >= max( ceil((sum of costs + fixed R) / G),  max_i (cost_i + fixed ceil(tokens_i / max_tokens)) )
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.errors import InfeasibleError
from ddpsched.planning.one_batch.items import Items
from ddpsched.planning.solvers.partition.rooms import fit_into, spread_within


def packed_rows(
    together: Items, inner: Items, members: list[list[int]], max_tokens: int | None, most: int | None, free: bool
) -> tuple[list[list[Int]], int]:
    """Return each rank's rows, as positions of samples, and the lower bound.

    ``together``: what stays on one rank, of which rank r has ``members[r]``. ``inner``: what stays in one row.
    ``most``: rows that a rank may have. ``free``: whether any inner item may move to any rank, where rows are too many
    otherwise. Raises InfeasibleError where they are.
    """
    if max_tokens is None:
        return [[together.positions(items)] if items else [] for items in members], _bound(together, len(members), None)
    rows = [first_fit(inner, inner.within(together, items), max_tokens, most) for items in members]
    needed = max(map(len, rows))
    if most is not None and needed > most and free:
        rows, needed = _filled_first(inner, len(members), max_tokens, most)
    if most is not None and needed > most:
        what = f"the samples of a rank fill {needed} rows of {max_tokens} tokens"
        if not free:
            what = f"no division that keeps to groups and counts was found with fewer than {needed} rows a rank"
        raise InfeasibleError(
            f"balance: max_microbatches = {most}, but {what}; raise max_microbatches to {needed}, or max_tokens"
        )
    return [[inner.positions(row) for row in rank] for rank in rows], _bound(together, len(members), max_tokens)


def first_fit(items: Items, chosen: Sequence[int], max_tokens: int, most: int | None = None) -> list[list[int]]:
    """Return rows of at most ``max_tokens``: each item, longest first, in the fullest row that has room for it.

    Where these are more than ``most``, all ways are searched for as few (:func:`fit_into`), or else for the fewest.
    """
    tokens = items.tokens
    order = sorted(chosen, key=lambda item: (-tokens[item], item))
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # of each row, rising: tokens left, and which one
    for item in order:
        need = int(tokens[item])
        place = bisect_left(rooms, (need, -1))
        if place == len(rooms):
            left, row = max_tokens, len(rows)
            rows.append([])
        else:
            left, row = rooms.pop(place)
        rows[row].append(item)
        insort(rooms, (left - need, row))
    if most is None or len(rows) <= most:
        return rows
    needs = tokens[order]
    for count in range(max(most, -(-int(needs.sum()) // max_tokens)), len(rows)):
        found = fit_into(needs, count, max_tokens)
        if found is not None:
            return [[order[place] for place in row] for row in found if row]
    return rows


def _filled_first(inner: Items, world_size: int, max_tokens: int, most: int) -> tuple[list[list[list[int]]], int]:
    """Return each rank's rows, filled before they are placed, as evenly in number as can be, and the largest number."""
    rows = first_fit(inner, range(len(inner)), max_tokens, most * world_size)
    room = -(-len(rows) // world_size)
    loads = np.array([inner.costs[row].sum() for row in rows])
    placed = spread_within(loads, np.ones(len(rows), dtype=np.int64), world_size, room)
    assert placed is not None, "there is room for as many rows on each rank"
    return [[rows[row] for row in rank] for rank in placed], room


def _bound(items: Items, world_size: int, max_tokens: int | None) -> int:
    """Return the lower bound of the largest cost."""
    fixed, alone, rows = items.cost.fixed, np.ones(len(items), dtype=np.int64), min(world_size, len(items))
    if max_tokens is not None:
        alone = -(-items.tokens // max_tokens)
        rows = max(rows, -(-int(items.tokens.sum()) // max_tokens))
    mean = -(-(int(items.costs.sum()) + fixed * rows) // world_size)
    return max(mean, int((items.costs + fixed * alone).max()))
