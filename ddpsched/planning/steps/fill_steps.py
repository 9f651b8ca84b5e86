"""Plans of the policies that fill micro-batches, so that the global batch varies from step to step."""

from collections.abc import Iterator
from time import perf_counter

import numpy as np

from ddpsched.costs.cost_model import AffineQuadratic, Floored
from ddpsched.costs.kinds import CostModel, Int
from ddpsched.errors import ConfigError
from ddpsched.plan import Ids, Position, StepPlan
from ddpsched.planning.policies import FILL
from ddpsched.planning.policies.filling import Filled, Supply
from ddpsched.planning.steps.context import Epoch


def fill_steps(epoch: Epoch) -> Iterator[StepPlan]:
    """The plans of one epoch of a filling policy."""
    begin = perf_counter()
    supply, start = _supply(epoch), epoch.start
    filled = FILL[epoch.config.policy.kind](supply)
    looked_up, step = perf_counter() - begin, start.step
    while True:
        begin = perf_counter()
        found = next(filled, None)
        if found is None:
            return
        plan = _plan(epoch, supply, step, found)
        plan.times.offer_s, plan.times.solve_s = looked_up, perf_counter() - begin
        looked_up, step = 0.0, step + 1  # the epoch's lengths are looked up at once, before its first step
        yield plan


def _supply(epoch: Epoch) -> Supply:
    config, start, order = epoch.config, epoch.start, epoch.order
    parts = epoch.source.parts(order) if isinstance(config.policy.max_tokens_for_batch, list) else None
    return Supply(
        order,
        epoch.source.lengths(order),
        config.world_size,
        config.policy,
        (config.seed, start.epoch),
        parts,
        epoch.caps,
        start.cursor,
        _positions(epoch) if start.windows else (),
    )


def _positions(epoch: Epoch) -> tuple[Int, ...]:
    """Where in the order the ids lie that wait; ConfigError where this order did not hand them out."""
    start, order = epoch.start, epoch.order
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    waiting = tuple(np.sort(places[ids]) for ids in start.windows)
    for own in waiting:
        if len(own) and own[-1] >= start.cursor:
            raise ConfigError(
                f"the position's windows hold id {order[own[-1]]}, which is not among the first {start.cursor} of its "
                "epoch's order: it was taken with another seed, order or data"
            )
    return waiting


def _plan(epoch: Epoch, supply: Supply, step: int, found: Filled) -> StepPlan:
    ids = epoch.order[found.positions]
    number = epoch.start.epoch
    return StepPlan.cut(
        number,
        step,
        ids,
        found.sizes,
        found.packed,
        found.pad_to,
        predicted_cost=_costs(epoch.cost, found, supply.lengths),
        method=epoch.config.policy.kind,
        after=Position(number, step + 1, found.cursor, tuple(_ids(epoch, own) for own in found.windows)),
    )


def _ids(epoch: Epoch, positions: Int) -> Ids:
    """Of these positions, read-only, as a plan's position hands them out."""
    ids = epoch.order[positions]
    ids.flags.writeable = False
    return ids


def _costs(cost: CostModel, found: Filled, lengths: Int) -> tuple[int, ...]:
    """What each rank's micro-batches cost."""
    counts = [size for own in found.sizes for size in own]
    if found.packed:
        assert isinstance(cost, AffineQuadratic | Floored), "the config refuses others for packed rows"
        parts = np.split(lengths[found.positions], np.cumsum(counts)[:-1])
        each = [cost.packed(part) for part in parts]
    else:
        longest = np.maximum(found.longest, found.pad_to)
        each = cost(np.array(counts), longest).tolist()
    per_micro = iter(each)
    return tuple(sum(next(per_micro) for _ in own) for own in found.sizes)
