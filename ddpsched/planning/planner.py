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
from ddpsched.errors import DataError, InfeasibleError
from ddpsched.plan import Ids, PlanTimes, StepPlan
from ddpsched.planning.affine import AffineQuadratic, Floored
from ddpsched.planning.calibration import Calibration
from ddpsched.planning.caps import Cap, probed
from ddpsched.planning.cost import CostModel, Int, cost_model, prefix_costs
from ddpsched.planning.lookahead import regroup
from ddpsched.planning.messages import Exchange, offer_row, read_offers
from ddpsched.planning.order import epoch_order
from ddpsched.planning.policies import BATCH, WINDOW, Assignment, Batch
from ddpsched.planning.queues import Windows, advance, fill
from ddpsched.planning.speed import AS_CALIBRATED, Speed

ALIKE = 1.05  # ranks whose measured speeds lie within this share are planned for as equal: proved, and taking turns


class Lengths(Protocol):
    """Token lengths by id: a whole tokenised set, or one that tokenises what it is asked for."""

    def __len__(self) -> int: ...

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]: ...


class KnownLengths:
    """Lengths that are all there, by id; at least 1 each, as DataError says where they are not."""

    def __init__(self, lengths: npt.ArrayLike) -> None:
        given = np.asarray(lengths)
        if given.ndim != 1 or len(given) == 0 or given.dtype.kind not in "iu":
            raise DataError(f"lengths must be a flat array of integers, got {given.dtype} of shape {given.shape}")
        if given.min() < 1:
            where = int(given.argmin())
            raise DataError(f"lengths[{where}] = {given[where]}: every sample has at least one token")
        self._lengths = given.astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self._lengths)

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]:
        return self._lengths[ids]


