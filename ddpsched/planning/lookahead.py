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

from itertools import accumulate

import numpy as np

from ddpsched.planning.cost import Int
from ddpsched.planning.solvers.line import falling, line_of
from ddpsched.planning.solvers.partition import split_line


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
    members = [sorted(own.tolist(), key=lambda i: (-weights[i], i)) for own in steps]
    work = [int(weights[own].sum()) for own in steps]
    longest = [int(weights[own[0]]) for own in members]
    open_steps = [step for step in range(len(steps)) if longest[step] * ranks > work[step]]
    while open_steps:
        taker = max(open_steps, key=lambda step: (longest[step], -step))
        open_steps.remove(taker)
        while open_steps:
            room = longest[taker] * ranks - work[taker]
            giver = max(open_steps, key=lambda step: (longest[step], -step))
            pair = _exchange(weights, members[taker], members[giver], room, work[giver])
            if pair is None:
                break
            long, back = pair
            moved = int(weights[long] - weights[back])
            for step, out, into, change in ((taker, back, long, moved), (giver, long, back, -moved)):
                members[step].remove(out)
                members[step].append(into)
                members[step].sort(key=lambda i: (-weights[i], i))
                work[step] += change
                longest[step] = int(weights[members[step][0]])
            if longest[giver] * ranks <= work[giver]:
                open_steps.remove(giver)
    return [np.array(own, dtype=np.int64) for own in members]


def _exchange(weights: Int, taker: list[int], giver: list[int], room: int, work: int) -> tuple[int, int] | None:
    """The giver's longest sample, and the taker's most typical one that makes room for it; None where none does."""
    long, typical = giver[0], work / len(giver)
    gains = [i for i in taker if 0 < weights[long] - weights[i] <= room]
    return (long, min(gains, key=lambda i: abs(weights[i] - typical))) if gains else None
