"""static: equal counts per rank, whatever the lengths. What a DistributedSampler does."""

from typing import ClassVar, Literal

import numpy as np

from ddpsched.costs.rank_speed import slowed
from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.steps.batches import Batch


class Static(BatchPolicy):
    """Cut the batch, in the order it comes, into ``world_size`` runs of equal count (± 1 where B does not divide).

    Where neighbours are alike, as in an order that sorts, ranks are dealt one sample each in turn instead.
    """

    kind: Literal["static"] = "static"
    needs_lengths: ClassVar[bool] = False
    reads_cost: ClassVar[bool] = False

    def assign(self, batch: Batch) -> Assignment:
        """Raises InfeasibleError where a rank's share does not fit: no rank takes over another's samples."""
        even, more = divmod(batch.size, batch.world_size)
        counts = [even + (rank < more) for rank in range(batch.world_size)]
        chosen = np.arange(batch.size)
        if batch.in_turn:
            chosen = np.concatenate([chosen[rank :: batch.world_size] for rank in range(batch.world_size)])
        sizes = tuple((n,) if n else () for n in counts)
        costs = None
        if batch.lengths is not None:
            lengths = batch.lengths[chosen]
            costs = batch.cost.price_ranks(lengths, sizes, pad_to=batch.pad_to)
            if batch.slowness is not None:
                costs = tuple(slowed(own, rate) for own, rate in zip(costs, batch.slowness, strict=True))
            _check_memory(batch, counts, lengths)
        return batch.assigned(chosen, sizes, costs=costs, method="static")


def _check_memory(batch: Batch, counts: list[int], lengths: np.ndarray) -> None:
    if batch.caps is None:
        return
    for rank, end in enumerate(np.cumsum(counts).tolist()):
        count = counts[rank]
        if not count:
            continue
        longest = max(batch.pad_to, int(lengths[end - count : end].max()))
        allowed = int(batch.caps[rank].limit(np.array([longest]))[0])
        if count > allowed:
            raise InfeasibleError(
                f"static gives each rank {counts[0]} of {batch.size} samples, but memory allows rank {rank} only "
                f"{allowed} of {longest} tokens; lower global_batch or data.max_length, or raise memory.budget_bytes"
            )
