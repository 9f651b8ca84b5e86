"""Steps of the candidates that may be the fastest, run in turn: how far each is off its prediction on this device."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter

import numpy as np

from ddpsched.exchange import Exchange
from ddpsched.step_plan import StepPlan
from ddpsched.training.learner import Learner
from ddpsched.training.trial_times import seconds_of

RUNS = 2  # of a step in a row
CLOSE = 0.06  # of the fastest's time, within which candidates go on when half of the time is used


def measure_steps(
    learner: Learner, plans: Mapping[str, Sequence[StepPlan]], exchange: Exchange, decided: Callable[[bool], bool],
    budget_s: float,
) -> dict[str, list[float]]:  # fmt: skip
    """Run forward and backward of these plans, a step of each candidate in turn; all ranks call it at once.

    Returns the seconds until the last rank was ready, of as many steps of each as there was time for, one at least.
    A step runs twice in a row, and the faster run counts: memory that is free while others run, for seconds, may go
    back to the host of a virtual machine, and takes longer to use again than it does in a run of this candidate alone.
    The second half of the time is for those that may be the fastest by the first. ``decided``: what rank 0 decides, for
    which all ranks meet. ``budget_s``: no round begins that would end later.
    """
    learner.begin_step()
    begin, names = perf_counter(), sorted(plans)
    found: dict[str, list[float]] = {name: [] for name in names}
    took = dict.fromkeys(names, 0.0)  # of the latest turn
    for number in range(min(map(len, plans.values()))):
        spent = perf_counter() - begin
        if number and decided(spent > budget_s / 2):
            fastest_s = min(sum(found[name]) for name in names)
            names = [name for name in names if sum(found[name]) <= (1 + CLOSE) * fastest_s]
        if number and not decided(spent + sum(took[name] for name in names) < budget_s):
            break
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            start = perf_counter()
            found[name].append(min(_step_s(learner, plans[name][number], exchange) for _ in range(RUNS)))
            took[name] = perf_counter() - start
    learner.undo()
    return found


def _step_s(learner: Learner, plan: StepPlan, exchange: Exchange) -> float:
    """Return the seconds of the slowest rank. Ranks of one process take turns, another one first in each step."""
    learner.optimiser.clear()
    own = list(exchange.ranks)
    first = plan.step % len(own)
    seconds = {rank: _rank_s(learner, plan, rank) for rank in [*own[first:], *own[:first]]}
    row = np.array([[round(1e9 * seconds[rank])] for rank in own], dtype=np.int64)
    return float(exchange.vote(row)[:, 0].max()) / 1e9


def _rank_s(learner: Learner, plan: StepPlan, rank: int) -> float:
    batches = (partial(learner.collate, micro.ids, micro.packed, micro.pad_to) for micro in plan.ranks[rank])
    return sum(seconds_of(learner, batch) for batch in batches)
