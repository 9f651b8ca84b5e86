"""The stream of plans of a run, equal on every rank."""

import itertools
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.plan import StepPlan
from ddpsched.planning.batch_steps import batch_steps
from ddpsched.planning.calibration import Calibration
from ddpsched.planning.caps import Cap, probed
from ddpsched.planning.cost import check_range, cost_model
from ddpsched.planning.epoch import Epoch, Lengths
from ddpsched.planning.messages import Exchange, offer_row, read_offers
from ddpsched.planning.order import epoch_order
from ddpsched.planning.policies import WINDOW
from ddpsched.planning.speed import Speed
from ddpsched.planning.window_steps import window_steps


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
    cost = cost_model(config.cost)
    check_range(cost, config.global_batch, config.data.max_length)
    order = epoch_order(config.order.kind, len(source), config.seed, epoch)
    steps = window_steps if config.policy.kind in WINDOW else batch_steps
    return steps(Epoch(config, source, exchange, cost, caps, speeds, epoch, first_step, order))


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
