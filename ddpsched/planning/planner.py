"""The stream of plans of a run, equal on every rank: a policy's assignments, numbered and timed, with a digest each."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import accumulate, islice
from time import perf_counter
from typing import Any

import numpy as np

from ddpsched.costs.rank_speed import Speed
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError
from ddpsched.exchange import Exchange, LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.steps.context import Context
from ddpsched.step_plan import Ids, PlanTimes, Position, StepPlan

MOST_COUNTED = 10**10  # samples: an hour or more


def num_steps(spec: PlanSpec, lengths: Lengths) -> int:
    """Return the optimizer steps of the whole run: ``spec.steps``, or epochs * ceil(N / B).

    Where the policy lets B vary, each epoch's assignments are made and counted. Raises ConfigError where that would
    take hours.
    """
    if spec.steps is not None and spec.policy.endless:
        return spec.steps
    epochs = spec.epochs or 1
    if not spec.policy.varies:
        return epochs * -(-len(lengths) // spec.global_batch)
    if epochs * len(lengths) > MOST_COUNTED and spec.steps is None:
        raise ConfigError(
            f"epochs = {epochs} of {len(lengths)} samples: policy.kind = {spec.policy.kind!r} would plan "
            f"{epochs * len(lengths):,} samples to count its steps, at most {MOST_COUNTED:,}; give steps instead"
        )
    local = LocalExchange(spec.world_size)
    contexts = (Context(spec, lengths, local, Position(epoch)) for epoch in range(epochs))
    return min(spec.steps or sys.maxsize, sum(1 for context in contexts for _ in spec.policy(context)))


def plan_steps(
    spec: PlanSpec,
    lengths: Lengths,
    exchange: Exchange,
    speeds: Sequence[Speed] | None = None,
    start: Position | None = None,
    ranks_before: int | None = None,
) -> Iterator[StepPlan]:
    """Yield plans step by step until ``spec.steps`` or ``spec.epochs`` is reached.

    In every epoch each id occurs once; the last step of an epoch is smaller where B does not divide it.

    ``speeds``: of each rank in ``exchange.ranks``, its measured slowness, where costs are refined while running.
    ``start``: the ``after`` of an earlier plan, from where the same stream goes on; None from the beginning. Going on
    takes the epoch's order and at most ``spec.policy.batches_at_once`` batches, whatever the number of steps before.
    Spec and lengths must be those of that plan, and so must ``speeds``: measurements are kept by the caller.
    ``ranks_before``: the world size of that plan, where this one is another. Then each sample still comes once an
    epoch, and policies that take the order's next samples keep their global batches, if ``spec.batch_ranks`` is the
    world size that they began with.

    Raises InfeasibleError where caps or windows cannot hold B, and ConfigError for a position that does not fit: at
    once, or where only the epoch's order shows it, with the first plan.

    >>> from ddpsched.data.lengths import KnownLengths
    >>> from ddpsched.planning.policies.balanced import Balanced
    >>> spec = PlanSpec(world_size=2, global_batch=4, policy=Balanced(), epochs=1)
    >>> [plan.predicted_cost for plan in plan_steps(spec, KnownLengths([5, 9, 2, 2]), LocalExchange(2))]
    [(9, 15)]
    """
    if spec.policy.splits and len(lengths):
        spec.policy.check_longest(int(lengths.lengths(np.arange(len(lengths))).max()), spec.world_size)
    if start is None:
        start = Position()
    else:
        if spec.epochs is not None and start.epoch >= spec.epochs:
            raise ConfigError(f"the position is in epoch {start.epoch} (from 0), but epochs = {spec.epochs}")
        if spec.steps is not None and start.step > spec.steps:
            raise ConfigError(f"the position is after {start.step} steps, but steps = {spec.steps}")
        check_position(spec, len(lengths), start, ranks_before)
        if ranks_before not in (None, spec.world_size):
            start = redealt(start, spec.world_size)
    plans = _plans(spec, lengths, exchange, speeds, start)
    return plans if spec.steps is None else islice(plans, spec.steps - start.step)


def redealt(position: Position, world_size: int) -> Position:
    """Return the position with the samples that wait dealt to another number of ranks, those in front first.

    >>> waiting = tuple(map(np.array, ([0, 2, 4], [1, 3, 5])))
    >>> [ids.tolist() for ids in redealt(Position(0, 1, 8, waiting), 3).windows]
    [[0, 3], [1, 4], [2, 5]]
    """
    if not position.windows:
        return position
    longest = max(map(len, position.windows))
    ids = [int(window[place]) for place in range(longest) for window in position.windows if place < len(window)]
    dealt = tuple(np.array(ids[rank::world_size], dtype=np.int64) for rank in range(world_size))
    return replace(position, windows=dealt)


def check_position(spec: PlanSpec, num_samples: int, position: Position, world_size: int | None = None) -> None:
    """Raise ConfigError, naming both, where no epoch of this spec and data reaches this position.

    ``world_size``: of the plan that the position is of, where it is not this spec's.
    """
    size_before = world_size or spec.world_size
    kind, size = spec.policy.kind, spec.global_batch
    if position.cursor > num_samples:
        raise ConfigError(f"the position's cursor = {position.cursor} lies beyond the data: {num_samples} samples")
    expected = size_before if spec.policy.window and position.cursor else 0
    if len(position.windows) != expected:
        raise ConfigError(
            f"the position at cursor = {position.cursor} has windows of {len(position.windows)} ranks, where "
            f"policy.kind = {kind!r} with world_size = {size_before} has {expected}"
        )
    within = position.cursor < num_samples
    ids = np.concatenate((np.empty(0, dtype=np.int64), *position.windows))
    outside = ids[(ids < 0) | (ids >= num_samples)]
    if len(outside) or len(np.unique(ids)) < len(ids):
        wrong = f"id {outside[0]}" if len(outside) else "an id twice"
        raise ConfigError(f"the position's windows hold {wrong}; the data has ids 0 to {num_samples - 1}, each once")
    planned = position.cursor - len(ids)
    if planned < 0 or (within and planned % size and not spec.policy.varies):
        raise ConfigError(
            f"the position is after {planned} samples of its epoch (cursor = {position.cursor}, {len(ids)} waiting), "
            f"where no step of global_batch = {size} ends"
        )


def _plans(
    spec: PlanSpec, lengths: Lengths, exchange: Exchange, speeds: Sequence[Speed] | None, start: Position
) -> Iterator[StepPlan]:
    """Yield each assignment of the policy as a plan, with its times and the position after it."""
    step, memo = start.step, dict[str, Any]()
    epochs = spec.epochs if spec.policy.endless else spec.epochs or 1
    while start.epoch != epochs:
        context = Context(spec, lengths, exchange, start, speeds, memo)
        assignments, order = spec.policy(context), context.order
        while True:
            begin = perf_counter()
            times = context.times = PlanTimes()
            if (assignment := next(assignments, None)) is None:
                break
            after = None
            if assignment.cursor is not None:
                windows = _ids_of(assignment.windows, order) if assignment.windows else ()
                after = Position(start.epoch, step + 1, assignment.cursor, windows)
            plan = StepPlan.cut(
                start.epoch,
                step,
                order[assignment.positions],
                assignment.sizes,
                assignment.packed,
                assignment.pad_to,
                assignment.parts,
                predicted_cost=assignment.costs,
                lower_bound=assignment.lower_bound,
                status=assignment.status,
                tie_break=assignment.tie_break,
                method=assignment.method,
                after=after,
            )
            plan.times.offer_s, plan.times.exchange_s = times.offer_s, times.exchange_s
            plan.times.solve_s = perf_counter() - begin - (times.offer_s or 0.0) - (times.exchange_s or 0.0)
            yield plan
            step += 1
        start = Position(start.epoch + 1, step)


def _ids_of(windows: Sequence[Ids], order: Ids) -> tuple[Ids, ...]:
    """Return the ids at these positions of each rank, read-only, by one look into the order."""
    ids = order[np.concatenate(windows)]
    ids.flags.writeable = False
    return tuple([ids[end - len(each) : end] for each, end in zip(windows, accumulate(map(len, windows)), strict=True)])


class PrefetchedPlans:
    """The same plans, each made by a background thread while the step before it runs.

    The time that the caller still waits is written into ``plan.times.wait_s``. Only this one thread calls the planning
    side of the exchange.
    """

    def __init__(self, plans: Iterator[StepPlan]) -> None:
        self._plans, self._waited_s = plans, 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="planner")
        self._pending: Future[StepPlan | None] | None = None

    def __iter__(self) -> Iterator[StepPlan]:
        """Return itself."""
        return self

    def __next__(self) -> StepPlan:
        """Return the next plan, and begin the one after it. Raises what planning it raised."""
        begin = perf_counter()
        pending = self._pending or self._thread.submit(self._make)
        plan = pending.result()
        if plan is None:
            self._pending = pending
            raise StopIteration
        self._pending = self._thread.submit(self._make)
        plan.times.wait_s, self._waited_s = perf_counter() - begin + self._waited_s, 0.0
        return plan

    def _make(self) -> StepPlan | None:
        """Return the next plan, its digest cached, which the ranks vote on within the step."""
        plan = next(self._plans, None)
        if plan is not None:
            begin = perf_counter()
            plan.digest  # noqa: B018
            plan.times.solve_s = (plan.times.solve_s or 0.0) + perf_counter() - begin
        return plan

    def settle(self) -> None:
        """Wait here for the next plan, which counts as the next step's wait.

        Runs that take turns call it before another's turn, in which planning would go on at no cost to its step.
        """
        begin = perf_counter()
        if self._pending is not None:
            wait([self._pending])
        self._waited_s += perf_counter() - begin

    def close(self) -> None:
        """End the thread, after the plan that it is at."""
        self._thread.shutdown(cancel_futures=True)
