"""balanced: the same global batch as static, split over ranks at the least possible makespan.

Some optimal split is contiguous in the length-sorted batch (giving the group
that holds the longest sample the next-longest ones costs it nothing and lowers
others), so bisection on the makespan with greedy filling is exact. The gradient
is static's: the same samples, each weighing 1/B.
"""

import numpy as np

from ddpsched.planning.cost import CostModel, Int
from ddpsched.planning.policies.assignment import Assignment
from ddpsched.planning.solvers.partition import min_max_split


def balanced(
    lengths: Int | None, batch_size: int, world_size: int, step: int, cost: CostModel, caps: Int | None
) -> Assignment:
    """Split by :func:`min_max_split`; every group fits the smallest memory cap of any rank.

    Groups rotate over ranks from step to step, so that no rank always holds the longest samples.
    """
    assert lengths is not None, "balanced needs every length; the config refuses online lengths"
    cap = None if caps is None else int(caps.min())
    groups, _makespan, lower_bound = min_max_split(lengths, world_size, cost, cap)
    rotated = tuple(groups[(rank + step) % world_size] for rank in range(world_size))
    assert sum(map(len, rotated)) == batch_size == len(np.unique(np.concatenate(rotated)))
    return Assignment(rotated, lower_bound, status="optimal", tie_break="best found", method="contiguous split")
