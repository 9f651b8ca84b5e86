"""The gap between plans and the best there could be: what the longest ranks take, over a lower bound of it."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.steps.lookahead import window_bound
from ddpsched.step_plan import StepPlan


def gap(spec: PlanSpec, lengths: Int, plans: Sequence[StepPlan]) -> float | None:
    """Return the sum over steps of the largest cost over the sum of lower bounds, less 1; None where none is known.

    ``lengths``: (N,), of all samples. With a lookahead of W the bound is of W steps together, however their samples
    were dealt to them, so that the gap counts what the lookahead leaves, too.
    """
    known = [plan for plan in plans if plan.predicted_cost and plan.lower_bound]
    if not known:
        return None
    taken = sum(max(plan.predicted_cost or ()) for plan in known)
    ahead, size = spec.policy.batches_at_once, spec.global_batch
    in_windows = [plan for plan in known if ahead > 1 and plan.global_batch == size]
    bound = float(sum(plan.lower_bound or 0 for plan in known if ahead == 1 or plan.global_batch != size))
    for window in _windows(in_windows, ahead):
        weights = spec.cost.unpadded(lengths[np.concatenate([plan.ids for plan in window])])
        bound += window_bound(weights, size, spec.world_size) + len(window) * spec.cost.fixed
    return taken / bound - 1


def _windows(plans: Sequence[StepPlan], ahead: int) -> Iterator[list[StepPlan]]:
    """Yield the plans that were made together: up to ``ahead`` of an epoch."""
    for _, epoch in groupby(plans, key=lambda plan: plan.epoch):
        steps = list(epoch)
        yield from (steps[start : start + ahead] for start in range(0, len(steps), ahead))
