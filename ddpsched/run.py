"""run(config): the one loop. Plans come in, an executor carries them out, records go to the run's folder."""

import itertools
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.costs.kinds import cost_model
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.samples import Samples, load_samples
from ddpsched.environment import describe
from ddpsched.errors import ConfigError
from ddpsched.exchange import Exchange, Flag
from ddpsched.guard import Guard
from ddpsched.plan import StepPlan
from ddpsched.planning.planner import ahead, num_steps, plan_steps
from ddpsched.planning.policies.pool import over_budget
from ddpsched.planning.record_columns import rank_cost
from ddpsched.planning.simulated import SimulatedExecutor
from ddpsched.records import RecordWriter, StepRecord, compact
from ddpsched.run_folder import RunFolder
from ddpsched.watch import Watch, start_watch
from ddpsched.world import World

if TYPE_CHECKING:
    from ddpsched.training.distributed import DistributedExecutor
    from ddpsched.training.learner import Evaluation

log = logging.getLogger("ddpsched")
LOG_EVERY = 50  # steps


class Executor(Protocol):
    """What carries out plans: which ranks this process owns, and where the seconds come from."""

    @property
    def exchange(self) -> Exchange: ...

    @property
    def caps(self) -> list[int] | None: ...  # of this process's ranks

    @property
    def world_caps(self) -> list[int] | None: ...

    def expect(self, total_steps: int) -> None: ...  # so many, which the learning rate is to fall over

    def execute(self, plan: StepPlan) -> list[StepRecord]: ...

    def evaluate(self) -> "Evaluation | None": ...

    def close(self) -> None: ...


def run(config: RunConfig, *, overwrite: bool = False, force: bool = False, watch: Watch | None = None) -> Path:
    """Run to the end and return the run's folder; under torchrun, as one rank of many.

    Raises RunExistsError where a finished run has this name and RunHeldError where
    a living one has, ConfigError and DataError before anything is written, RunError
    for what goes wrong on the way; then status.json says "failed" and why, on
    whichever rank it happened. With ``overwrite`` the finished run is given up only
    when the new one can start. ``force`` uses calibrations of another model or
    device, which are refused else. ``watch``: this process's, where it was started
    before the config was read; the caller's to close.
    """
    world = _world(config)
    with _watched(config, watch) as watch:
        folder = RunFolder(config, overwrite)
        with folder.held(world.is_main), Guard(folder, world, watch) as guard:
            if not world.is_main:
                folder.await_rank_0(config.executor.timeout_s)
            _run(config, folder, world, guard, force)
    return folder.path


def _run(config: RunConfig, folder: RunFolder, world: World, guard: Guard, force: bool) -> None:
    samples = load_samples(config)
    total_steps = num_steps(config, samples.train)
    executor = guard.closing(_executor(config, samples, total_steps, world, force))
    if config.policy.fills and executor.world_caps is not None:  # smaller micro-batches are more steps
        total_steps = num_steps(config, samples.train, executor.world_caps)
        executor.expect(total_steps)
    exchange, environment = executor.exchange, _environment(config, samples, executor)
    speeds = [Speed() for _ in exchange.ranks] if config.cost.online else None
    plans = guard.closing(ahead(_plans(config, samples, executor, speeds)))
    if config.executor.kind == "distributed":
        guard.watch_peers(exchange, lambda: _distributed(executor).object(Flag.STOP))
    first = next(plans)  # a cost, a solver or caps that cannot plan fail here
    if world.is_main:  # only now is an earlier run of this name given up
        folder.begin(environment)
    exchange.barrier()
    guard.begun()
    _say(config, environment)
    with RecordWriter(folder.path, world.rank) as writer:
        steps = _observed(config, itertools.chain([first], plans), executor, samples, speeds)
        _loop(config, steps, executor, writer, folder, world, total_steps, environment)
    truncated = exchange.total(samples.train.num_truncated)
    exchange.barrier()  # every rank's records are written
    if world.is_main:
        if config.data.lengths == "online":  # each rank has seen its own windows
            folder.write_environment({**environment, "num_truncated": int(truncated)})
        compact(folder.path)
        folder.done()
        folder.let_go()  # before any rank leaves, which may begin another run in this folder at once
    exchange.part(guard.is_done)  # until then the others are there to say what became of rank 0


