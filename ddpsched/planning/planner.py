"""The stream of plans of a run, equal on every rank."""

import itertools
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ddpsched.config import RunConfig
from ddpsched.errors import InfeasibleError
from ddpsched.plan import Ids, Microbatch, PlanTimes, StepPlan
from ddpsched.planning.cost import CostModel, Int, cost_model, prefix_costs
from ddpsched.planning.messages import Exchange, offer_row, read_offers
from ddpsched.planning.order import epoch_order
from ddpsched.planning.policies import BATCH, WINDOW, Assignment
from ddpsched.planning.queues import Windows, advance, fill

NO_CAP = np.iinfo(np.int32).max


class Lengths(Protocol):
    """Token lengths by id: a whole tokenised set, or one that tokenises what it is asked for."""

    def __len__(self) -> int: ...

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]: ...


def num_steps(config: RunConfig, num_samples: int) -> int:
    """Optimizer steps of the whole run: as given, or epochs * ceil(N / B)."""
    return config.steps or (config.epochs or 0) * -(-num_samples // config.global_batch)


def plan_steps(
    config: RunConfig, source: Lengths, exchange: Exchange, caps: Sequence[int] | None = None
) -> Iterator[StepPlan]:
    """Plans step by step until ``config.steps`` or ``config.epochs`` is reached.

    ``caps[i]``: most samples per micro-batch of rank ``exchange.ranks[i]``; None for no cap.
    In every epoch each id occurs once; the last step of an epoch is smaller where
    B does not divide it. Raises InfeasibleError where caps or windows cannot hold B.
    """
    own_caps = _told_caps(config, exchange, caps)
    first_step = 0
    for epoch in itertools.count():
        if epoch == config.epochs:
            return
        for plan in plan_epoch(config, source, exchange, own_caps, epoch, first_step):
            yield plan
            first_step = plan.step + 1
            if first_step == config.steps:
                return


def plan_epoch(
    config: RunConfig, source: Lengths, exchange: Exchange, caps: list[int], epoch: int, first_step: int
) -> Iterator[StepPlan]:
    """The plans of one epoch, numbered from ``first_step``.

    ``caps``: of ``exchange.ranks`` for a window policy, of all ranks for a batch policy; NO_CAP for none.
    """
    order = epoch_order(config.order.kind, len(source), config.seed, epoch)
    steps = _window_steps if config.policy.kind in WINDOW else _batch_steps
    return steps(_Epoch(config, source, exchange, cost_model(config.cost), caps, epoch, first_step, order))


def _told_caps(config: RunConfig, exchange: Exchange, caps: Sequence[int] | None) -> list[int]:
    """Batch policies offer nothing while they run, so each rank's cap is told once, before the first step."""
    if caps is None:
        return [NO_CAP] * (len(exchange.ranks) if config.policy.kind in WINDOW else config.world_size)
    if config.policy.kind in WINDOW:
        return list(caps)
    rows = np.stack([offer_row(0, 0, np.array([cap], dtype=np.int64), cap, 1) for cap in caps])
    costs, _ = read_offers(exchange.offer(rows), 0, 0)
    return costs[:, 0].tolist()


@dataclass(frozen=True)
class _Epoch:
    """All that the plans of one epoch follow from."""

    config: RunConfig
    source: Lengths
    exchange: Exchange
    cost: CostModel
    caps: list[int]
    number: int
    first_step: int
    order: Ids


def _batch_steps(epoch: _Epoch) -> Iterator[StepPlan]:
    config, size = epoch.config, epoch.config.global_batch
    assign, known = BATCH[config.policy.kind], config.data.lengths == "known"
    caps = None if min(epoch.caps) >= NO_CAP else np.array(epoch.caps, dtype=np.int64)
    for step, start in enumerate(range(0, len(epoch.order), size), epoch.first_step):
        begin = perf_counter()
        batch = epoch.order[start : start + size]
        lengths = epoch.source.lengths(batch) if known else None
        solve_from = perf_counter()
        chosen = assign(lengths, len(batch), config.world_size, step, epoch.cost, caps)
        plan = _batch_plan(epoch.number, step, batch, lengths, chosen, epoch.cost)
        plan.times.offer_s, plan.times.solve_s = solve_from - begin, perf_counter() - solve_from
        yield plan


def _batch_plan(
    epoch: int, step: int, batch: Ids, lengths: Int | None, chosen: Assignment, cost: CostModel
) -> StepPlan:
    costs = None
    if lengths is not None:
        costs = tuple(int(cost(len(g), lengths[g].max())) if len(g) else 0 for g in chosen.groups)
    return StepPlan(
        epoch=epoch,
        step=step,
        ranks=tuple((Microbatch(batch[group]),) if len(group) else () for group in chosen.groups),
        predicted_cost=costs,
        lower_bound=chosen.lower_bound,
        status=chosen.status,
        tie_break=chosen.tie_break,
        method=chosen.method,
    )


def _window_steps(epoch: _Epoch) -> Iterator[StepPlan]:
    config, order = epoch.config, epoch.order
    choose, prefetch = WINDOW[config.policy.kind], config.policy.prefetch
    windows = fill(order, config.world_size, prefetch)
    for step in itertools.count(epoch.first_step):
        if not sum(windows.sizes):
            return
        begin = perf_counter()
        offers = [
            offer_row(epoch.number, step, _window_costs(epoch, windows.ids[rank]), cap, prefetch)
            for rank, cap in zip(epoch.exchange.ranks, epoch.caps, strict=True)
        ]
        offered = perf_counter()
        table = epoch.exchange.offer(np.stack(offers))
        gathered = perf_counter()
        costs, caps = read_offers(table, epoch.number, step)
        chosen = choose(costs, _step_size(config, windows, caps, len(order)), caps, config.policy.solver)
        plan = _window_plan(epoch.number, step, windows, costs, chosen)
        plan.times.offer_s, plan.times.exchange_s = offered - begin, gathered - offered
        plan.times.solve_s = perf_counter() - gathered
        windows = advance(windows, order, chosen.counts.tolist())
        yield plan


def _window_costs(epoch: _Epoch, ids: Ids) -> Int:
    return prefix_costs(epoch.cost, epoch.source.lengths(ids)) if len(ids) else np.empty(0, dtype=np.int64)


def _step_size(config: RunConfig, windows: Windows, caps: Int, num_samples: int) -> int:
    """B, or what is left at the end of an epoch, where caps may make the tail take a step more."""
    allowed = int(caps.sum())
    if allowed < config.global_batch and windows.cursor < num_samples:
        raise InfeasibleError(
            f"the windows and memory caps allow {caps.tolist()} = {allowed} samples in a step, fewer than "
            f"global_batch = {config.global_batch}; raise policy.prefetch (now {config.policy.prefetch}) or "
            "memory.budget_bytes, or lower global_batch or data.max_length"
        )
    return min(config.global_batch, allowed)


def _window_plan(epoch: int, step: int, windows: Windows, costs: Int, chosen: Any) -> StepPlan:
    counts = chosen.counts.tolist()
    return StepPlan(
        epoch=epoch,
        step=step,
        ranks=tuple((Microbatch(ids[:n]),) if n else () for ids, n in zip(windows.ids, counts, strict=True)),
        predicted_cost=tuple(int(row[n - 1]) if n else 0 for row, n in zip(costs, counts, strict=True)),
        lower_bound=chosen.lower_bound,
        status=chosen.status,
        tie_break=chosen.tie_break,
        method=chosen.method,
    )


def ahead(plans: Iterator[StepPlan]) -> Generator[StepPlan, None, None]:
    """The same plans, each made by a background thread while the step before it runs.

    What the caller still had to wait is written into ``plan.times.wait_s``. Only
    this one thread speaks on the planning side of the exchange.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="planner") as thread:
        pending = thread.submit(next, plans, None)
        while True:
            begin = perf_counter()
            plan = pending.result()
            if plan is None:
                return
            pending = thread.submit(next, plans, None)
            plan.times.wait_s = perf_counter() - begin
            yield plan


def plan_columns(config: RunConfig, plan: StepPlan, rank: int, source: Lengths) -> dict[str, Any]:
    """The columns of a record that a plan and the rank's own lengths decide."""
    micro = [source.lengths(m.ids) for m in plan.ranks[rank]]
    count = int(plan.counts[rank])
    times: PlanTimes = plan.times
    return {
        "run": config.name,
        "mode": config.executor.kind,
        "policy": config.policy.kind,
        "seed": config.seed,
        "epoch": plan.epoch,
        "step": plan.step,
        "rank": rank,
        "world_size": plan.world_size,
        "num_samples": count,
        "global_batch": plan.global_batch,
        "num_tokens": int(sum(m.sum() for m in micro)),
        "padded_tokens": int(sum(len(m) * m.max() for m in micro)),
        "max_length": int(max((m.max() for m in micro), default=0)),
        "num_microbatches": len(micro),
        "loss_scale": plan.loss_scale(rank),
        "predicted_cost": None if plan.predicted_cost is None else plan.predicted_cost[rank],
        "lower_bound": plan.lower_bound,
        "offer_s": times.offer_s,
        "exchange_s": times.exchange_s,
        "solve_s": times.solve_s,
        "plan_wait_s": times.wait_s,
        "plan_hash": f"{plan.digest & (2**64 - 1):016x}",
    }
