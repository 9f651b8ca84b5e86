"""Longest processing time first: samples on ranks so that the costliest is cheapest, in rows without padding.

    minimise  max_r slowness[r] * sum_{i in rank r} weights[i]

Each sample, heaviest first, goes where it makes the rank least costly (Graham 1969). Then one sample of the costliest
rank is swapped for one or none of the cheapest, the pair that comes nearest to making the two equal. Some rank has at
least the mean, and some rank runs the heaviest sample:

    makespan >= max(max weights, ceil(sum weights / G))        for equal ranks
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapreplace

from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.sorted_batch import falling

SWAPS = 6  # after six the costliest rank is within 0.1 % of the bound from B = 256 on, and more change nothing


def spread(
    weights: IntArray, ranks: int, slowness: Sequence[int] | None = None, swaps: int = SWAPS
) -> tuple[list[list[int]], list[int], int]:
    """Return the positions of each rank, heaviest first, its sum of weights, and a lower bound of the largest cost.

    Args:
        weights: int64 `(B,)`, at least 1 each.
        ranks: how many there are.
        slowness: of each rank, the cost of a unit of weight, in millionths; a million each if not given.
            The bound is then in the same unit, rounded down.
        swaps: the most that are made.

    Example:
        >>> import numpy as np
        >>> spread(np.array([5, 9, 4, 3]), 2)
        ([[1, 3], [0, 2]], [12, 9], 11)
    """
    order = falling(weights)
    weights_falling = weights[order].tolist()
    heaviest, total = weights_falling[0], sum(weights_falling)
    if slowness is None:
        rates, members = [1] * ranks, _longest_first(weights_falling, ranks)
        bound = enough = max(heaviest, -(-total // ranks))
    else:
        rates, members, enough = list(slowness), _longest_first_uneven(weights_falling, slowness), 0
        bound = max(heaviest * min(slowness) // 10**6, int(total / sum(10**6 / rate for rate in slowness)))
    loads = _swap(weights_falling, members, rates, enough, swaps)
    positions = order.tolist()
    return [[positions[i] for i in places] for places in members], loads, bound


def _longest_first(falls: list[int], ranks: int) -> list[list[int]]:
    """Return the places in the falling order of each rank."""
    members: list[list[int]] = [[] for _ in range(ranks)]
    # A rank is one integer, load * ranks + rank: the least is the lightest, equal ones by rank.
    lightest = list(range(ranks))
    for place, weight in enumerate(falls):
        laden = lightest[0]
        members[laden % ranks].append(place)
        heapreplace(lightest, laden + weight * ranks)
    return members


def _longest_first_uneven(falls: list[int], rates: Sequence[int]) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in rates]
    loads = [0] * len(rates)
    for place, weight in enumerate(falls):
        rank = min(range(len(rates)), key=lambda r: (loads[r] + weight) * rates[r])
        members[rank].append(place)
        loads[rank] += weight
    return members


def _swap(falls: list[int], members: list[list[int]], rates: Sequence[int], bound: int, swaps: int) -> list[int]:
    """Make up to so many swaps, in place, each of which lowers the larger of two costs; return the sum of each rank."""
    loads = [sum([falls[place] for place in places]) for places in members]
    for _ in range(swaps):
        costs = [load * rate for load, rate in zip(loads, rates, strict=True)]
        high, low = costs.index(max(costs)), costs.index(min(costs))
        if costs[high] <= bound:
            break
        pair = _best_pair(falls, members[high], members[low], costs[high] - costs[low], rates[high], rates[low])
        if pair is None:
            break
        moved, back = pair
        members[high].remove(moved)
        insort(members[low], moved)
        difference = falls[moved]
        if back is not None:
            members[low].remove(back)
            insort(members[high], back)
            difference -= falls[back]
        loads[high] -= difference
        loads[low] += difference
    return loads


def _best_pair(
    falls: list[int], heavy: list[int], light: list[int], gap: int, heavy_rate: int, light_rate: int
) -> tuple[int, int | None] | None:
    """Return the place to move and the one to move back (or None) that come nearest to making both ranks equal."""
    ideal = gap // (heavy_rate + light_rate)
    most = -(-gap // light_rate)  # a difference of this or more makes the light rank the costliest
    rising = [falls[place] for place in reversed(light)]
    best, nearest = None, most
    for place in heavy:
        wanted = falls[place] - ideal
        at = bisect_left(rising, wanted)
        for index in (at - 1, at):
            back = rising[index] if 0 <= index < len(rising) else 0
            difference = falls[place] - back
            if 0 < difference < most and abs(difference - ideal) < nearest:
                nearest = abs(difference - ideal)
                best = place, (light[len(light) - 1 - index] if back else None)
        if nearest == 0:
            break
    return best
