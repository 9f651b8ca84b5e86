"""The work of one rank: plan the epoch, resume it, run selected steps, and report the results."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from ddpsched.certify.capture import CapturedGradient, captured_gradients, counted, trainable
from ddpsched.certify.faults import Fault, planted, skip_next_vote, take_own_mean
from ddpsched.certify.target import draw_coordinates
from ddpsched.config import RunConfig
from ddpsched.data.samples import Samples
from ddpsched.data.token_table import OnlineTokens
from ddpsched.errors import NonFiniteError, PlanMismatch, StepOutOfMemory
from ddpsched.local_ranks import post
from ddpsched.plan import Ids, Position, StepPlan
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.training.distributed import DistributedExecutor
from ddpsched.training.virtual import VirtualExecutor
from ddpsched.training.weights import weights_digest
from ddpsched.world import World

BEYOND = 200  # steps of the second epoch that are planned too, to resume between epochs and within the second


@dataclass(frozen=True)
class Planned:
    """The plans of one process.

    ``streams[i]``, ``digests[i]``: ids and digests of the first epoch's steps, for the process's i-th rank. ``whole``:
    digests of that epoch and of some steps of the next. ``resumed``: (at, digests after resuming behind step at).
    ``selected``: the plans of the steps that are run.
    """

    streams: list[list[Ids]]
    digests: list[list[int]]
    whole: list[int]
    resumed: list[tuple[int, list[int]]]
    selected: list[StepPlan]


@dataclass(frozen=True)
class Ran:
    """A step that was run, and its gradient."""

    step: int
    gradient: CapturedGradient


@dataclass(frozen=True)
class Refused:
    """A step that all ranks left before their optimizers, and why."""

    step: int
    why: str


@dataclass(frozen=True)
class Weights:
    """A digest of the weights, before the first step or after the last."""

    digest: str


Report = Callable[[Planned | Ran | Refused | Weights], None]


def work(
    config: RunConfig, fault: Fault | None, folder: Path, samples: Samples | None = None, report: Report = post
) -> None:
    """Do the work of one rank, or of all ranks where ``executor.kind`` is "virtual".

    ``folder`` gets rank 0's gradients. ``samples`` are loaded where they are not given. ``report`` takes the results;
    by default they go to the process that started the rank.
    """
    samples = config.load_samples() if samples is None else samples
    executor: DistributedExecutor | VirtualExecutor
    if config.executor.kind == "distributed":
        executor = DistributedExecutor(config, samples, World.detect(), force=True)
    else:
        executor = VirtualExecutor(config, samples, force=True)
    with closing(executor):
        ranks, model = executor.exchange.ranks, executor.learner.model
        epoch, whole, resumed = _plan(config, samples, executor)
        steps = select_steps(epoch, samples)
        middle = steps[len(steps) // 2]
        given = planted(epoch, fault, middle, ranks[0])
        streams = [[plan.rank_ids(rank) for plan in given] for rank in ranks]
        digests = [[plan.digest for plan in given] for _ in ranks]
        report(Planned(streams, digests, whole, resumed, [given[step] for step in steps]))
        size = sum(parameter.numel() for _, parameter in trainable(model))
        coordinates = draw_coordinates(size, np.random.default_rng(config.seed))
        report(Weights(weights_digest(model)))
        for step in steps:
            hook = None
            if fault == "no_scale":
                counts = [executor.learner.counts(ids) for ids in map(given[step].rank_ids, range(config.world_size))]
                hook = take_own_mean(model, [count.of(config.target) for count in counts], ranks[0])
            if fault == "missing_collective" and step == middle and ranks[0] == config.world_size - 1:
                skip_next_vote(executor.exchange, config.world_size)
            path = folder / f"step{step}.npy" if ranks[0] == 0 else None
            try:
                with counted(f"step {step}"), captured_gradients(model, coordinates, path) as captured:
                    executor.execute(given[step])
            except (PlanMismatch, NonFiniteError, StepOutOfMemory) as error:
                report(Refused(step, f"{error}{' (see: one plan)' * isinstance(error, PlanMismatch)}"))
                return
            if hook is not None:
                hook.remove()
            report(Ran(step, captured[-1]))
        report(Weights(weights_digest(model)))


def _plan(
    config: RunConfig, samples: Samples, executor: DistributedExecutor | VirtualExecutor
) -> tuple[list[StepPlan], list[int], list[tuple[int, list[int]]]]:
    """Return the first epoch's plans, and ``whole`` and ``resumed`` of ``Planned``.

    Resumed are a position in mid-epoch, one between epochs and one in the second, each through JSON.
    """
    spec = config.plan_spec(executor.caps)
    executor.expect(num_steps(spec, samples.train))
    epoch, whole, resumed = list[StepPlan](), list[StepPlan](), list[tuple[int, list[int]]]()
    with counted("planning"):
        for plan in plan_steps(spec, samples.train, executor.exchange):
            whole.append(plan)
            if plan.epoch == 0:
                epoch.append(plan)
            if len(whole) - len(epoch) == BEYOND:
                break
    with counted("resuming"):
        for at in sorted({(len(epoch) - 1) // 2, len(epoch) - 1, (len(epoch) + len(whole)) // 2 - 1}):
            after = whole[at].after
            if after is not None and at + 1 < len(whole):
                start = Position.from_dict(json.loads(json.dumps(after.as_dict())))
                rest = plan_steps(spec, samples.train, executor.exchange, start=start)
                resumed.append((at, [plan.digest for plan in islice(rest, len(whole) - at - 1)]))
    return epoch, [plan.digest for plan in whole], resumed


def select_steps(epoch: Sequence[StepPlan], samples: Samples) -> list[int]:
    """Return the steps that show a wrong gradient: the first, the most uneven, and the last, often a smaller one."""
    tokens = None if isinstance(samples.train, OnlineTokens) else samples.train

    def unevenness(step: int) -> tuple[int, ...]:
        plan = epoch[step]
        sums = [plan.counts.tolist(), [len(rank) for rank in plan.ranks]]
        if tokens is not None:
            sums.append([sum(len(m) * int(tokens.lengths(m.ids).max()) for m in rank) for rank in plan.ranks])
        return tuple(int(np.ptp(each)) for each in sums)

    last = len(epoch) - 1
    return sorted({0, max(range(1, last), key=unevenness, default=0), last})
