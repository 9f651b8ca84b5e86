"""Rows without padding: samples given to ranks so that the costliest rank is cheapest.

    minimise  max_r slowness[r] * sum_{i in rank r} weights[i]

Longest processing time first (Graham 1969): each sample, heaviest first, where it
makes the rank least costly. Then swaps of one sample of the costliest rank against
one or none of the cheapest, the pair that comes nearest to making the two equal.
No rank can be below the mean, and the heaviest sample is on some rank:

    makespan >= max(max weights, ceil(sum weights / G))        for equal ranks
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapreplace

from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.sorted_batch import falling

SWAPS = 6  # after six the costliest rank is within 0.1 % of the bound from B = 256 on, and more change nothing


def balance(
    weights: IntArray, ranks: int, slowness: Sequence[int] | None = None
) -> tuple[list[list[int]], list[int], int]:
    """Positions of each rank, heaviest first, their sums of weights, and the lower bound of the largest cost.

    Args:
        weights: int64 `(B,)`, at least 1 each.
        ranks: how many there are.
        slowness: of each rank, what a unit of weight costs it, in millionths; a million each if not given.
            The bound is then in the same unit, rounded down.
    """
    order = falling(weights)
    falls = weights[order].tolist()
    rates = slowness or [1] * ranks
    members = _longest_first(falls, ranks) if slowness is None else _longest_first_uneven(falls, rates)
    bound = _bound(falls, ranks, slowness)
    loads = _swap(falls, members, rates, bound if slowness is None else 0)
    positions = order.tolist()
    return [[positions[i] for i in own] for own in members], loads, bound


def _bound(falls: list[int], ranks: int, slowness: Sequence[int] | None) -> int:
    if slowness is None:
        return max(falls[0], -(-sum(falls) // ranks))
    return max(falls[0] * min(slowness) // 10**6, int(sum(falls) / sum(10**6 / rate for rate in slowness)))


def _longest_first(falls: list[int], ranks: int) -> list[list[int]]:
    """Places in the falling order of each rank."""
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


def _swap(falls: list[int], members: list[list[int]], rates: Sequence[int], bound: int) -> list[int]:
    """Up to SWAPS swaps, in place, each of which lowers the larger of the two costs; then the sums of all ranks."""
    loads = [sum([falls[place] for place in own]) for own in members]
    costs = [load * rate for load, rate in zip(loads, rates, strict=True)]
    for _ in range(SWAPS):
        high = max(range(len(costs)), key=costs.__getitem__)
        low = min(range(len(costs)), key=costs.__getitem__)
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
        for rank, change in ((high, -difference), (low, difference)):
            loads[rank] += change
            costs[rank] = loads[rank] * rates[rank]
    return loads


def _best_pair(
    falls: list[int], heavy: list[int], light: list[int], gap: int, heavy_rate: int, light_rate: int
) -> tuple[int, int | None] | None:
    """(place to move, place to move back or None) whose difference in weight is nearest to what makes both equal."""
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
