"""The plans of a run's epochs, again from several positions, and the steps of which gradients are computed."""

import json
from collections.abc import Sequence
from itertools import islice, pairwise

import numpy as np

from ddpsched.certify.capture import counted
from ddpsched.config import RunConfig
from ddpsched.data.samples import Samples
from ddpsched.data.token_table import OnlineTokens
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.planning.shapes.choose import Menu
from ddpsched.step_plan import Position, StepPlan
from ddpsched.training.distributed import DistributedExecutor
from ddpsched.training.virtual import VirtualExecutor

EPOCHS = 3  # that are planned
BEYOND = 200  # steps that are planned again, at most, after each position that is resumed


def plan_epochs(
    config: RunConfig, samples: Samples, executor: DistributedExecutor | VirtualExecutor, menu: Menu
) -> tuple[list[StepPlan], list[tuple[int, list[int]]]]:
    """Return all plans, and ``resumed`` of ``Planned``. ``menu``: of shapes.

    Resumed are positions in the middle of two epochs, before the last step of each and between epochs, through JSON.
    """
    spec = config.plan_spec(executor.caps, menu=menu)
    executor.expect(num_steps(spec, samples.train))
    resumed = list[tuple[int, list[int]]]()
    with counted("planning"):
        plans = list(plan_steps(spec, samples.train, executor.exchange))
    ends = [at for at, (plan, after) in enumerate(pairwise(plans)) if after.epoch > plan.epoch]
    middles = [(before + end) // 2 for before, end in pairwise([-1, *ends])]
    with counted("resuming"):
        for at in sorted({*middles, *ends, *(end - 1 for end in ends if end)}):
            after = plans[at].after
            if after is not None and at + 1 < len(plans):
                start = Position.from_dict(json.loads(json.dumps(after.as_dict())))
                rest = plan_steps(spec, samples.train, executor.exchange, start=start)
                resumed.append((at, [plan.digest for plan in islice(rest, BEYOND)]))
    return plans, resumed


def select_steps(epoch: Sequence[StepPlan], samples: Samples) -> list[int]:
    """Return the steps of an epoch that show a wrong gradient: the first, the most uneven, and the last."""
    tokens = None if isinstance(samples.train, OnlineTokens) else samples.train

    def unevenness(step: int) -> tuple[int, ...]:
        plan = epoch[step]
        sums = [plan.counts.tolist(), [len(rank) for rank in plan.ranks]]
        if tokens is not None:
            sums.append([sum(len(m) * int(tokens.lengths(m.ids).max()) for m in rank) for rank in plan.ranks])
        return tuple(int(np.ptp(each)) for each in sums)

    last = len(epoch) - 1
    return [epoch[at].step for at in sorted({0, max(range(1, last), key=unevenness, default=0), last})]
