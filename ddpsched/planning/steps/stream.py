"""The one stream of steps: a policy's assignments become plans, numbered and timed, with a digest each."""

import itertools
from collections.abc import Iterator
from time import perf_counter

from ddpsched.costs.cost_model import Int
from ddpsched.plan import Ids, PlanTimes, Position, StepPlan
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.steps.context import Context


def epoch_steps(context: Context) -> Iterator[StepPlan]:
    """Yield the plans of one epoch from the context's start on."""
    assignments = context.spec.policy(context)
    for step in itertools.count(context.start.step):
        begin = perf_counter()
        times = context.times = PlanTimes()
        found = next(assignments, None)
        if found is None:
            return
        plan = plan_of(context, step, found)
        plan.times.offer_s, plan.times.exchange_s = times.offer_s, times.exchange_s
        plan.times.solve_s = perf_counter() - begin - (times.offer_s or 0.0) - (times.exchange_s or 0.0)
        yield plan


def plan_of(context: Context, step: int, found: Assignment) -> StepPlan:
    """Return an assignment as a plan, with its digest and where the stream goes on after it."""
    epoch, after = context.start.epoch, None
    if found.cursor is not None:
        after = Position(epoch, step + 1, found.cursor, tuple([_ids(context, own) for own in found.windows]))
    return StepPlan.cut(
        epoch,
        step,
        context.order[found.positions],
        found.sizes,
        found.packed,
        found.pad_to,
        predicted_cost=found.costs,
        lower_bound=found.lower_bound,
        status=found.status,
        tie_break=found.tie_break,
        method=found.method,
        after=after,
    )


def _ids(context: Context, positions: Int) -> Ids:
    """Return the ids at these positions, read-only, as a plan's position hands them out."""
    ids = context.order[positions]
    ids.flags.writeable = False
    return ids
