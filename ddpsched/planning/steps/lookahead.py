"""Lookahead: samples move between neighbouring steps, where one step alone cannot be balanced.

W global batches are dealt anew together, each keeping its number of samples. No rank can split a sample, so a step
lasts at least as long as its longest sample, even where its other ranks idle. So *long samples share a step*, and with
it that wait: the longest sample of all sets the height of a step, whose other ranks take the longest samples that fit
below it. With one padded micro-batch a rank, *each rank gets samples of similar length*, so that little is padding.

The price is that the lengths of a step's samples are no longer independent (the yardstick's order bias); the epoch
still trains each sample once.
"""

from bisect import bisect_left
from heapq import heapreplace
from itertools import accumulate

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.planning.solvers.partition.min_max_split import split_line
from ddpsched.planning.solvers.partition.sorted_batch import falling, line_of

HEIGHTS = (1.0, 1.1, 1.25, 1.4, 1.55)  # of a step, over an even share of the work; padding takes the rest


def regroup(weights: Int, size: int, ranks: int, in_runs: bool) -> list[Int]:
    """Return the positions of each step's samples, int64, (size,) each.

    ``weights``: (W * size,), the cost of each sample alone, step after step as the order drew them. ``in_runs``:
    whether a rank's samples are one padded micro-batch, and so shall be neighbours by length; else a rank's cost is
    about the sum of its samples'. Steps in which nobody waits stay as they were drawn, if they are not dealt in runs. A
    step comes where the order drew its first sample, which is the longest where the step was dealt anew.

    >>> [positions.tolist() for positions in regroup(np.array([9, 1, 1, 8]), 2, 2, in_runs=False)]
    [[0, 3], [1, 2]]
    """
    steps, ranks = len(weights) // size, min(ranks, size)
    if steps == 1:
        return [np.arange(size)]
    order = falling(weights)
    dealt = _in_runs(weights[order], size, ranks) if in_runs else _filled(weights[order], size, ranks)
    found = [order[np.array(places)] for places in dealt]
    if left := steps - len(found):
        drawn = np.ones(len(weights), dtype=bool)
        drawn[np.concatenate([np.empty(0, dtype=np.int64), *found])] = False
        found += np.split(np.flatnonzero(drawn), left)
    return sorted(found, key=lambda positions: int(positions[0]))


def window_bound(weights: Int, size: int, ranks: int) -> float:
    """Return what the longest ranks of all steps together take at least, however W steps of ``size`` samples are dealt.

    With weights falling, w_0 >= w_1 >= ..., a step takes as long as its longest sample and as its share of the work.
    The k-th highest of W steps has a sample of at least w_((k-1) * size), and k steps hold no more than the k * size
    longest samples. So for each k

        sum of the steps  >=  sum of w_(j * size) over j < k  +  (sum of all but the k * size longest) / ranks

    >>> window_bound(np.array([9, 1, 1, 8]), 2, 2)
    10.0
    """
    longest_first = -np.sort(-weights)
    steps = len(weights) // size
    work = np.append(0, np.cumsum(longest_first))[: steps * size + 1 : size]
    highest = np.append(0, np.cumsum(longest_first[::size][:steps]))
    return float((highest + (work[-1] - work) / ranks).max())


def _filled(weights: Int, size: int, ranks: int) -> list[list[int]]:
    """Return the places of each step that its longest sample makes ranks wait in, as long as there is one.

    ``weights``: falling. Such a step is as high as the longest sample that is left. From the longest on, samples go to
    the rank with the most room below that height, if they fit there, and if enough room stays for as many of the
    shortest as the step still needs.
    """
    steps = list[list[int]]()
    left, work = np.arange(len(weights)), int(weights.sum())
    while len(left) > size and int(weights[left[0]]) * ranks * (len(left) // size) > work:
        each = weights[left].tolist()
        shortest = [0, *accumulate(each[: -size - 1 : -1])]  # the sum of so many of them
        rooms, room, chosen = [-each[0]] * ranks, each[0] * ranks, list[int]()  # a heap, the most room first
        for place, weight in enumerate(each):
            missing = size - len(chosen)
            if missing == 0:
                break
            if weight <= -rooms[0] and weight + shortest[missing - 1] <= room:
                heapreplace(rooms, rooms[0] + weight)
                room -= weight
                chosen.append(place)
        if missing := size - len(chosen):
            taken = set(chosen)
            chosen += [place for place in range(len(each) - 1, -1, -1) if place not in taken][:missing]
        steps.append(left[chosen].tolist())
        work -= sum(each[place] for place in chosen)
        left = np.delete(left, chosen)
    return steps


def _in_runs(weights: Int, size: int, ranks: int) -> list[list[int]]:
    """Return the places of each step, dealt in runs of neighbours: the cheapest of some ways to do that."""
    steps = len(weights) // size
    share, each = int(weights.sum()) / (ranks * steps), weights.tolist()
    ways = [_runs_of_height(each, size, ranks, int(share * height)) for height in HEIGHTS]
    return min([_strata(weights, steps, ranks), *ways], key=lambda way: way[0])[1]


def _strata(weights: Int, steps: int, strata: int) -> tuple[int, list[list[int]]]:
    """Return what the steps cost, and their places: each has a run of every stratum, the ranks' work alike.

    ``weights``: falling. Strata are cut where a batch of every W-th sample would be split. Best for two ranks.
    """
    spans, _ = split_line(line_of(weights[::steps], np.multiply), strata)
    runs: list[list[Int]] = [[] for _ in range(steps)]
    for start, end in spans:
        for step, run in enumerate(np.split(np.arange(start * steps, end * steps), steps)):
            runs[step].append(run)
    cost = sum(max(len(run) * int(weights[run[0]]) for run in step) for step in runs)
    return cost, [np.concatenate(step).tolist() for step in runs]


def _runs_of_height(weights: list[int], size: int, ranks: int, height: int) -> tuple[int, list[list[int]]]:
    """Return what the steps cost, and their places.

    ``weights``: falling. A step is as high as ``height``, or its longest sample. All ranks but one take runs from the
    longest sample on, as many samples as fit below that; the last one takes what the step still needs, of the longest
    samples of which so many fit.
    """
    left, places = [-weight for weight in weights], list(range(len(weights)))  # rising, for bisection
    cost, steps = 0, list[list[int]]()
    while left:
        top, at, missing, highest = max(-left[0], height), 0, size, 0
        for rank in range(ranks - 1):
            longest = -left[at]
            count = max(1, min(top // longest, missing - (ranks - 1 - rank)))
            highest = max(highest, count * longest)
            at, missing = at + count, missing - count
        first = min(max(at, bisect_left(left, -(top // missing))), len(left) - missing)
        cost += max(highest, -left[first] * missing)
        steps.append(places[:at] + places[first : first + missing])
        for line in (left, places):
            del line[first : first + missing], line[:at]
    return cost, steps
