"""static: equal counts per rank, whatever the lengths. What a DistributedSampler does."""

import numpy as np

from ddpsched.errors import InfeasibleError
from ddpsched.planning.policies.assignment import Assignment, Batch


def static(batch: Batch) -> Assignment:
    """Cut the batch, in the order it comes, into ``world_size`` runs of equal count (± 1 where B does not divide).

    Where neighbours are alike, as in an order that sorts, ranks are dealt one sample each in turn instead.
    Raises InfeasibleError where a rank's share does not fit into its memory: equal
    counts are the method, so no rank takes over another's samples.
    """
    even, more = divmod(batch.size, batch.world_size)
    counts = [even + (rank < more) for rank in range(batch.world_size)]
    positions = np.arange(batch.size)
    if batch.in_turn:
        positions = np.concatenate([positions[rank :: batch.world_size] for rank in range(batch.world_size)])
    costs = None
    if batch.lengths is not None:
        ends, lengths = np.cumsum(counts), batch.lengths[positions]
        longest = [
            max(batch.pad_to, int(lengths[end - n : end].max())) if n else 0
            for n, end in zip(counts, ends, strict=True)
        ]
        costs = tuple(batch.cost(np.array(counts), np.array(longest)).tolist())
        if batch.slowness is not None:
            costs = tuple(-(-c * rate // 10**6) for c, rate in zip(costs, batch.slowness, strict=True))
        for rank, (count, length) in enumerate(zip(counts, longest, strict=True)):
            if batch.caps is not None and count and count > batch.caps[rank].limit(np.array([length]))[0]:
                raise InfeasibleError(
                    f"static gives each rank {counts[0]} of {batch.size} samples, but memory allows rank {rank} only "
                    f"{batch.caps[rank].limit(np.array([length]))[0]} of {length} tokens; lower global_batch or "
                    "data.max_length, or raise memory.budget_bytes"
                )
    sizes = tuple((n,) if n else () for n in counts)
    return Assignment(positions, sizes, costs, None, "feasible", "best found", "static")
