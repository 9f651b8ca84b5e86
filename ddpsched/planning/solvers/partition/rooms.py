"""Items on ranks that have room for so many each: longest processing time first, then swaps of items of one size."""

from collections.abc import Sequence

import numpy as np

from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.sorted_batch import falling

SWAPS = 4  # times the ranks
NODES = 50_000  # placements that an exhaustive search looks at, a tenth of a second
MOST = 200  # items of one, as each is a level of recursion


def spread_within(weights: IntArray, sizes: IntArray, ranks: int, room: int) -> list[list[int]] | None:
    """Return the items of each rank, so that the largest sum of weights is small, and no sum of sizes above ``room``.

    Each item, the largest first and of these the heaviest, goes to the lightest rank that has room for it. Then an item
    of the heaviest rank changes places with a lighter one of the same size, of the lightest rank where that helps, the
    pair that brings the two nearest to each other. Where an item finds no room, all ways are searched, as by
    :func:`fit_into`; None where that finds none.

    >>> spread_within(np.array([9, 8, 2, 1]), np.ones(4, dtype=np.int64), 2, 2)
    [[0, 3], [1, 2]]
    """
    members: list[list[int]] = [[] for _ in range(ranks)]
    loads, rooms = [0] * ranks, [room] * ranks
    for item in sorted(range(len(weights)), key=lambda i: (-sizes[i], -weights[i], i)):
        size = int(sizes[item])
        able = [rank for rank in range(ranks) if rooms[rank] >= size]
        if not able:
            found = fit_into(np.asarray(sizes), ranks, room)
            if found is not None:
                _swap(
                    found, np.array([weights[items].sum() for items in found]), np.asarray(weights), np.asarray(sizes)
                )
            return found
        rank = min(able, key=loads.__getitem__)
        members[rank].append(item)
        loads[rank] += int(weights[item])
        rooms[rank] -= size
    _swap(members, np.array(loads), np.asarray(weights), np.asarray(sizes))
    return members


def fit_into(sizes: IntArray, bins: int, room: int) -> list[list[int]] | None:
    """Return the items of each of ``bins`` bins, no sum of sizes above ``room``; None where none is found.

    The largest item first, in each bin in turn that has room for it, bins that are equally full being the same. A
    branch ends where more room is lost, as no item is small enough for it, than there is to spare. All ways are looked
    at where they are few, so that None proves that there is none for a dozen items; many are given up.

    >>> fit_into(np.array([3, 3, 2, 2, 2]), 2, 6)
    [[0, 1], [2, 3, 4]]
    """
    order = falling(sizes).tolist()
    needs, spare = sizes[order].tolist(), bins * room - int(sizes.sum())
    if spare < 0 or len(order) > MOST:
        return None
    rooms, members, nodes = [room] * bins, [list[int]() for _ in range(bins)], 0

    def place(item: int) -> bool:
        nonlocal nodes
        if item == len(order):
            return True
        nodes += 1
        if nodes > NODES or sum(left for left in rooms if left < needs[-1]) > spare:
            return False
        tried = set[int]()
        for number, left in enumerate(rooms):
            if left < needs[item] or left in tried:
                continue
            tried.add(left)
            rooms[number] -= needs[item]
            members[number].append(order[item])
            if place(item + 1):
                return True
            rooms[number] += needs[item]
            members[number].pop()
        return False

    return members if place(0) else None


def _swap(members: list[list[int]], loads: IntArray, weights: IntArray, sizes: IntArray) -> None:
    """Make swaps, in place, as long as each lowers the larger of two sums."""
    for _ in range(SWAPS * len(members)):
        heavy = int(loads.argmax())
        for light in np.argsort(loads, kind="stable")[:-1].tolist():
            pair = _best_pair(members[heavy], members[light], int(loads[heavy] - loads[light]), weights, sizes)
            if pair is not None:
                break
        else:
            return
        one, other = pair
        moved = weights[members[heavy][one]] - weights[members[light][other]]
        members[heavy][one], members[light][other] = members[light][other], members[heavy][one]
        loads[heavy] -= moved
        loads[light] += moved


def _best_pair(
    heavy: Sequence[int], light: Sequence[int], gap: int, weights: IntArray, sizes: IntArray
) -> tuple[int, int] | None:
    """Return the places of the two items whose exchange leaves the larger sum smallest; None where none lowers it."""
    if not light:
        return None
    differences = weights[heavy][:, None] - weights[light]
    allowed = (differences > 0) & (differences < gap) & (sizes[heavy][:, None] == sizes[light])
    if not allowed.any():
        return None
    after = np.where(allowed, np.maximum(differences, gap - differences), gap)
    return divmod(int(after.argmin()), len(light))
