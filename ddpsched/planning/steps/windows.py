"""Prefetch windows over one global order, and what all ranks offer for them: the input of policies that choose counts.

Ranks have no shards. Rank r's window is refilled, after each step, with as many samples as that step took from it, cut
from the global order in rank order. So the cursor moves by what was consumed, each sample is handed out once whatever
the counts are, and the whole state is (cursor, windows): constant in the length of the epoch. Where the order runs out,
the rest is dealt so that windows stay even. A window that came from another number of ranks may be longer: it offers
its first samples, and is refilled once it is shorter. Windows are read-only, as a plan's position holds them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.costs.rank_speed import slowed
from ddpsched.errors import InfeasibleError
from ddpsched.exchange import offer_row, read_offers
from ddpsched.planning.assignment import Assignment, refuse_too_long
from ddpsched.planning.solvers.allocation import Allocation
from ddpsched.planning.steps.context import Context


@dataclass(frozen=True)
class Windows:
    """``ids[r]``: rank r's next samples, first in first out; ``cursor``: samples of the order handed out so far."""

    cursor: int
    ids: tuple[Int, ...]

    @property
    def sizes(self) -> list[int]:
        """Samples that each rank has waiting."""
        return [len(ids) for ids in self.ids]


def fill(order: Int, world_size: int, prefetch: int) -> Windows:
    """Return the windows at the start of an epoch: ``prefetch`` samples each, or an even share of fewer.

    >>> fill(np.arange(5), 2, 8).sizes
    [3, 2]
    """
    return _refill(Windows(0, (order[:0],) * world_size), order, [prefetch] * world_size)


def advance(windows: Windows, order: Int, counts: Sequence[int], prefetch: int) -> Windows:
    """Return the windows after a step that took ``counts[r]`` from the front of each."""
    left = tuple(ids[count:] for ids, count in zip(windows.ids, counts, strict=True))
    return refill(Windows(windows.cursor, left), order, prefetch)


def refill(windows: Windows, order: Int, prefetch: int) -> Windows:
    """Return the windows filled up to ``prefetch`` samples each, as far as the order has any left."""
    return _refill(windows, order, [max(0, prefetch - size) for size in windows.sizes])


def _refill(windows: Windows, order: Int, wanted: Sequence[int]) -> Windows:
    remaining = len(order) - windows.cursor
    shares = list(wanted) if sum(wanted) <= remaining else _even(windows.sizes, wanted, remaining)
    ends = windows.cursor + np.cumsum(shares)
    parts = tuple(
        np.concatenate([ids, order[end - share : end]])
        for ids, end, share in zip(windows.ids, ends, shares, strict=True)
    )
    for ids in parts:
        ids.setflags(write=False)
    return Windows(int(ends[-1]), parts)


def _even(sizes: Sequence[int], wanted: Sequence[int], available: int) -> list[int]:
    """Deal ``available`` samples one by one to the smallest window that still wants one."""
    shares = [0] * len(sizes)
    for _ in range(available):
        wanting = [rank for rank, share in enumerate(shares) if share < wanted[rank]]
        shares[min(wanting, key=lambda rank: sizes[rank] + shares[rank])] += 1
    return shares


def first_windows(context: Context, prefetch: int) -> Windows:
    """Return each rank's window at the context's start, as positions in the epoch's order."""
    if context.waiting:
        return refill(Windows(context.start.cursor, context.waiting), context.positions, prefetch)
    return fill(context.positions, context.spec.world_size, prefetch)


def gather(context: Context, windows: Windows, step: int, prefetch: int) -> tuple[Int, Int, int]:
    """Return the offers of all ranks for a step: costs, caps and the number of samples.

    Costs: (world_size, K), of the first 1 .. K samples of each rank's window. Caps: (world_size,), how many of these
    the rank may be given. Raises InfeasibleError where caps or windows cannot hold B.
    """
    begin, epoch, times = perf_counter(), context.start.epoch, context.times
    waiting = [windows.ids[rank][:prefetch] for rank in context.exchange.ranks]
    lengths = context.lengths.lengths(context.order[np.concatenate(waiting)])
    ends = itertools.accumulate(map(len, waiting))
    offers = [
        offer_row(epoch, step, *_offer(context, lengths[end - len(each) : end], index), prefetch)
        for index, (each, end) in enumerate(zip(waiting, ends, strict=True))
    ]
    times.offer_s = perf_counter() - begin
    table = context.exchange.offer(np.stack(offers))
    times.exchange_s = perf_counter() - begin - times.offer_s
    costs, caps = read_offers(table, epoch, step)
    return costs, caps, _step_size(context, windows, caps, prefetch)


def take(
    context: Context, windows: Windows, costs: Int, chosen: Allocation, prefetch: int
) -> tuple[Assignment, Windows]:
    """Return the assignment of ``chosen.counts`` from the front of each window, and the windows after it."""
    counts = chosen.counts.tolist()
    left = advance(windows, context.positions, counts, prefetch)
    positions = np.concatenate([ids[:n] for ids, n in zip(windows.ids, counts, strict=True)])
    sizes = tuple((n,) if n else () for n in counts)
    chosen_costs = tuple(int(row[n - 1]) if n else 0 for row, n in zip(costs, counts, strict=True))
    proof = (chosen.lower_bound, chosen.status, chosen.tie_break, chosen.method)
    return Assignment(positions, sizes, chosen_costs, *proof, cursor=left.cursor, windows=left.ids), left


def _offer(context: Context, lengths: Int, index: int) -> tuple[Int, int]:
    """Return the costs of prefixes on the ``index``-th rank of this process, and how many fit its memory."""
    if not len(lengths):
        return lengths, 0
    costs, caps = context.spec.cost.prefixes(lengths), context.spec.caps
    if context.speeds is not None:
        costs = slowed(costs, context.speeds[index].slowness_ppm)
    return costs, len(lengths) if caps is None else caps[context.exchange.ranks[index]].prefix(lengths)


def _step_size(context: Context, windows: Windows, caps: Int, prefetch: int) -> int:
    """Return B, or what is left at the end of an epoch, where caps may make the tail take a step more."""
    size, allowed = context.spec.global_batch, int(caps.sum())
    for rank, (cap, waiting) in enumerate(zip(caps.tolist(), windows.sizes, strict=True)):
        if waiting and not cap:  # it would never move on
            refuse_too_long(None, f"rank {rank}")
    if allowed < size and windows.cursor < len(context.order):
        raise InfeasibleError(
            f"the windows and memory caps allow {caps.tolist()} = {allowed} samples in a step, fewer than "
            f"global_batch = {size}; raise policy.prefetch (now {prefetch}) or memory.budget_bytes, or lower "
            "global_batch or data.max_length"
        )
    return min(size, allowed)
