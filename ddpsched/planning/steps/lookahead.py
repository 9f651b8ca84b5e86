"""Samples move between neighbouring steps: what a step alone cannot mend.

W global batches are looked at together and dealt anew, each keeping its number of
samples. Two things are gained. *Strata*, for one padded micro-batch a rank: the
samples of all W batches, by falling length, are cut into as many strata as there
are ranks, and every step gets one run of neighbours from each stratum; so a
micro-batch is padded less. *Long samples together*, for every policy: no rank can
split a sample, so a step lasts at least as long as its longest sample even where
its other ranks have nothing left to do; long samples that share a step share
that wait.

The price is that the lengths of a step's samples are no longer independent (the
yardstick's order bias); the epoch still trains each sample once.
"""

from bisect import bisect_left, insort
from itertools import accumulate

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.planning.solvers.partition.min_max_split import split_line
from ddpsched.planning.solvers.partition.sorted_batch import falling, line_of


def regroup(weights: Int, sizes: list[int], world_size: int, in_strata: bool) -> list[Int]:
    """Positions of each step's samples.

    ``weights``: (sum(sizes),), what each sample alone costs, step after step as the order drew them;
    ``sizes``: samples of each step, all equal for strata; ``in_strata``: whether runs of neighbours are wanted.
    """
    if len(sizes) == 1:
        return [np.arange(len(weights))]
    if in_strata and len(set(sizes)) == 1:
        steps = _strata(weights, len(sizes), world_size)
    else:
        ends = list(accumulate(sizes))
        steps = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return _long_together(weights, steps, world_size)


def _strata(weights: Int, steps: int, strata: int) -> list[Int]:
    """The split of every W-th sample, a batch like all of them, says how many samples of each stratum a step gets."""
    order = falling(weights)
    typical = weights[order[::steps]]
    spans, _ = split_line(line_of(typical, np.multiply), strata)
    runs: list[list[Int]] = [[] for _ in range(steps)]
    for start, end in spans:
        for step, run in enumerate(np.array_split(order[start * steps : end * steps], steps)):
            runs[step].append(run)
    return [np.concatenate(own) for own in runs]


def _long_together(weights: Int, steps: list[Int], ranks: int) -> list[Int]:
    """Exchange samples until no step's longest sample is longer than a rank's share, or nothing is left to exchange.

    The step with the longest sample of all takes, one by one, the longest samples of steps that idle because of them,
    while its own ranks would idle otherwise; it gives typical samples back. Then the next step.
    """
    members = [sorted(zip((-weights[own]).tolist(), own.tolist(), strict=True)) for own in steps]
    work = [-sum(weight for weight, _ in own) for own in members]
    longest = [-own[0][0] for own in members]
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
    return [np.array([i for _, i in own], dtype=np.int64) for own in members]


def _to_give_back(taker: list[tuple[int, int]], long: int, room: int, typical: float) -> int | None:
    """The place of the sample nearest to ``typical`` that is shorter than ``long`` by at most ``room``; None for none.

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
