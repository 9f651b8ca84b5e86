"""static: equal counts per rank, whatever the lengths."""

from typing import ClassVar, Literal

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.costs.memory_cap import Cap
from ddpsched.costs.rank_speed import slowed
from ddpsched.costs.shape_menu import Shape
from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.shapes.choose import lengths_that_pad_least, rows_at_worst
from ddpsched.planning.shapes.observed import observe
from ddpsched.planning.steps.batches import GlobalBatch
from ddpsched.planning.steps.context import Context


class Static(BatchPolicy):
    """Cut the global batch, in the order it comes, into one padded micro-batch a rank, all of equal size.

    With B samples and G ranks, each rank runs floor(B / G) or ceil(B / G) samples. Where neighbours have similar
    lengths, as in an order that sorts, samples are dealt to the ranks in turn instead. It has no options and needs no
    lengths. Source: ``torch.utils.data.DistributedSampler``.
    """

    kind: Literal["static"] = "static"
    needs_lengths: ClassVar[bool] = False
    reads_cost: ClassVar[bool] = False

    def shapes(self, context: Context, most: int) -> list[Shape]:
        """Return an even share of rows by the lengths that pad this epoch's micro-batches least."""
        lengths = context.lengths.lengths(context.order)
        rows, observed = rows_at_worst(context.spec), observe(self(context), lengths)
        return [(rows, length) for length in lengths_that_pad_least(observed, lengths, most)]

    def rows_of_longest(self, world_size: int, most_samples: int) -> int:
        return -(-most_samples // world_size)

    def assign(self, batch: GlobalBatch) -> Assignment:
        """Return the equal shares. Raises InfeasibleError where memory cannot hold one: no other rank takes it over."""
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
                costs = tuple(slowed(cost, rate) for cost, rate in zip(costs, batch.slowness, strict=True))
            if batch.caps is not None:
                _check_memory(batch, batch.caps, counts, lengths)
        return batch.assigned(Assignment(chosen, sizes, costs, method="static"))


def _check_memory(batch: GlobalBatch, caps: tuple[Cap, ...], counts: list[int], lengths: Int) -> None:
    for rank, (cap, end, count) in enumerate(zip(caps, np.cumsum(counts).tolist(), counts, strict=True)):
        if not count:
            continue
        longest = max(batch.pad_to, int(lengths[end - count : end].max()))
        allowed = int(cap.limit(np.array([longest]))[0])
        if count > allowed:
            raise InfeasibleError(
                f"static gives each rank {counts[0]} of {batch.size} samples, but memory allows rank {rank} only "
                f"{allowed} of {longest} tokens; lower global_batch or data.max_length, or raise memory.budget_bytes"
            )
