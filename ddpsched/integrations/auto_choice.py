"""The choice of policy auto in a loader: by a calibration, as a loader has no model to measure."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from ddpsched.costs.config import CostConfig
from ddpsched.costs.step_times import StepTimes
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.planning.policies.auto import Auto
from ddpsched.planning.policy import Policy
from ddpsched.planning.prediction import predict, taken

log = logging.getLogger("ddpsched")


def check_auto(owner: str, policy: Auto, cost: CostConfig, speeds: object) -> None:
    """Raise ConfigError where there are no seconds to choose by, and for what a prediction would leave out."""
    if cost.kind not in ("calibrated", "affine_quadratic"):
        raise ConfigError(
            f"{owner}: policy 'auto' takes the fastest by seconds, and cost.kind = {cost.kind!r} has none; measure the "
            "model on its device with `ddpsched calibrate CONFIG --output device.json`, and give "
            "cost={'kind': 'calibrated', 'path': 'device.json'}; or name a policy, such as 'balanced'"
        )
    if speeds is not None:
        raise ConfigError(
            f"{owner}: speeds = {speeds}, but policy 'auto' predicts for ranks that are alike; leave speeds out, or "
            "use 'balanced' or 'packed'"
        )
    if policy.packed and "packed" in policy.model_fields_set:
        raise ConfigError(
            f"{owner}: policy.packed = true, but a calibration has no times of packed rows to choose by; leave it out, "
            "or use policy 'packed'"
        )


def _has_steps(spec: PlanSpec, lengths: Lengths) -> bool:
    try:
        return next(plan_steps(spec, lengths, LocalExchange(spec.world_size)), None) is not None
    except InfeasibleError:  # a step that memory does not hold
        return True


def choose_policy(
    owner: str, spec: PlanSpec, lengths: Lengths, candidates: Mapping[str, Policy], times: StepTimes, is_main: bool
) -> Policy:
    """Return the fastest of the candidates for these plans, or static where none is predicted to be faster.

    It follows from the arguments alone, so that all ranks find the same. ``spec``: with policy auto. ``is_main``:
    whether this process says what it takes, in one line of the log.

    Raises InfeasibleError where memory holds the plans of none of them.
    """
    if not _has_steps(replace(spec, policy=candidates["static"]), lengths):  # `last` leaves out all samples
        return candidates["static"]
    try:
        ranking = predict(spec, lengths, candidates, times)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"{owner}: policy 'auto' plans with static and with each balanced, and none of them fits: {error}; "
            "or name 'balanced' with max_microbatches"
        ) from None
    best = taken(ranking, num_steps(replace(spec, policy=candidates["static"]), lengths))
    if is_main:
        predicted = f"predicted at {1e3 * best.step_s:.1f} ms a step, {best.ratio:.3f} of static's"
        measured = "" if times.identity is None else f", by times of {times.identity}"
        log.info("%s: auto takes %s for world_size = %d, %s%s", owner, best.name, spec.world_size, predicted, measured)
    return best.policy