@contextmanager
def _watched(config: RunConfig, watch: Watch | None) -> Iterator[Watch | None]:
    """The watch that this run needs: the one given, or one of its own where it is one rank of many."""
    if config.executor.kind != "distributed":
        if watch is not None:
            watch.close()
        yield None
    elif watch is not None:
        yield watch
    else:
        own = start_watch()
        try:
            yield own
        finally:
            if own is not None:
                own.close()


def _plans(config: RunConfig, samples: Samples, executor: Executor, speeds: list[Speed] | None) -> Iterator[StepPlan]:
    if config.policy.kind == "peer":
        from ddpsched.peers.plans import peer_plans

        return peer_plans(config, samples.train)
    return plan_steps(config, samples.train, executor.exchange, executor.caps, speeds)


def _observed(
    config: RunConfig,
    plans: Iterator[StepPlan],
    executor: Executor,
    samples: Samples,
    speeds: list[Speed] | None,
) -> Iterator[tuple[StepPlan, list[StepRecord]]]:
    """Each plan carried out; what its ranks measured goes into their speeds, which the plan after next is made from."""
    cost = cost_model(config.cost)
    for plan in plans:
        records = executor.execute(plan)
        for speed, record in zip(speeds or [], records, strict=speeds is not None):
            speed.add(rank_cost(cost, plan, record.rank, samples.train), record.compute_s or 0.0)
        yield plan, records


def _loop(
    config: RunConfig,
    steps: Iterator[tuple[StepPlan, list[StepRecord]]],
    executor: Executor,
    writer: RecordWriter,
    folder: RunFolder,
    world: World,
    total_steps: int,
    environment: dict[str, Any],
) -> None:
    full: OSError | None = None
    done = real = computed = evaluated = 0
    runs = np.zeros(environment["num_samples"], dtype=np.int64)  # of each sample
    for plan, records in steps:
        done = plan.step + 1
        if config.policy.replacement:
            runs += np.bincount(plan.ids, minlength=len(runs))
        real += sum(record.num_tokens for record in records)
        computed += sum(record.padded_tokens for record in records)
        try:
            for record in records:
                writer.write(record)
            if config.executor.timeline:
                writer.write_timeline(_distributed(executor).timeline)
        except OSError as error:
            if config.executor.kind != "distributed":
                raise
            full = error  # the others learn of it by this rank's next vote
            _distributed(executor).object(Flag.DISK_FULL)
        if done % LOG_EVERY == 0:
            loss = next((f", loss {record.loss:.4f}" for record in records if record.loss is not None), "")
            log.info("step %d of about %d%s", done, total_steps, loss)
        if config.train.eval_every and done % config.train.eval_every == 0 and done < total_steps:
            _evaluate(executor, folder, world, done)
            evaluated = done
    if full is not None:
        raise full
    log.info("%.1f %% of the %d tokens computed here were padding", 100 * (1 - real / max(1, computed)), computed)
    if config.policy.replacement:
        again, never = int(np.maximum(runs - 1, 0).sum()), int((runs == 0).sum())
        log.info(
            "policy.replacement: of %d samples %d never ran, and %d runs were of one again", len(runs), never, again
        )
        environment |= {"num_never_run": never, "num_run_again": again}
        if world.is_main:
            folder.write_environment(environment)
    if evaluated < done:
        _evaluate(executor, folder, world, done)


