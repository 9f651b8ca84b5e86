"""Step times of policies on any number of ranks, computed: what would more ranks, or ranks of unequal speed, bring?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from ddpsched.costs.config import CostConfig
from ddpsched.costs.network import BACKWARD, Network
from ddpsched.costs.rank_speed import Speed
from ddpsched.costs.step_times import StepTimes, calibrated_times
from ddpsched.data.lengths import KnownLengths, Lengths
from ddpsched.errors import ConfigError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies.balanced import Balanced
from ddpsched.planning.policies.minmax import Minmax, usual_prefetch
from ddpsched.planning.policies.packed import Packed
from ddpsched.planning.policies.static import Static
from ddpsched.planning.policy import Policy
from ddpsched.planning.step_seconds import StepSeconds
from ddpsched.table import Positive, Ranks, Seed, Table, first_fault

DISTILBERT: Mapping[str, Any] = {"kind": "affine_quadratic", "alpha": 0.09, "beta": 2.6e-3}  # on one CPU core
KNOWN = "balanced, speeds known"
ARMS = ("static", "minmax", "balanced", "packed")


class Setting(Table):
    """The arguments of :func:`what_if` that have a range."""

    world_sizes: Annotated[tuple[Ranks, ...], Field(min_length=1, max_length=64)]
    samples_per_rank: Annotated[int, Field(gt=0, le=2**20)]
    policies: tuple[Literal["static", "minmax", "balanced", "packed"], ...]
    slow_share: Annotated[float, Field(ge=0, le=1)]
    slowness: Annotated[float, Field(gt=0, le=1e6)]
    steps: Positive
    seed: Seed


@dataclass(frozen=True)
class ComputedSteps:
    """Computed steps of one policy on so many ranks.

    Attributes:
        world_size: G.
        policy: its kind; "balanced, speeds known" where it plans with the ranks' speeds.
        slow_share: of ranks that take ``slowness`` times as long.
        slowness: as given.
        step_s: mean seconds of a step, waits for messages included.
        network_s: of these, in which all ranks wait for messages.
        waiting: share of a rank's step in which it waits, for others or for messages.
        speed_up: static's step time over this one's, on the same ranks.
    """

    world_size: int
    policy: str
    slow_share: float
    slowness: float
    step_s: float
    network_s: float
    waiting: float
    speed_up: float


def what_if(
    lengths: Any,
    *,
    world_sizes: Sequence[int] = (4, 16, 64, 256, 1024, 4096),
    samples_per_rank: int = 8,
    policies: Sequence[str] = ARMS,
    cost: Mapping[str, Any] = DISTILBERT,
    network: Network | str | Path | None = None,
    slow_share: float = 0.0,
    slowness: float = 1.5,
    noise: bool = False,
    steps: int = 20,
    seed: int = 0,
) -> list[ComputedSteps]:
    """Return the step times of policies over the number of ranks, computed and not measured.

    A step takes as long as its slowest rank, and what the network makes all ranks wait then; nothing else. Every policy
    has the same samples a step, static is always among them, and plans rest on the cost in seconds.

    Args:
        lengths: tokens of each sample, (n,), which epochs are made of.
        world_sizes: numbers of ranks, each up to 65,536.
        samples_per_rank: B / G, which stays as G grows.
        policies: of "static", "minmax", "balanced" and "packed"; each has one micro-batch a rank and step.
        cost: the seconds of a micro-batch, as a config's [cost]: ``{"kind": "calibrated", "path": "device.json"}``,
            or "affine_quadratic" with alpha, beta and gamma. By default DistilBERT's on one CPU core.
        network: of `ddpsched calibrate --network`, or its file; None for messages that take no time.
        slow_share: of the ranks that are slow, from the last one on; a policy then comes twice if it can know speeds.
        slowness: how many times as long these take.
        noise: whether each rank's time in each step is drawn anew, as far above the least as the passes of the
            calibration were.
        steps: of each policy, of B samples each.
        seed: of orders and noise.

    Raises ConfigError for values out of range, files that cannot be read, a cost that is not in seconds, and fewer
    samples than a step takes.

    >>> found = what_if([5, 60, 7, 8, 30, 6, 9, 10] * 4, world_sizes=[2], samples_per_rank=4, policies=["balanced"])
    >>> [(each.policy, round(each.speed_up, 2)) for each in found]
    [('static', 1.0), ('balanced', 1.5)]
    """
    try:
        setting = Setting.model_validate({
            "world_sizes": tuple(world_sizes), "samples_per_rank": samples_per_rank, "policies": tuple(policies),
            "slow_share": slow_share, "slowness": slowness, "steps": steps, "seed": seed,
        })  # fmt: skip
        costs = CostConfig.model_validate(dict(cost))
    except ValidationError as error:
        raise ConfigError(f"what_if: {first_fault(error)}") from None
    if costs.kind not in ("calibrated", "affine_quadratic"):
        raise ConfigError(
            f"what_if: cost.kind = {costs.kind!r} is in tokens; give seconds, of 'calibrated' or 'affine_quadratic'"
        )
    times, known = calibrated_times(costs), KnownLengths(lengths)
    if network is None:
        network = Network()
    if not isinstance(network, Network):
        network = Network.load(network)
    most = setting.samples_per_rank * max(setting.world_sizes)
    if most > min(len(known), 2**20):
        raise ConfigError(
            f"what_if: {setting.samples_per_rank} samples a rank on {max(setting.world_sizes)} ranks are {most:,} a "
            f"step, at most {min(len(known), 2**20):,} (there are {len(known):,}); give more lengths, or fewer ranks"
        )
    return [each for size in setting.world_sizes for each in _of_size(setting, size, known, times, network, noise)]


def _of_size(
    setting: Setting, world_size: int, lengths: Lengths, times: StepTimes, network: Network, noise: bool
) -> Iterator[ComputedSteps]:
    slow = ceil(setting.slow_share * world_size)
    slowness = np.ones(world_size)
    slowness[world_size - slow :] = setting.slowness
    batch = setting.samples_per_rank * world_size
    arms: dict[str, Policy] = {
        "static": Static(), "minmax": Minmax(prefetch=usual_prefetch(batch, world_size)), "balanced": Balanced(),
        "packed": Packed(),
    }  # fmt: skip
    chosen = ["static", *(each for each in setting.policies if each != "static")]
    if slow and "balanced" in chosen:
        arms[KNOWN] = Balanced()
        chosen.insert(chosen.index("balanced") + 1, KNOWN)
    static_s = None
    for name in chosen:
        spec = PlanSpec(
            world_size=world_size, global_batch=batch, policy=arms[name], seed=setting.seed, epochs=2**31 - 1,
            cost=times.cost, max_length=int(lengths.lengths(np.arange(len(lengths))).max()), refined=name == KNOWN,
        )  # fmt: skip
        speeds = [Speed.constant(each) for each in slowness.tolist()] if name == KNOWN else None
        plans = plan_steps(spec, lengths, LocalExchange(world_size), speeds)
        draw = np.random.default_rng([setting.seed, world_size])
        steps, waits, shares = [], [], []
        for plan in islice((each for each in plans if each.global_batch == batch), setting.steps):
            drawn = slowness * draw.choice(times.noise, world_size) if noise else slowness
            seconds = StepSeconds(plan, lengths, times.cost, times.padded_curve, drawn)
            waits.append(float(network.exposed_s(world_size, BACKWARD * seconds.last_of_slowest())))
            steps.append(seconds.slowest() + waits[-1])
            shares.append(1 - seconds.compute.mean() / steps[-1])
        step_s = float(np.mean(steps))
        static_s = static_s or step_s
        yield ComputedSteps(
            world_size=world_size, policy=name, slow_share=slow / world_size, slowness=setting.slowness, step_s=step_s,
            network_s=float(np.mean(waits)), waiting=float(np.mean(shares)), speed_up=static_s / step_s,
        )  # fmt: skip
