"""The predicted step times of policies that keep static's gradient, from plans of some steps and measured costs."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.shape_menu import Shape, on_menu
from ddpsched.costs.step_times import Curve, StepTimes
from ddpsched.data.lengths import Lengths
from ddpsched.errors import InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policy import Policy
from ddpsched.planning.step_seconds import microbatch_seconds
from ddpsched.step_plan import Position, StepPlan

log = logging.getLogger("ddpsched")
STEPS = 48  # of the first epoch that are planned: choosing is to take less than 1 % of a short run of a tiny model
BLOCKS = 12  # of these, at even distances, where samples come by length; both others are multiples
TRIED = 12  # of these, in which a second micro-batch has to pay once
DRAWS = 16  # of noise for each of them
COMPILED = ", compiled"  # behind the name of a candidate
ALIKE = 1e-9  # of a ratio: predictions of equal plans
NEAR = 0.01  # of a step time, which no prediction tells apart
LAUNCHES = 0.03  # of a ratio, by which launches differ beyond what one of them shows
NORMAL_95 = 1.96  # standard errors on each side of a 95 % interval


@dataclass(frozen=True)
class Prediction:
    """``step_s``: mean seconds of a step. ``ratio``: to static's, and ``band``, half of its 95 % interval, as a share.

    ``microbatches``: mean of a rank in a step. ``cost``: what the policy plans with. ``compiled``: whether by the
    compiled model, on its menu of shapes where it has one. ``before_s``: seconds before the first step, of compiling.
    """

    name: str
    policy: Policy
    cost: CostModel
    step_s: float
    ratio: float
    band: float
    microbatches: float
    compiled: bool = False
    before_s: float = 0.0


def taken(ranking: Sequence[Prediction], steps: int) -> Prediction:
    """Return the fastest prediction for a run of so many steps; static's, if it is there, where none is below it.

    Of those within ``NEAR`` of it the one with the fewest micro-batches. One of the compiled model must be faster than
    all others by more than its band, its compiling included.
    """
    static = next((each for each in ranking if each.name == "static"), None)
    uncompiled = [each for each in ranking if not each.compiled]
    near = [each for each in uncompiled if each.step_s <= (1 + NEAR) * uncompiled[0].step_s]
    eager = min(near, key=lambda each: each.policy.most_microbatches)

    def whole_s(each: Prediction) -> float:
        return each.before_s + steps * each.step_s * (1 + each.band)

    best = min((each for each in ranking if each.compiled), key=whole_s, default=eager)
    best = best if whole_s(best) < steps * eager.step_s else eager
    return best if static is None or best.ratio < 1 else static


def predict(
    spec: PlanSpec, lengths: Lengths, candidates: Mapping[str, Policy], times: StepTimes,
    menu: Callable[[PlanSpec], Sequence[Shape]] = lambda spec: (), num_steps: int | None = None,
) -> list[Prediction]:  # fmt: skip
    """Return the predictions, the fastest first. ``spec``: of the run; ``candidates``: by name, static among them.
    ``menu``: of the shapes that a compiled model's plans of a spec are made for, () for none. Where times of a compiled
    model are known, padded candidates are predicted with it, too.

    A step takes until its last rank is ready, each with noise as measured, times how far steps that were tried were
    off, and ``times.rest_s``. The band is 1.96 times the root of a sum of squares: of the error of the fit, which hits
    both arms of a ratio alike only in part, or where both were tried that of the trials; of the compiled model's times;
    of the standard error over the planned steps; and of ``LAUNCHES``.
    Candidates that memory or the menu does not hold are left out, with a line of the log; where static is, ratios are
    to the first one that is not. Raises InfeasibleError where none is left. An epoch has to have a step.
    Where a second micro-batch does not pay in the first ``TRIED`` steps, it is taken not to pay, nor more of them, and
    the other steps are not planned. ``num_steps``: of the run; where making one program takes as long as all of them do
    with the fastest eager candidate, compiled ones are left out, and so is one that is slower in those first steps.
    """
    steps: dict[str, np.ndarray] = {}
    found: dict[str, tuple[Policy, CostModel, float, bool, float]] = {}
    arms = [(n, policy, times.packed_cost if policy.packs else times.cost, False) for n, policy in candidates.items()]
    padded = [(name, policy) for name, policy in candidates.items() if not policy.packs]
    arms += [(f"{name}{COMPILED}", policy, times.compiled_cost, True) for name, policy in padded]
    one_each: dict[tuple[str, bool], str] = {}  # the arm with one micro-batch a rank
    settled = set[tuple[str, bool]]()  # where more do not pay
    fault: InfeasibleError | None = None
    for name, policy, cost, compiled in arms:
        if cost is None or (compiled and num_steps and not _pays(times, num_steps, steps)):
            continue
        kind = policy.kind, compiled
        planned = replace(spec, policy=policy, cost=cost, steps=STEPS, epochs=None)
        if policy.most_microbatches > 1 and kind in settled:
            steps[name], found[name] = steps[one_each[kind]], (policy, *found[one_each[kind]][1:])
            continue
        try:
            shapes = menu(planned) if compiled else ()
            if shapes:
                planned = replace(planned, cost=on_menu(cost, shapes))
            timed = partial(_timed, name=name, policy=policy, cost=planned.cost, lengths=lengths, times=times)
            streams = sampled(planned, lengths)
            plans = next_plans(streams, TRIED)
            if policy.most_microbatches > 1 and kind in one_each and _microbatches(plans) <= 1:
                settled.add(kind)
                steps[name], found[name] = steps[one_each[kind]], (policy, *found[one_each[kind]][1:])
                continue
            if (
                compiled
                and num_steps
                and timed(plans).mean() > min((each[:TRIED].mean() for each in steps.values()), default=np.inf)
            ):
                continue
            plans += next_plans(streams, STEPS - TRIED)
            seconds = timed(plans)
        except InfeasibleError as error:
            log.info("auto: %s is left out: %s", name, error)
            fault = fault or error
            continue
        steps[name] = seconds
        programs = len(shapes) or 1 if compiled else 0
        found[name] = policy, cost, _microbatches(plans), compiled, programs * times.compile_s
        if policy.most_microbatches == 1:
            one_each[kind] = name
    if fault is not None and not found:
        raise fault
    base = "static" if "static" in found else next(iter(found))
    static = steps[base]
    predictions = []
    for name, (policy, cost, mean, compiled, before_s) in found.items():
        ratio = float(steps[name].mean() / static.mean())
        of_steps = float((steps[name] - ratio * static).std() / (static.mean() * len(static) ** 0.5))
        errors = _error(times, name, base), of_steps / ratio, times.compiled_error * compiled, LAUNCHES
        band = 0.0 if name == base else NORMAL_95 * float(np.linalg.norm(errors))
        step_s = float(steps[name].mean())
        predictions.append(Prediction(name, policy, cost, step_s, ratio, band, mean, compiled, before_s))
    return sorted(predictions, key=lambda each: (each.step_s, each.name != "static"))


def sampled(spec: PlanSpec, lengths: Lengths) -> list[Iterator[StepPlan]]:
    """Return streams of plans that together are a sample of the first epoch.

    One, from its first step on, where samples are shuffled; else one from each of ``BLOCKS`` places, as a curriculum's
    first steps have the shortest samples alone. For policies whose steps are the next samples of the order.
    """
    exchange, size = LocalExchange(spec.world_size), spec.global_batch
    number = len(lengths) // size
    if spec.order.options.kind == "shuffled" or number <= STEPS:
        return [plan_steps(spec, lengths, exchange)]
    middles = [number * (2 * block + 1) // (2 * BLOCKS) for block in range(BLOCKS)]
    starts = [Position(cursor=(middle - STEPS // BLOCKS // 2) * size) for middle in middles]
    return [plan_steps(spec, lengths, exchange, start=start) for start in starts]


def next_plans(streams: Sequence[Iterator[StepPlan]], count: int) -> list[StepPlan]:
    """Return the next plans, ``count`` in all, as many from each stream."""
    return [plan for stream in streams for plan in islice(stream, count // len(streams))]


def _timed(
    plans: Sequence[StepPlan], name: str, policy: Policy, cost: CostModel, lengths: Lengths, times: StepTimes
) -> np.ndarray:
    """Return the seconds of whole steps of a candidate: (steps,)."""
    rest_s = times.compiled_rest_s if name.endswith(COMPILED) else times.rest_s
    return times.off(name.removesuffix(COMPILED)) * step_seconds(plans, lengths, policy, cost, times) + rest_s


def _error(times: StepTimes, name: str, base: str) -> float:
    """Return the error of a ratio's times, as a share."""
    tried = [times.tried.get(each.removesuffix(COMPILED)) for each in (name, base)]
    return times.error if None in tried else float(np.linalg.norm([each.error for each in tried if each]))


