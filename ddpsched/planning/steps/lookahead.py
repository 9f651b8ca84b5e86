"""Lookahead: samples move between neighbouring steps, where one step alone cannot be balanced.

W global batches are dealt anew together, each keeping its number of samples. Two things are gained. *Strata*, for one
padded micro-batch a rank: the samples of all W batches, by falling length, are cut into as many strata as there are
ranks, and every step gets one run of neighbours from each stratum; so a micro-batch has less padding. *Long samples
together*, for every policy: no rank can split a sample, so a step lasts at least as long as its longest sample even
where its other ranks idle; long samples that share a step share that wait.

The price is that the lengths of a step's samples are no longer independent (the yardstick's order bias); the epoch
still trains each sample once.
"""

from bisect import bisect_left, insort
from itertools import accumulate

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.planning.solvers.partition.min_max_split import split_line
from ddpsched.planning.solvers.partition.sorted_batch import falling, line_of


def regroup(weights: Int, sizes: list[int], world_size: int, in_strata: bool) -> list[Int]:
    """Return the positions of each step's samples, int64, (size,) each.

    ``weights``: (sum(sizes),), the cost of each sample alone, step after step as the order drew them. ``sizes``:
    samples of each step, all equal for strata. ``in_strata``: whether a rank's samples shall be neighbours by length.

    >>> [positions.tolist() for positions in regroup(np.array([9, 1, 1, 8]), [2, 2], 2, in_strata=False)]
    [[0, 3], [1, 2]]
    """
    if len(sizes) == 1:
        return [np.arange(len(weights))]
    if in_strata and len(set(sizes)) == 1:
        steps = _strata(weights, len(sizes), world_size)
    else:
        steps = [np.arange(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return _long_together(weights, steps, world_size)


def _strata(weights: Int, steps: int, strata: int) -> list[Int]:
    """Deal strata to steps; a step gets as many samples of each as a batch of every W-th sample would be split into."""
    order = falling(weights)
    typical = weights[order[::steps]]
    spans, _ = split_line(line_of(typical, np.multiply), strata)
    runs: list[list[Int]] = [[] for _ in range(steps)]
    for start, end in spans:
        for step, run in enumerate(np.array_split(order[start * steps : end * steps], steps)):
            runs[step].append(run)
    return [np.concatenate(parts) for parts in runs]


def _long_together(weights: Int, steps: list[Int], ranks: int) -> list[Int]:
    """Exchange samples until no step's longest sample is longer than a rank's share, or nothing is left to exchange.

    The step with the longest sample of all takes, one by one, the longest samples of steps that idle because of them,
    while its ranks would idle otherwise; it gives typical samples back. Then comes the next step.
    """
    members = [sorted(zip((-weights[ids]).tolist(), ids.tolist(), strict=True)) for ids in steps]
    work = [-sum(weight for weight, _ in step) for step in members]
    longest = [-step[0][0] for step in members]
    open_steps = [step for step in range(len(steps)) if longest[step] * ranks > work[step]]
    while open_steps:
        taker = max(open_steps, key=lambda step: (longest[step], -step))
        open_steps.remove(taker)
        while open_steps:
            room = longest[taker] * ranks - work[taker]
            giver = max(open_steps, key=lambda step: (longest[step], -step))
            place = _to_give_back(members[taker], longest[giver], room, work[giver] / len(members[giver]))
            if place is None:
                break
            long, back = members[giver].pop(0), members[taker].pop(place)
            insort(members[taker], long)
            insort(members[giver], back)
            for step, change in ((taker, back[0] - long[0]), (giver, long[0] - back[0])):
                work[step] += change
                longest[step] = -members[step][0][0]
            if longest[giver] * ranks <= work[giver]:
                open_steps.remove(giver)
    return [np.array([i for _, i in step], dtype=np.int64) for step in members]


def _to_give_back(taker: list[tuple[int, int]], long: int, room: int, typical: float) -> int | None:
    """Return the place of the sample nearest to ``typical`` that is at most ``room`` shorter than ``long``, or None.

    ``taker``: (-weight, id), rising, so all samples that may be given back are neighbours.
    """
    first, last = bisect_left(taker, (1 - long, -1)), bisect_left(taker, (room - long + 1, -1))
    if first >= last:
        return None
    below = min(max(bisect_left(taker, (-typical, -1)), first), last)  # the first not heavier than typical
    near = [below] if below < last else []
    if below > first:
        near.append(max(first, bisect_left(taker, (taker[below - 1][0], -1))))
    return min(near, key=lambda place: (abs(-taker[place][0] - typical), place))
