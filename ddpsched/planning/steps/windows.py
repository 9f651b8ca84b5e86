"""Each rank's window and the offers of all ranks: the input of policies that choose counts."""

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.costs.rank_speed import slowed
from ddpsched.errors import InfeasibleError
from ddpsched.exchange import offer_row, read_offers
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.solvers.allocation import Allocation
from ddpsched.planning.steps.context import Context
from ddpsched.planning.steps.prefetch_windows import Windows, advance, fill


@dataclass(frozen=True, eq=False)
class Table:
    """The offers of all ranks for a step.

    ``costs``: (world_size, K), of the first 1 .. K samples of each rank's window; ``caps``: (world_size,), how many
    of these the rank may be given; ``size``: samples of the step.
    """

    costs: Int
    caps: Int
    size: int
    windows: Windows


def first_windows(context: Context, prefetch: int) -> Windows:
    """Return each rank's window at the context's start."""
    if context.waiting:
        return Windows(context.start.cursor, context.waiting)
    return fill(context.positions, context.spec.world_size, prefetch)


def gather(context: Context, windows: Windows, step: int, prefetch: int) -> Table:
    """Return what every rank offers for its window. Raises InfeasibleError where caps or windows cannot hold B."""
    begin = perf_counter()
    offers = [
        offer_row(context.start.epoch, step, *_offer(context, windows.ids[rank], index, rank), prefetch)
        for index, rank in enumerate(context.exchange.ranks)
    ]
    context.times.offer_s = perf_counter() - begin
    table = context.exchange.offer(np.stack(offers))
    context.times.exchange_s = perf_counter() - begin - context.times.offer_s
    costs, caps = read_offers(table, context.start.epoch, step)
    return Table(costs, caps, _step_size(context, windows, caps, prefetch), windows)


def take(context: Context, table: Table, chosen: Allocation) -> tuple[Assignment, Windows]:
    """Return the assignment of ``chosen.counts`` from the front of each window, and the windows after it."""
    counts = chosen.counts.tolist()
    left = advance(table.windows, context.positions, counts)
    return Assignment(
        np.concatenate([own[:n] for own, n in zip(table.windows.ids, counts, strict=True)]),
        tuple((n,) if n else () for n in counts),
        tuple(int(row[n - 1]) if n else 0 for row, n in zip(table.costs, counts, strict=True)),
        chosen.lower_bound,
        chosen.status,
        chosen.tie_break,
        chosen.method,
        cursor=left.cursor,
        windows=left.ids,
    ), left


def _offer(context: Context, waiting: Int, index: int, rank: int) -> tuple[Int, int]:
    """Return the costs of prefixes on this rank, the ``index``-th of this process, and how many fit its memory."""
    if not len(waiting):
        return np.empty(0, dtype=np.int64), 0
    lengths, caps = context.lengths.lengths(context.order[waiting]), context.spec.caps
    costs = context.spec.cost.prefixes(lengths)
    if context.speeds is not None:
        costs = slowed(costs, context.speeds[index].slowness_ppm)
    return costs, len(waiting) if caps is None else caps[rank].prefix(lengths)


def _step_size(context: Context, windows: Windows, caps: Int, prefetch: int) -> int:
    """B, or what is left at the end of an epoch, where caps may make the tail take a step more."""
    size = context.spec.global_batch
    for rank, (cap, waiting) in enumerate(zip(caps.tolist(), windows.sizes, strict=True)):
        if waiting and not cap:  # it would never move on
            raise InfeasibleError(
                f"the next sample of rank {rank} alone needs more memory than the rank may use; raise "
                "memory.budget_bytes, or lower data.max_length"
            )
    allowed = int(caps.sum())
    if allowed < size and windows.cursor < len(context.order):
        raise InfeasibleError(
            f"the windows and memory caps allow {caps.tolist()} = {allowed} samples in a step, fewer than "
            f"global_batch = {size}; raise policy.prefetch (now {prefetch}) or memory.budget_bytes, or lower "
            "global_batch or data.max_length"
        )
    return min(size, allowed)