def _pays(times: StepTimes, num_steps: int, eager: Mapping[str, np.ndarray]) -> bool:
    """Whether compiled candidates may be faster: a program is made sooner than a run of the eager ones ends."""
    run_s = num_steps * min((float(each.mean()) for each in eager.values()), default=np.inf)
    return times.compile_s < run_s


def _microbatches(plans: Sequence[StepPlan]) -> float:
    """Return the mean number of a rank in a step; 0 of no plans."""
    return float(np.mean([len(micros) for plan in plans for micros in plan.ranks])) if plans else 0.0


def last_ready(seconds: np.ndarray, together: float) -> np.ndarray:
    """Return when the last of ranks that begin at once is ready: (..., ranks) -> (...).

    ``seconds``: of each rank while all compute, which is ``together`` times as long as while it computes alone; with k
    of G computing, 1 + (together - 1) (k - 1) / (G - 1) times. So a rank that goes on when others are ready goes on
    faster.

    >>> float(last_ready(np.array([2.0, 4.0]), 1.0)), float(last_ready(np.array([2.0, 4.0]), 2.0))
    (4.0, 3.0)
    """
    ranks = seconds.shape[-1]
    if together == 1 or ranks == 1:
        return np.asarray(seconds.max(-1))
    alone = np.sort(seconds, axis=-1) / together
    left = np.diff(alone, axis=-1, prepend=0.0)  # alone, from one rank's end to the next one's
    computing = np.arange(ranks, 0, -1)
    return np.asarray((left * (1 + (together - 1) * (computing - 1) / (ranks - 1))).sum(-1))


def step_seconds(
    plans: Sequence[StepPlan], lengths: Lengths, policy: Policy, cost: CostModel, times: StepTimes
) -> np.ndarray:
    """Return the seconds until the last rank of each step is ready, by ``cost`` and its curve: (steps,)."""
    curve = times.packed_curve if policy.packs else times.padded_curve
    costs = _seconds(plans, lengths, cost, curve)
    noise = np.random.default_rng(0).choice(times.noise, (DRAWS, STEPS, costs.shape[1]))
    return np.asarray(last_ready(costs * noise[:, : len(plans)], times.together).mean(0))


def _seconds(plans: Sequence[StepPlan], lengths: Lengths, cost: CostModel, curve: Curve) -> np.ndarray:
    """Return the seconds of each rank's micro-batches: (steps, ranks)."""
    ranks = [rank for plan in plans for rank in plan.ranks]
    of_rank = np.repeat(np.arange(len(ranks)), [len(rank) for rank in ranks])
    seconds = microbatch_seconds([micro for rank in ranks for micro in rank], lengths, cost, curve)
    return np.bincount(of_rank, seconds, len(ranks)).reshape(len(plans), -1)
