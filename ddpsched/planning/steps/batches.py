"""The next samples of the order, step by step: the input of policies that only assign them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.costs.memory_cap import Cap
from ddpsched.costs.rank_speed import Speed
from ddpsched.exchange import offer_row, read_offers
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.steps.context import Context
from ddpsched.planning.steps.lookahead import regroup

SIMILAR_SPEED = 1.05  # ranks whose measured speeds differ by less are planned for as equal: proved, and taking turns


@dataclass(eq=False, slots=True)
class GlobalBatch:
    """The next samples of the global order, and the ranks that share them.

    ``lengths``: (size,), or None where they are not known here. ``caps`` and ``slowness`` (in millionths) are of each
    rank, None where all are alike. ``pad_to``: tokens that every padded row has at least. ``in_turn``: neighbours have
    similar lengths, so runs of them would make ranks differ. ``positions``: (size,), in the epoch's order; None for
    0, 1, ... ``cursor``: samples of the order that have been handed out with this batch.
    """

    lengths: Int | None
    size: int
    world_size: int
    step: int
    cost: CostModel
    caps: tuple[Cap, ...] | None = None
    slowness: tuple[int, ...] | None = None
    pad_to: int = 0
    in_turn: bool = False
    positions: Int | None = None
    cursor: int | None = None

    def assigned(self, chosen: Assignment) -> Assignment:
        """Return the same assignment, its positions in this batch made positions in the epoch's order."""
        if self.positions is not None:
            chosen.positions = self.positions[chosen.positions]
        chosen.cursor, chosen.pad_to = self.cursor, self.pad_to
        return chosen


def batches(context: Context) -> Iterator[GlobalBatch]:
    """Yield the batch of each step.

    An epoch's last samples, where they are fewer than the ranks, may be in the step before, or in none.
    """
    spec, cursor, total = context.spec, context.start.cursor, len(context.order)
    batch_of = partial(
        GlobalBatch,
        world_size=spec.world_size,
        cost=spec.cost,
        caps=spec.caps,
        pad_to=spec.pad_to,
        in_turn=spec.order.sorts,
    )
    left = total % spec.global_batch
    enough = spec.global_batch if spec.last == "full" else min(spec.ranks_of_batch, total)
    whole = total if spec.last == "smaller" or left >= enough else total - left
    steps: Iterator[Int]
    if spec.policy.batches_at_once > 1:
        steps = _dealt_anew(context, whole)
    else:
        steps = (np.arange(i, min(i + spec.global_batch, whole)) for i in range(cursor, whole, spec.global_batch))
    for step in itertools.count(context.start.step):
        begin = perf_counter()
        positions = next(steps, None)
        if positions is None:
            return
        if spec.last == "join" and cursor + len(positions) == whole:
            positions = np.concatenate((positions, np.arange(whole, total)))
        lengths = context.lengths.lengths(context.order[positions]) if spec.lengths_known else None
        context.times.offer_s = perf_counter() - begin
        slowness = None if context.speeds is None else _reported_slowness(context, context.speeds, step)
        cursor += len(positions)
        yield batch_of(lengths, len(positions), step=step, slowness=slowness, positions=positions, cursor=cursor)


def _dealt_anew(context: Context, total: int) -> Iterator[Int]:
    """Yield the positions of each step with a lookahead of W: the next W * B are dealt anew to W steps.

    Where the cursor lies within W batches, these are dealt as they were, and the first of them are left out.
    """
    spec, size, cursor = context.spec, context.spec.global_batch, context.start.cursor
    group, in_runs = size * spec.policy.batches_at_once, not spec.policy.packs and spec.policy.most_microbatches == 1
    for start in range(cursor // group * group, total, group):
        pool = np.arange(start, min(start + group, total))
        full, rest = divmod(len(pool), size)
        weights = spec.cost.unpadded(context.lengths.lengths(context.order[pool]))
        whole = regroup(weights[: full * size], size, spec.ranks_of_batch, in_runs) if full else []
        dealt = [*whole, np.arange(full * size, len(pool))][: full + (rest > 0)]
        for positions in dealt[-(-max(0, cursor - start) // size) :]:
            yield pool[positions]


def _reported_slowness(context: Context, speeds: Sequence[Speed], step: int) -> tuple[int, ...] | None:
    """Return the slowness that each rank has measured; None where all are about alike."""
    begin, epoch = perf_counter(), context.start.epoch
    rows = [offer_row(epoch, step, np.array([speed.slowness_ppm]), 1, 1) for speed in speeds]
    slowness = read_offers(context.exchange.offer(np.stack(rows)), epoch, step)[0][:, 0].tolist()
    context.times.exchange_s = perf_counter() - begin
    return tuple(slowness) if max(slowness) > SIMILAR_SPEED * min(slowness) else None
