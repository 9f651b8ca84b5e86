"""The choice of policy auto in a loader: by a calibration, as a loader has no model to measure."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from ddpsched.costs.calibration import Calibration, Seconds
from ddpsched.costs.config import CostConfig, cost_model
from ddpsched.costs.step_times import StepTimes, noise_of
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
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


def calibrated_times(config: CostConfig) -> StepTimes:
    """Return the times by which to predict: of padded micro-batches alone, and nothing beside them.

    Times of packed rows are unknown. The cost of a padded token is no stand-in: by it a row without padding never costs
    more than padded micro-batches, while models may run packed rows by slower kernels. Nor is known what a step takes
    beside its micro-batches; it is the same for all candidates, so the fastest is the fastest without it. Noise is that
    of the calibration's passes; 1 where the cost is given by its coefficients.

    Raises ConfigError where a file cannot be read.
    """
    noise, error, identity = [1.0] * 10, 0.0, None
    if config.kind == "calibrated":
        assert config.path is not None, "the config refuses it"
        given = Calibration.load(config.path)
        identity, error = given.identity, given.seconds_residuals.held_out_mean
        noise = noise_of(point.seconds for point in given.points) if given.points else noise
    padded = Seconds.of(cost_model(config))
    return StepTimes(identity=identity, world_size=1, padded=padded, packed=None, rest_s=0.0, error=error, noise=noise)


def choose_policy(
    owner: str, spec: PlanSpec, lengths: Lengths, candidates: Mapping[str, Policy], times: StepTimes, is_main: bool
) -> Policy:
    """Return the fastest of the candidates for these plans, or static where none is predicted to be faster.

    It follows from the arguments alone, so that all ranks find the same. ``spec``: with policy auto. ``is_main``:
    whether this process says what it takes, in one line of the log.

    Raises InfeasibleError where memory cannot hold what one of them plans.
    """
    try:
        if next(plan_steps(replace(spec, policy=candidates["static"]), lengths, LocalExchange(spec.world_size)), None):
            best = taken(predict(spec, lengths, candidates, times))
        else:  # `last` leaves out all samples
            return candidates["static"]
    except InfeasibleError as error:
        raise InfeasibleError(
            f"{owner}: policy 'auto' plans with static and with each balanced, and one of them does not fit: {error}; "
            "or name 'balanced' with max_microbatches"
        ) from None
    if is_main:
        predicted = f"predicted at {1e3 * best.step_s:.1f} ms a step, {best.ratio:.3f} of static's"
        log.info("%s: auto takes %s for world_size = %d, %s", owner, best.name, spec.world_size, predicted)
    return best.policy
