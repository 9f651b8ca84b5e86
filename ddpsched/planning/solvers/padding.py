"""The least padding that so many micro-batches can have: a lower bound nearer to what can be reached.

No placement of at most M micro-batches on each of G ranks costs less than

    max( cost(1, longest), ceil( min over K <= M*G of (least padded work in K groups + K * fixed) / G ) )

The least padded work in K groups is that of a contiguous split of the line, by dynamic programming over its distinct
weights: D**2 * K operations, a few milliseconds, so plans carry the quick bound and studies ask for this one.
"""

import numpy as np

from ddpsched.planning.solvers.line import Line

UNREACHED = np.iinfo(np.int64).max // 4


def padded_bound(line: Line, world_size: int, max_microbatches: int) -> int:
    """What no placement can go below, padding counted; for linear costs.

    >>> from ddpsched.planning.affine import AffineQuadratic
    >>> from ddpsched.planning.solvers.line import line_of
    >>> line = line_of(np.array([9, 5, 5, 1, 1]), AffineQuadratic(0, 1, 0, scale=1))
    >>> padded_bound(line, 1, 3), padded_bound(line, 1, 2)
    (21, 29)
    """
    assert line.weights, "the bound needs a cost that is linear in the count"
    works = least_padded_work(line, world_size * max_microbatches)
    spread = [-(-(work + groups * line.fixed) // world_size) for groups, work in enumerate(works, 1)]
    # fewer groups than ranks leave ranks idle: the mean is over those that work
    alone = [-(-(work + groups * line.fixed) // groups) for groups, work in enumerate(works, 1)]
    shares = [max(pair) for pair in zip(spread, alone, strict=True)][: world_size - 1] + spread[world_size - 1 :]
    return max(line.cost_of(0, 1), min(shares))


def least_padded_work(line: Line, most: int) -> list[int]:
    """Entry K - 1: the least sum of count * weight over a split into at most K groups, without fixed costs."""
    weights = np.array(line.weights)
    starts = np.flatnonzero(np.concatenate(([True], weights[1:] != weights[:-1])))
    ends = np.concatenate((starts[1:], [len(weights)]))
    # group[i, j]: work of distinct weights i .. j as one group
    group = np.where(
        ends[None, :] > starts[:, None], weights[starts][:, None] * (ends[None, :] - starts[:, None]), UNREACHED
    )
    least = group[0]
    works = [int(least[-1])]
    for _ in range(1, min(most, len(starts))):
        before = np.concatenate(([0], least[:-1]))  # all that lies before a group that starts at i
        least = np.minimum(least, (before[:, None] + group).min(axis=0))
        works.append(int(least[-1]))
    return works + [works[-1]] * (most - len(works))
