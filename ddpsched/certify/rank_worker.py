"""Inside a rank: plan the epoch, resume it, run its telling steps, and hand over what came of it."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from ddpsched.certify.capture import Kept, counted, kept_gradients, trainable
from ddpsched.certify.faults import Absent, Fault, planted, take_own_mean
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

BEYOND = 200  # steps of the second epoch that are planned too, to resume between epochs and within it


@dataclass(frozen=True)
class Planned:
    """Of one process: ``streams[i]`` and ``digests[i]`` of its i-th rank, step by step of the first epoch; ``whole``:
    digests of that epoch and some steps of the next; ``resumed``: (at, digests after resuming behind step at);
    ``telling``: the steps to be run.
    """

    streams: list[list[Ids]]
    digests: list[list[int]]
    whole: list[int]
    resumed: list[tuple[int, list[int]]]
    telling: list[StepPlan]


@dataclass(frozen=True)
class Ran:
    """A step that was run."""

    step: int
    kept: Kept


@dataclass(frozen=True)
class Refused:
    """A step that all ranks left before their optimizers, and why; ``plan``: for they held different ones."""

    step: int
    why: str
    plan: bool


@dataclass(frozen=True)
class Weights:
    """A digest of the weights, before the first step or after the last."""

    digest: str


Tell = Callable[[Planned | Ran | Refused | Weights], None]


def attend(config: RunConfig, fault: Fault | None, folder: Path) -> None:
    """One of several ranks; tells the process that started it. ``folder`` gets rank 0's gradients."""
    samples = config.load_samples()
    with closing(DistributedExecutor(config, samples, World.detect(), force=True)) as executor:
        _attend(config, samples, executor, fault, folder, post)


def attend_alone(config: RunConfig, samples: Samples, fault: Fault | None, folder: Path, tell: Tell) -> None:
    """All ranks in this process, one after another."""
    _attend(config, samples, VirtualExecutor(config, samples, force=True), fault, folder, tell)


def _attend(
    config: RunConfig,
    samples: Samples,
    executor: DistributedExecutor | VirtualExecutor,
    fault: Fault | None,
    folder: Path,
    tell: Tell,
) -> None:
    ranks, model = executor.exchange.ranks, executor.learner.model
    spec = config.plan_spec(executor.caps)
    executor.expect(num_steps(spec, samples.train))

    def plans(start: Position | None = None) -> Iterator[StepPlan]:
        return plan_steps(spec, samples.train, executor.exchange, start=start)

    with counted("planning"):
        whole = list(_beyond_an_epoch(plans()))
    with counted("resuming"):
        resumed = list(_resumed(plans, whole))
    epoch = [plan for plan in whole if plan.epoch == 0]
    steps = telling(epoch, samples)
    at = steps[len(steps) // 2]
    given = planted(epoch, fault, at, ranks[0])
    tell(
        Planned(
            streams=[[plan.rank_ids(rank) for plan in given] for rank in ranks],
            digests=[[plan.digest for plan in given] for _ in ranks],
            whole=[plan.digest for plan in whole],
            resumed=resumed,
            telling=[given[step] for step in steps],
        )
    )
    coordinates = draw_coordinates(sum(p.numel() for _, p in trainable(model)), np.random.default_rng(config.seed))
    tell(Weights(weights_digest(model)))
    for step in steps:
        hook = None
        if fault == "no_scale":
            own = [executor.learner.counts(given[step].rank_ids(r)).of(config.target) for r in range(config.world_size)]
            hook = take_own_mean(model, own, ranks[0])
        if fault == "missing_collective" and step == at and ranks[0] == config.world_size - 1:
            executor.exchange = Absent(executor.exchange, config.world_size)  # type: ignore[assignment]
        path = folder / f"step{step}.npy" if ranks[0] == 0 else None
        try:
            with counted(f"step {step}"), kept_gradients(model, coordinates, path) as kept:
                executor.execute(given[step])
        except (PlanMismatch, NonFiniteError, StepOutOfMemory) as error:
            tell(Refused(step, str(error), isinstance(error, PlanMismatch)))
            return
        if hook is not None:
            hook.remove()
        tell(Ran(step, kept[-1]))
    tell(Weights(weights_digest(model)))


def _beyond_an_epoch(plans: Iterator[StepPlan]) -> Iterator[StepPlan]:
    """The first epoch, and of the second what resuming needs."""
    beyond = 0
    for plan in plans:
        beyond += plan.epoch > 0
        yield plan
        if beyond == BEYOND:
            return


def _resumed(
    plans: Callable[[Position], Iterator[StepPlan]], whole: Sequence[StepPlan]
) -> Iterator[tuple[int, list[int]]]:
    """Digests of what follows a position in mid-epoch, one between epochs and one in the second; each through JSON."""
    length = sum(plan.epoch == 0 for plan in whole)
    for at in sorted({(length - 1) // 2, length - 1, (length + len(whole)) // 2 - 1}):
        after = whole[at].after
        if after is None or at + 1 == len(whole):
            continue
        start = Position.from_dict(json.loads(json.dumps(after.as_dict())))
        rest = islice(plans(start), len(whole) - at - 1)
        yield at, [plan.digest for plan in rest]


def telling(epoch: Sequence[StepPlan], samples: Samples) -> list[int]:
    """Steps in which a wrong gradient shows: the first, the most uneven, and the last, which is often a smaller one."""
    known = not isinstance(samples.train, OnlineTokens)

    def unevenness(step: int) -> tuple[int, int, int]:
        plan = epoch[step]
        micro = [len(rank) for rank in plan.ranks]
        tokens = [_padded_tokens(plan, rank, samples) if known else 0 for rank in range(plan.world_size)]
        return int(np.ptp(plan.counts)), max(micro) - min(micro), max(tokens) - min(tokens)

    last = len(epoch) - 1
    return sorted({0, max(range(1, last), key=unevenness, default=0), last})


def _padded_tokens(plan: StepPlan, rank: int, samples: Samples) -> int:
    return sum(len(micro) * int(samples.train.lengths(micro.ids).max()) for micro in plan.ranks[rank])
