"""Plans of the policies that choose how many samples each rank takes from its own window."""

import itertools
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.costs.kinds import Int, prefix_costs
from ddpsched.costs.rank_speed import AS_CALIBRATED
from ddpsched.errors import InfeasibleError
from ddpsched.exchange import offer_row, read_offers
from ddpsched.plan import Ids, Position, StepPlan
from ddpsched.planning.policies import WINDOW
from ddpsched.planning.steps.context import Epoch
from ddpsched.planning.steps.prefetch_windows import Windows, advance, fill, resume


def window_steps(epoch: Epoch) -> Iterator[StepPlan]:
    """The plans of one epoch of a window policy."""
    config, order, start = epoch.config, epoch.order, epoch.start
    choose, prefetch = WINDOW[config.policy.kind], config.policy.prefetch
    windows = resume(order, start.cursor, start.windows) if start.windows else fill(order, config.world_size, prefetch)
    for step in itertools.count(start.step):
        if not sum(windows.sizes):
            return
        begin = perf_counter()
        offers = [
            offer_row(start.epoch, step, *_window_offer(epoch, windows.ids[rank], index), prefetch)
            for index, rank in enumerate(epoch.exchange.ranks)
        ]
        offered = perf_counter()
        table = epoch.exchange.offer(np.stack(offers))
        gathered = perf_counter()
        costs, caps = read_offers(table, start.epoch, step)
        chosen = choose(costs, _step_size(config, windows, caps, len(order)), caps, config.policy.solver)
        plan, windows = _window_plan(epoch, step, windows, costs, chosen)
        plan.times.offer_s, plan.times.exchange_s = offered - begin, gathered - offered
        plan.times.solve_s = perf_counter() - gathered
        yield plan


def _window_offer(epoch: Epoch, ids: Ids, index: int) -> tuple[Int, int]:
    """What the first k of these samples cost the ``index``-th rank of this process, and how many fit its memory."""
    if not len(ids):
        return np.empty(0, dtype=np.int64), 0
    lengths = epoch.source.lengths(ids)
    costs = prefix_costs(epoch.cost, lengths)
    if epoch.speeds is not None:
        costs = costs * epoch.speeds[index].slowness_ppm // AS_CALIBRATED
    return costs, len(ids) if epoch.caps is None else epoch.caps[index].prefix(lengths)


def _step_size(config: RunConfig, windows: Windows, caps: Int, num_samples: int) -> int:
    """B, or what is left at the end of an epoch, where caps may make the tail take a step more."""
    for rank, (cap, waiting) in enumerate(zip(caps.tolist(), windows.sizes, strict=True)):
        if waiting and not cap:  # it would never move on
            raise InfeasibleError(
                f"the next sample of rank {rank} alone needs more memory than the rank may use; raise "
                "memory.budget_bytes, or lower data.max_length"
            )
    allowed = int(caps.sum())
    if allowed < config.global_batch and windows.cursor < num_samples:
        raise InfeasibleError(
            f"the windows and memory caps allow {caps.tolist()} = {allowed} samples in a step, fewer than "
            f"global_batch = {config.global_batch}; raise policy.prefetch (now {config.policy.prefetch}) or "
            "memory.budget_bytes, or lower global_batch or data.max_length"
        )
    return min(config.global_batch, allowed)


def _window_plan(epoch: Epoch, step: int, windows: Windows, costs: Int, chosen: Any) -> tuple[StepPlan, Windows]:
    """The plan, and the windows after it."""
    counts = chosen.counts.tolist()
    left = advance(windows, epoch.order, counts)
    plan = StepPlan.cut(
        epoch.start.epoch,
        step,
        np.concatenate([ids[:n] for ids, n in zip(windows.ids, counts, strict=True)]),
        [(n,) if n else () for n in counts],
        predicted_cost=tuple(int(row[n - 1]) if n else 0 for row, n in zip(costs, counts, strict=True)),
        lower_bound=chosen.lower_bound,
        status=chosen.status,
        tie_break=chosen.tie_break,
        method=chosen.method,
        after=Position(epoch.start.epoch, step + 1, left.cursor, left.ids),
    )
    return plan, left
