"""Plans of steps in which all ranks run their m-th micro-batches together."""

from itertools import zip_longest

import numpy as np

from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.one_batch.items import Items
from ddpsched.planning.one_batch.levels import level_rows
from ddpsched.planning.steps.batches import GlobalBatch


def in_lockstep(batch: GlobalBatch, max_tokens: int | None, most: int | None, packed: bool) -> Assignment:
    """Return as many micro-batches for each rank, with a small sum over them of the slowest rank's cost.

    ``max_tokens``: of a row. ``most``: micro-batches of a rank. Where samples are fewer than these micro-batches, as in
    an epoch's last step, some ranks have one less. The costs are those of the step for every rank, waits included.
    Raises InfeasibleError where a sample is over ``max_tokens``, and for ranks that differ in speed.
    """
    assert batch.lengths is not None, "check() refuses unknown lengths"
    if batch.slowness is not None:
        raise InfeasibleError("policy.lockstep = true plans for ranks that are equally fast; leave speeds out")
    items, size = Items(batch.lengths, batch.cost), batch.world_size
    longest = int(batch.lengths.max())
    if max_tokens is not None and longest > max_tokens:
        raise InfeasibleError(
            f"policy.max_tokens = {max_tokens}, but a sample has {longest}; raise it, or lower data.max_length"
        )
    ranks, bound = level_rows(items, size, max_tokens, most, packed, stand_ins=True)
    turn = batch.step % size
    ranks = ranks[turn:] + ranks[:turn]
    sizes = tuple(tuple(map(len, rank)) for rank in ranks)
    positions = np.concatenate([micro for rank in ranks for micro in rank])
    by_rank = batch.cost.price_microbatches(batch.lengths[positions], sizes, packed)
    makespan = sum(map(max, zip_longest(*by_rank, fillvalue=0)))
    status = "optimal" if makespan == bound else "feasible"
    chosen = Assignment(
        positions, sizes, (makespan,) * size, min(bound, makespan), status, method="levels of rows", packed=packed
    )
    return batch.assigned(chosen)
