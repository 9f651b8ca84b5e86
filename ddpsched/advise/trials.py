"""The candidates that may be the fastest, tried for a few steps: what a prediction is off, is known then."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ddpsched.costs.step_times import StepTimes, Tried
from ddpsched.data.lengths import Lengths
from ddpsched.exchange import Exchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.policy import Policy
from ddpsched.planning.prediction import ALIKE, STEPS, Prediction, next_plans, predict, sampled, step_seconds
from ddpsched.step_plan import StepPlan
from ddpsched.training.learner import Learner
from ddpsched.training.trial_steps import RUNS, measure_steps

MOST = 12  # steps of a candidate


def try_candidates(
    learner: Learner, spec: PlanSpec, lengths: Lengths, candidates: Mapping[str, Policy], times: StepTimes,
    exchange: Exchange, decided: Callable[[bool], bool], budget_s: float,
) -> dict[str, Tried]:  # fmt: skip
    """Return by how much candidates are off, by name: the first of the ranking, static, and others while there is time.

    {} where not even two of them can be tried, or ranks meet in each micro-batch. ``times``, ``budget_s``: the
    same on all ranks, which call it at once. The same steps are predicted and measured, so which steps they are makes
    no difference.
    """
    if learner.sync.meets:
        return {}
    ranking = predict(spec, lengths, candidates, times.model_copy(update={"compiled": None}))
    ranks = len(exchange.ranks)  # of this process, one after another
    plans = dict[str, list[StepPlan]]()
    round_s = 0.0
    for each in _in_order(ranking):
        round_s += ranks * each.step_s
        if RUNS * round_s > budget_s:
            break
        planned = replace(spec, policy=each.policy, cost=each.cost, steps=STEPS, epochs=None)
        plans[each.name] = next_plans(sampled(planned, lengths), MOST)
    if len(plans) < 2:
        return {}
    by_name = {each.name: each for each in ranking}
    found = dict[str, Tried]()
    for name, seconds in measure_steps(learner, plans, exchange, decided, budget_s).items():
        own = by_name[name]
        predicted = step_seconds(plans[name][: len(seconds)], lengths, own.policy, own.cost, times)
        tried = _compared(np.array(seconds), predicted, times.error)
        alike = [each.name for each in ranking if abs(each.ratio - own.ratio) < ALIKE]
        found |= dict.fromkeys(alike, tried)
    return found


def _in_order(ranking: Sequence[Prediction]) -> list[Prediction]:
    """Return those whose plans differ: the first two, static, and the others."""
    distinct = list[Prediction]()
    for each in ranking:
        if not any(abs(each.ratio - other.ratio) < ALIKE for other in distinct):
            distinct.append(each)
    return sorted(distinct, key=lambda each: distinct.index(each) >= 2 and each.ratio != 1)


def _compared(seconds: np.ndarray, predicted: np.ndarray, error: float) -> Tried:
    """Return the median ratio of both, and its standard error; ``error`` of a single step.

    A mean of a dozen steps would be that of the one among them that the machine disturbed.
    """
    ratios = seconds / predicted
    ratio = float(np.median(ratios))
    if len(ratios) > 1:  # of normal noise, by the median deviation, which a few large ones do not move
        deviation = 1.4826 * float(np.median(np.abs(ratios - ratio)))
        error = (np.pi / 2) ** 0.5 * deviation / (ratio * len(ratios) ** 0.5)
    return Tried(ratio=ratio, error=float(error))
