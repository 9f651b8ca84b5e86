"""The stream of plans of a run, equal on every rank."""

import itertools
import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.costs.calibration import Calibration
from ddpsched.costs.kinds import check_range, cost_model
from ddpsched.costs.memory_cap import Cap, probed
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError
from ddpsched.exchange import Exchange, LocalExchange, offer_row, read_offers
from ddpsched.orders.epoch_order import epoch_order
from ddpsched.plan import Position, StepPlan
from ddpsched.planning.policies import FILL, WINDOW
from ddpsched.planning.steps.batch_steps import batch_steps
from ddpsched.planning.steps.context import Epoch
from ddpsched.planning.steps.fill_steps import fill_steps
from ddpsched.planning.steps.window_steps import window_steps


def num_steps(config: RunConfig, source: Lengths, caps: Sequence[int] | None = None) -> int:
    """Optimizer steps of the whole run: as given, or epochs * ceil(N / B); where B varies, every epoch is planned.

    ``caps``: of all ranks, as in :func:`plan_steps`; they matter where B varies.
    """
    if config.steps is not None and config.policy.infinite_loop:
        return config.steps
    epochs = config.epochs or 1
    if config.policy.kind not in FILL:
        return epochs * -(-len(source) // config.global_batch)
    told = None if caps is None else _caps(config, caps)
    alone = LocalExchange(config.world_size)
    steps = sum(1 for epoch in range(epochs) for _ in plan_epoch(config, source, alone, told, Position(epoch)))
    return min(config.steps or sys.maxsize, steps)


def plan_steps(
    config: RunConfig,
    source: Lengths,
    exchange: Exchange,
    caps: Sequence[int] | None = None,
    speeds: Sequence[Speed] | None = None,
    start: Position | None = None,
) -> Iterator[StepPlan]:
    """Plans step by step until ``config.steps`` or ``config.epochs`` is reached.

    Of each rank in ``exchange.ranks``: ``caps``, what its memory allows, in bytes where ``memory.path`` names a
    calibration, else in samples of ``data.max_length``; ``speeds``, what it has measured of itself, where costs are
    refined while running. In every epoch each id occurs once; the last step of an epoch is smaller where B does not
    divide it. Raises InfeasibleError where caps or windows cannot hold B.

    ``start``: the ``after`` of an earlier plan, from where the same stream goes on; None from the beginning. It takes
    the epoch's order and at most ``policy.lookahead`` batches to go on, whatever the number of steps before. Config
    and data must be those of that plan, and so must ``speeds``: what ranks have measured is the caller's state.
    Raises ConfigError for a position that does not fit: at once, or where only the epoch's order shows it, with the
    first plan.
    """
    start = start or Position()
    if config.epochs is not None and start.epoch >= config.epochs:
        raise ConfigError(f"the position is in epoch {start.epoch} (from 0), but epochs = {config.epochs}")
    if config.steps is not None and start.step > config.steps:
        raise ConfigError(f"the position is after {start.step} steps, but steps = {config.steps}")
    check_position(config, len(source), start)
    plans = _epochs(config, source, exchange, caps, speeds, start)
    return plans if config.steps is None else itertools.islice(plans, config.steps - start.step)


def check_position(config: RunConfig, num_samples: int, position: Position) -> None:
    """Raise ConfigError, naming both, where no epoch of this config and data comes by this position."""
    kind, size = config.policy.kind, config.global_batch
    name, prefetch = ("pool_size", config.policy.pool_size) if kind == "pool" else ("prefetch", config.policy.prefetch)
    if position.cursor > num_samples:
        raise ConfigError(f"the position's cursor = {position.cursor} lies beyond the data: {num_samples} samples")
    expected = config.world_size if (kind in WINDOW or kind == "pool") and position.cursor else 0
    if len(position.windows) != expected:
        raise ConfigError(
            f"the position at cursor = {position.cursor} has windows of {len(position.windows)} ranks, where "
            f"policy.kind = {kind!r} with world_size = {config.world_size} has {expected}"
        )
    sizes, within = [len(ids) for ids in position.windows], position.cursor < num_samples
    too_many = sum(sizes) > prefetch * config.world_size or (within and any(length > prefetch for length in sizes))
    # a pool is filled up before it is chosen from, windows after
    if too_many or (kind in WINDOW and within and any(length < prefetch for length in sizes)):
        raise ConfigError(f"the position has windows of {sizes} samples, where policy.{name} = {prefetch}")
    ids = np.concatenate((np.empty(0, dtype=np.int64), *position.windows))
    outside = ids[(ids < 0) | (ids >= num_samples)]
    if len(outside) or len(np.unique(ids)) < len(ids):
        wrong = f"id {outside[0]}" if len(outside) else "an id twice"
        raise ConfigError(f"the position's windows hold {wrong}; the data has ids 0 to {num_samples - 1}, each once")
    planned = position.cursor - len(ids)
    if planned < 0 or (within and planned % size and kind not in FILL):
        raise ConfigError(
            f"the position is after {planned} samples of its epoch (cursor = {position.cursor}, {len(ids)} waiting), "
            f"where no step of global_batch = {size} ends"
        )


def _epochs(
    config: RunConfig,
    source: Lengths,
    exchange: Exchange,
    caps: Sequence[int] | None,
    speeds: Sequence[Speed] | None,
    start: Position,
) -> Iterator[StepPlan]:
    own_caps = _told_caps(config, exchange, caps)
    step = start.step
    epochs = config.epochs if config.policy.infinite_loop else config.epochs or 1
    while start.epoch != epochs:
        for plan in plan_epoch(config, source, exchange, own_caps, start, speeds):
            yield plan
            step = plan.step + 1
        start = Position(start.epoch + 1, step)


def plan_epoch(
    config: RunConfig,
    source: Lengths,
    exchange: Exchange,
    caps: tuple[Cap, ...] | None,
    start: Position,
    speeds: Sequence[Speed] | None = None,
    last: str = "smaller",
) -> Iterator[StepPlan]:
    """The plans of one epoch from ``start`` on, numbered from ``start.step``; none where it is the epoch's end.

    ``caps``: of ``exchange.ranks`` for a window policy, of all ranks for a batch policy; None for none.
    ``last``, of batch policies: where an epoch's last samples are fewer than the ranks, they are a "smaller" step, are
    shared out with those of the step before ("join"), or left out ("drop").
    """
    cost = cost_model(config.cost)
    check_range(cost, config.global_batch, config.data.max_length)
    order = epoch_order(config, source, start.epoch)
    kind = config.policy.kind
    steps = fill_steps if kind in FILL else window_steps if kind in WINDOW else batch_steps
    return steps(Epoch(config, source, exchange, cost, caps, speeds, start, order, last))


def _told_caps(config: RunConfig, exchange: Exchange, caps: Sequence[int] | None) -> tuple[Cap, ...] | None:
    """Batch policies offer nothing while they run, so each rank's cap is told once, before the first step."""
    if caps is None:
        return None
    if config.policy.kind not in WINDOW:
        rows = np.stack([offer_row(0, 0, np.array([cap], dtype=np.int64), 1, 1) for cap in caps])
        caps = read_offers(exchange.offer(rows), 0, 0)[0][:, 0].tolist()
    return _caps(config, caps)


def _caps(config: RunConfig, caps: Sequence[int]) -> tuple[Cap, ...]:
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