def num_steps(config: RunConfig, num_samples: int) -> int:
    """Optimizer steps of the whole run: as given, or epochs * ceil(N / B)."""
    return config.steps or (config.epochs or 0) * -(-num_samples // config.global_batch)


def plan_steps(
    config: RunConfig,
    source: Lengths,
    exchange: Exchange,
    caps: Sequence[int] | None = None,
    speeds: Sequence[Speed] | None = None,
) -> Iterator[StepPlan]:
    """Plans step by step until ``config.steps`` or ``config.epochs`` is reached.

    Of each rank in ``exchange.ranks``: ``caps``, what its memory allows, in bytes where ``memory.path`` names a
    calibration, else in samples of ``data.max_length``; ``speeds``, what it has measured of itself, where costs are
    refined while running. In every epoch each id occurs once; the last step of an epoch is smaller where B does not
    divide it. Raises InfeasibleError where caps or windows cannot hold B.
    """
    own_caps = _told_caps(config, exchange, caps)
    first_step = 0
    for epoch in itertools.count():
        if epoch == config.epochs:
            return
        for plan in plan_epoch(config, source, exchange, own_caps, epoch, first_step, speeds):
            yield plan
            first_step = plan.step + 1
            if first_step == config.steps:
                return


def plan_epoch(
    config: RunConfig,
    source: Lengths,
    exchange: Exchange,
    caps: tuple[Cap, ...] | None,
    epoch: int,
    first_step: int,
    speeds: Sequence[Speed] | None = None,
) -> Iterator[StepPlan]:
    """The plans of one epoch, numbered from ``first_step``.

    ``caps``: of ``exchange.ranks`` for a window policy, of all ranks for a batch policy; None for none.
    """
    order = epoch_order(config.order.kind, len(source), config.seed, epoch)
    steps = _window_steps if config.policy.kind in WINDOW else _batch_steps
    return steps(_Epoch(config, source, exchange, cost_model(config.cost), caps, speeds, epoch, first_step, order))


def _told_caps(config: RunConfig, exchange: Exchange, caps: Sequence[int] | None) -> tuple[Cap, ...] | None:
    """Batch policies offer nothing while they run, so each rank's cap is told once, before the first step."""
    if caps is None:
        return None
    if config.policy.kind not in WINDOW:
        rows = np.stack([offer_row(0, 0, np.array([cap], dtype=np.int64), 1, 1) for cap in caps])
        caps = read_offers(exchange.offer(rows), 0, 0)[0][:, 0].tolist()
    if config.memory.path is None:
        return tuple(probed(count, config.data.max_length) for count in caps)
    memory = Calibration.load(config.memory.path).memory
    return tuple(Cap(budget - memory.fixed, memory.sample) for budget in caps)


@dataclass(frozen=True)
class _Epoch:
    """All that the plans of one epoch follow from."""

    config: RunConfig
    source: Lengths
    exchange: Exchange
    cost: CostModel
    caps: tuple[Cap, ...] | None
    speeds: Sequence[Speed] | None
    number: int
    first_step: int
    order: Ids


def _batch_steps(epoch: _Epoch) -> Iterator[StepPlan]:
    config = epoch.config
    assign, known = BATCH[config.policy.kind], config.data.lengths == "known"
    batches = _batches(epoch)
    for step in itertools.count(epoch.first_step):
        begin = perf_counter()
        ids = next(batches, None)
        if ids is None:
            return
        lengths = epoch.source.lengths(ids) if known else None
        looked_up = perf_counter()
        slowness = _told_slowness(epoch, step)
        told = perf_counter()
        batch = Batch(
            lengths, len(ids), config.world_size, step, epoch.cost, epoch.caps, slowness, config.policy.max_microbatches
        )
        plan = batch_plan(epoch.number, step, ids, assign(batch))
        plan.times.offer_s, plan.times.solve_s = looked_up - begin, perf_counter() - told
        if slowness is not None:
            plan.times.exchange_s = told - looked_up
        yield plan


def _batches(epoch: _Epoch) -> Iterator[Ids]:
    """The samples of each step: the next B of the order, or with a lookahead of W the next W * B dealt anew."""
    config, order, size = epoch.config, epoch.order, epoch.config.global_batch
    if config.policy.lookahead == 1:
        for start in range(0, len(order), size):
            yield order[start : start + size]
        return
    in_strata = config.policy.kind == "balanced" and config.policy.max_microbatches == 1
    for start in range(0, len(order), size * config.policy.lookahead):
        pool = order[start : start + size * config.policy.lookahead]
        full, rest = divmod(len(pool), size)
        weights = epoch.cost(1, epoch.source.lengths(pool))
        whole = regroup(weights[: full * size], [size] * full, config.world_size, in_strata) if full else []
        for positions in [*whole, np.arange(full * size, len(pool))][: full + (rest > 0)]:
            yield pool[positions]


def _told_slowness(epoch: _Epoch, step: int) -> tuple[int, ...] | None:
    """Each rank's own measurement, told to all; None where none is made or all are about alike."""
    if epoch.speeds is None:
        return None
    rows = [offer_row(epoch.number, step, np.array([speed.slowness_ppm]), 1, 1) for speed in epoch.speeds]
    slowness = read_offers(epoch.exchange.offer(np.stack(rows)), epoch.number, step)[0][:, 0].tolist()
    return tuple(slowness) if max(slowness) > ALIKE * min(slowness) else None


def batch_plan(epoch: int, step: int, ids: Ids, chosen: Assignment) -> StepPlan:
    """What a batch policy chose for these ids, as a plan with its digest."""
    plan = StepPlan.cut(
        epoch,
        step,
        ids[chosen.positions],
        chosen.sizes,
        chosen.packed,
        predicted_cost=chosen.costs,
        lower_bound=chosen.lower_bound,
        status=chosen.status,
        tie_break=chosen.tie_break,
        method=chosen.method,
    )
    plan.digest  # noqa: B018 (it is kept; the step that votes on it has it made beforehand)
    return plan


def _window_steps(epoch: _Epoch) -> Iterator[StepPlan]:
    config, order = epoch.config, epoch.order
    choose, prefetch = WINDOW[config.policy.kind], config.policy.prefetch
    windows = fill(order, config.world_size, prefetch)
    for step in itertools.count(epoch.first_step):
        if not sum(windows.sizes):
            return
        begin = perf_counter()
        offers = [
            offer_row(epoch.number, step, *_window_offer(epoch, windows.ids[rank], index), prefetch)
            for index, rank in enumerate(epoch.exchange.ranks)
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


def _window_offer(epoch: _Epoch, ids: Ids, index: int) -> tuple[Int, int]:
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


def _window_plan(epoch: int, step: int, windows: Windows, costs: Int, chosen: Any) -> StepPlan:
    counts = chosen.counts.tolist()
    plan = StepPlan.cut(
        epoch,
        step,
        np.concatenate([ids[:n] for ids, n in zip(windows.ids, counts, strict=True)]),
        [(n,) if n else () for n in counts],
        predicted_cost=tuple(int(row[n - 1]) if n else 0 for row, n in zip(costs, counts, strict=True)),
        lower_bound=chosen.lower_bound,
        status=chosen.status,
        tie_break=chosen.tie_break,
        method=chosen.method,
    )
    plan.digest  # noqa: B018 (it is kept; the step that votes on it has it made beforehand)
    return plan


def rank_cost(cost: CostModel, plan: StepPlan, rank: int, source: Lengths) -> int:
    """What the rank's micro-batches cost a rank of calibrated speed."""
    total = 0
    for micro in plan.ranks[rank]:
        lengths = source.lengths(micro.ids)
        if micro.packed:
            assert isinstance(cost, AffineQuadratic | Floored), "the config refuses others for packed rows"
            total += cost.packed(lengths)
        else:
            total += int(cost(len(lengths), lengths.max()))
    return total


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
        "padded_tokens": int(
            sum(m.sum() if own.packed else len(m) * m.max() for own, m in zip(plan.ranks[rank], micro, strict=True))
        ),
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
