"""static: equal counts per rank, whatever the lengths. What a DistributedSampler does."""

import numpy as np

from ddpsched.errors import InfeasibleError
from ddpsched.planning.cost import CostModel, Int
from ddpsched.planning.policies.assignment import Assignment


def static(
    lengths: Int | None, batch_size: int, world_size: int, step: int, cost: CostModel, caps: Int | None
) -> Assignment:
    """Cut the batch, in the order it comes, into ``world_size`` runs of equal count (± 1 where B does not divide).

    Raises InfeasibleError where a rank's share is above its memory cap: equal
    counts are the method, so no rank takes over another's samples.
    """
    groups = tuple(np.array_split(np.arange(batch_size), world_size))
    if caps is not None and any(len(group) > cap for group, cap in zip(groups, caps, strict=True)):
        raise InfeasibleError(
            f"static gives each rank {len(groups[0])} of {batch_size} samples, but memory allows {caps.tolist()}; "
            "lower global_batch or data.max_length, or raise memory.budget_bytes"
        )
    return Assignment(groups, lower_bound=None, status="feasible", tie_break="best found", method="static")
