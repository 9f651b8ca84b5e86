"""Plans of the policies that are given the next samples of the order and only assign them."""

import itertools
from collections.abc import Iterator
from time import perf_counter

import numpy as np

from ddpsched.costs.kinds import alone
from ddpsched.exchange import offer_row, read_offers
from ddpsched.plan import Ids, Position, StepPlan
from ddpsched.planning.policies import BATCH, Assignment, Batch
from ddpsched.planning.steps.context import Epoch
from ddpsched.planning.steps.lookahead import regroup

ALIKE = 1.05  # ranks whose measured speeds lie within this share are planned for as equal: proved, and taking turns


def batch_steps(epoch: Epoch) -> Iterator[StepPlan]:
    """The plans of one epoch of a batch policy."""
    config, number, cursor = epoch.config, epoch.start.epoch, epoch.start.cursor
    assign, known = BATCH[config.policy.kind], config.data.lengths == "known"
    pad_to = config.data.max_length if config.data.pad_to == "max_length" else 0
    batches = _batches(epoch)
    for step in itertools.count(epoch.start.step):
        begin = perf_counter()
        ids = next(batches, None)
        if ids is None:
            return
        lengths = epoch.source.lengths(ids) if known else None
        looked_up = perf_counter()
        slowness = _told_slowness(epoch, step)
        told = perf_counter()
        batch = Batch(
            lengths,
            len(ids),
            config.world_size,
            step,
            epoch.cost,
            epoch.caps,
            slowness,
            config.policy.max_microbatches,
            pad_to,
            config.order.sorts,
        )
        cursor += len(ids)
        plan = batch_plan(number, step, ids, assign(batch), Position(number, step + 1, cursor), pad_to)
        plan.times.offer_s, plan.times.solve_s = looked_up - begin, perf_counter() - told
        if slowness is not None:
            plan.times.exchange_s = told - looked_up
        yield plan


def _batches(epoch: Epoch) -> Iterator[Ids]:
    """The samples of each step from the cursor on.

    An epoch's last ones, where they are fewer than the ranks, may be in the step before, or in none.
    """
    order, size = epoch.order, epoch.config.global_batch
    left = len(order) % size
    if epoch.last == "smaller" or not 0 < left < min(epoch.config.world_size, len(order)):
        yield from _of_order(epoch, order)
        return
    steps = _of_order(epoch, order[:-left])
    if epoch.last == "drop":
        yield from steps
        return
    step = next(steps, None)
    while step is not None:
        after = next(steps, None)
        yield step if after is not None else np.concatenate((step, order[-left:]))
        step = after


def _of_order(epoch: Epoch, order: Ids) -> Iterator[Ids]:
    """The next B samples of the order, or with a lookahead of W the next W * B dealt anew.

    From the cursor on: where it lies within W batches, these are dealt as they were, and the first of them left out.
    """
    config, size, cursor = epoch.config, epoch.config.global_batch, epoch.start.cursor
    if config.policy.lookahead == 1:
        for start in range(cursor, len(order), size):
            yield order[start : start + size]
        return
    in_strata = config.policy.kind == "balanced" and config.policy.max_microbatches == 1
    group = size * config.policy.lookahead
    for start in range(cursor // group * group, len(order), group):
        pool = order[start : start + group]
        full, rest = divmod(len(pool), size)
        weights = alone(epoch.cost, epoch.source.lengths(pool))
        whole = regroup(weights[: full * size], [size] * full, config.world_size, in_strata) if full else []
        dealt = [*whole, np.arange(full * size, len(pool))][: full + (rest > 0)]
        for positions in dealt[-(-max(0, cursor - start) // size) :]:
            yield pool[positions]


def _told_slowness(epoch: Epoch, step: int) -> tuple[int, ...] | None:
    """Each rank's own measurement, told to all; None where none is made or all are about alike."""
    if epoch.speeds is None:
        return None
    rows = [offer_row(epoch.start.epoch, step, np.array([speed.slowness_ppm]), 1, 1) for speed in epoch.speeds]
    slowness = read_offers(epoch.exchange.offer(np.stack(rows)), epoch.start.epoch, step)[0][:, 0].tolist()
    return tuple(slowness) if max(slowness) > ALIKE * min(slowness) else None


def batch_plan(
    epoch: int, step: int, ids: Ids, chosen: Assignment, after: Position | None = None, pad_to: int = 0
) -> StepPlan:
    """What a batch policy chose for these ids, as a plan with its digest."""
    return StepPlan.cut(
        epoch,
        step,
        ids[chosen.positions],
        chosen.sizes,
        chosen.packed,
        pad_to,
        predicted_cost=chosen.costs,
        lower_bound=chosen.lower_bound,
        status=chosen.status,
        tie_break=chosen.tie_break,
        method=chosen.method,
        after=after,
    )