def _evaluate(executor: Executor, folder: RunFolder, world: World, step: int) -> None:
    sums = executor.evaluate()
    if sums is None or not world.is_main:
        return
    loss = sums.loss_sum / sums.count
    learns_tokens = sums.num_targets is not None
    row = {
        "step": step,
        "loss": loss,
        "accuracy": sums.num_correct / sums.count,
        "num_samples": int(sums.num_samples),
        "majority": sums.majority,
        "perplexity": _perplexity(loss) if learns_tokens else None,
        "num_targets": None if sums.num_targets is None else int(sums.num_targets),
    }
    folder.add_evaluation(row)
    log.info("after step %d: dev loss %.4f, accuracy %.4f (majority %.4f)", *list(row.values())[:3], row["majority"])


def _perplexity(loss: float) -> float | None:
    """exp(loss); None beyond what a number holds, or where there is no loss."""
    return math.exp(loss) if loss < 700 else None


def _executor(config: RunConfig, samples: Samples, total_steps: int, world: World, force: bool) -> Executor:
    if config.executor.kind == "simulated":
        return SimulatedExecutor(config, samples.train)
    if config.executor.kind == "virtual":
        from ddpsched.training.virtual import VirtualExecutor

        return VirtualExecutor(config, samples, total_steps, force)
    from ddpsched.training.distributed import DistributedExecutor

    return DistributedExecutor(config, samples, total_steps, world, force)


def _distributed(executor: Executor) -> "DistributedExecutor":
    from ddpsched.training.distributed import DistributedExecutor

    assert isinstance(executor, DistributedExecutor)
    return executor


def _world(config: RunConfig) -> World:
    """This process among the ranks; ConfigError where launcher and config disagree."""
    world = World.detect()
    if config.executor.kind != "distributed":
        if world.size > 1:
            raise ConfigError(
                f"executor.kind = {config.executor.kind!r} plays all ranks in one process, but {world.size} were "
                f"started; start one, or set executor.kind=distributed world_size={world.size}"
            )
        return World()
    if world.size != config.world_size:
        raise ConfigError(
            f"world_size = {config.world_size}, but {world.size} process(es) were started; start them with: "
            f"torchrun --standalone --nproc-per-node {config.world_size} -m experiments.train CONFIG "
            f'(or set world_size={world.size}, or executor.kind="virtual")'
        )
    return world


def _over_budget(config: RunConfig, samples: Samples) -> int | None:
    """How many samples are longer than a pool's budget, and run alone; None for other policies."""
    budget = config.policy.max_tokens_for_batch
    if config.policy.kind != "pool":
        return None
    assert not isinstance(budget, list), "the config refuses two budgets"
    return over_budget(samples.train.lengths(np.arange(len(samples.train))), budget)


def _say(config: RunConfig, environment: dict[str, Any]) -> None:
    """What a user would not expect."""
    if config.policy.sequence_packing and "strategy" in config.policy.model_fields_set:
        log.info("policy.sequence_packing fills rows by their sum of tokens; policy.strategy is ignored")
    seen, size = (config.steps or 0) * config.global_batch, environment["num_samples"]
    if config.order.sorts and config.order.pacing is None and not config.policy.fills and 0 < seen < size:
        log.info("%d steps run %d of %d samples, the easiest; use epochs, or order.pacing", config.steps, seen, size)
    if environment["num_over_budget"]:
        log.info(
            "%d samples are longer than policy.max_tokens_for_batch, and run alone", environment["num_over_budget"]
        )


def _environment(config: RunConfig, samples: Samples, executor: Executor) -> dict[str, Any]:
    learner = getattr(executor, "learner", None)
    device = None if learner is None else learner.device
    name = None
    if device is not None and device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    machine = describe()
    return {
        **machine,
        "device": name or ("none: simulated" if device is None else machine["cpu"]),
        "threads": config.executor.threads,
        "data": samples.dataset.source,
        "num_samples": len(samples.train),
        "num_truncated": samples.train.num_truncated if config.data.lengths == "known" else None,
        "num_over_budget": _over_budget(config, samples),
        "num_dropped_tokens": getattr(samples.train, "num_dropped", None),
        "num_parameters": None if learner is None else learner.num_parameters,
        "caps": executor.world_caps,
        "clocks": [asdict(clock) for clock in getattr(executor, "clock_offsets", [])] or None,
    }
