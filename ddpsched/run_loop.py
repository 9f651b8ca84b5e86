"""run(config): the one loop. Plans come in, an executor carries them out, records go to the run's folder."""

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ddpsched.config import RunConfig, dump
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.lengths import Lengths
from ddpsched.data.samples import Samples
from ddpsched.environment import describe
from ddpsched.errors import ConfigError
from ddpsched.exchange import Exchange, Flag
from ddpsched.guard import Guard
from ddpsched.plan import StepPlan
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import num_steps, plan_steps, prefetch_plans
from ddpsched.planning.record_columns import rank_cost
from ddpsched.records import RecordWriter, StepRecord, compact
from ddpsched.run_folder import RunFolder
from ddpsched.simulated import SimulatedExecutor
from ddpsched.watch import Watch, start_watch
from ddpsched.world import World

if TYPE_CHECKING:
    from ddpsched.training.learner import Evaluation

log = logging.getLogger("ddpsched")
LOG_EVERY = 50  # steps


class Executor(Protocol):
    """The executor of plans: it decides which ranks this process runs, and where the seconds come from."""

    @property
    def exchange(self) -> Exchange: ...

    @property
    def caps(self) -> list[int] | None: ...  # of every rank, what its memory allows; None for no limit

    @property
    def facts(self) -> Mapping[str, Any]: ...  # for environment.json: device, num_parameters, clocks

    @property
    def timeline(self) -> dict[str, Any] | None: ...  # of the last step, where it is kept

    def expect(self, total_steps: int) -> None: ...  # so many, which the learning rate is to fall over

    def execute(self, plan: StepPlan) -> list[StepRecord]: ...

    def object(self, flag: Flag) -> bool: ...  # before the next step ends; False where nobody would hear of it

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
        folder = RunFolder(config.run_dir, dump(config), overwrite)
        with folder.held(world.is_main), Guard(folder, world, watch) as guard:
            if not world.is_main:
                folder.await_rank_0(config.executor.timeout_s)
            _run(config, folder, world, guard, force)
    return folder.path


def _run(config: RunConfig, folder: RunFolder, world: World, guard: Guard, force: bool) -> None:
    samples = config.load_samples()
    executor = guard.closing(_executor(config, samples, world, force))
    exchange, spec = executor.exchange, config.plan_spec(executor.caps)
    total_steps = num_steps(spec, samples.train)
    executor.expect(total_steps)
    environment = _environment(config, samples, executor)
    speeds = [Speed() for _ in exchange.ranks] if spec.refined else None
    plans = guard.closing(prefetch_plans(plan_steps(spec, samples.train, exchange, speeds)))
    if config.executor.kind == "distributed":
        guard.watch_peers(exchange, lambda: executor.object(Flag.STOP))
    first = next(plans)  # a solver or caps that cannot plan fail here
    if world.is_main:  # only now is an earlier run of this name given up
        folder.begin(environment)
    exchange.barrier()
    guard.begun()
    _say(config, environment)
    with RecordWriter(folder.path, world.rank) as writer:
        observer = _Observer(spec, samples.train, speeds)
        output = _Output(folder, writer, world.is_main, total_steps, config.train.eval_every)
        _loop(itertools.chain([first], plans), executor, output, observer)
    environment |= observer.facts()
    truncated = exchange.total(samples.train.num_truncated)
    exchange.barrier()  # every rank's records are written
    if world.is_main:
        if config.data.lengths == "online":  # each rank has seen its own windows
            environment["num_truncated"] = int(truncated)
        folder.write_environment(environment)
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


@dataclass(frozen=True)
class _Output:
    """The destination of the records and evaluations of a run of about ``total_steps``."""

    folder: RunFolder
    writer: RecordWriter
    is_main: bool
    total_steps: int
    eval_every: int

    def write(self, records: Sequence[StepRecord], timeline: dict[str, Any] | None) -> None:
        for record in records:
            self.writer.write(record)
        if timeline is not None:
            self.writer.write_timeline(timeline)

    def is_due(self, step: int) -> bool:
        """Whether the model is evaluated after so many steps, and not for the last time."""
        return self.eval_every > 0 and step % self.eval_every == 0 and step < self.total_steps


class _Observer:
    """Counts what was computed here, and learns each rank's speed, where plans follow it."""

    def __init__(self, spec: PlanSpec, lengths: Lengths, speeds: Sequence[Speed] | None) -> None:
        self._spec, self._lengths, self._speeds = spec, lengths, speeds
        self._num_tokens = self._padded_tokens = 0
        self._runs = np.zeros(len(lengths), dtype=np.int64) if spec.policy.repeats else None  # of each sample

    def see(self, plan: StepPlan, records: Sequence[StepRecord]) -> None:
        """Note a step that was run; speeds are for the plan after next."""
        self._num_tokens += sum(record.num_tokens for record in records)
        self._padded_tokens += sum(record.padded_tokens for record in records)
        if self._runs is not None:
            self._runs[plan.ids] += 1
        for speed, record in zip(self._speeds or (), records, strict=self._speeds is not None):
            speed.add(rank_cost(self._spec.cost, plan, record.rank, self._lengths), record.compute_s or 0.0)

    def facts(self) -> dict[str, Any]:
        """Log what was padding, and what ran never or again; return the latter, for environment.json."""
        share = 1 - self._num_tokens / max(1, self._padded_tokens)
        log.info("%.1f %% of the %d tokens computed here were padding", 100 * share, self._padded_tokens)
        if self._runs is None:
            return {}
        again, never = int(np.maximum(self._runs - 1, 0).sum()), int((self._runs == 0).sum())
        log.info("of %d samples %d never ran, and %d runs were of one again", len(self._runs), never, again)
        return {"num_never_run": never, "num_run_again": again}


def _loop(plans: Iterator[StepPlan], executor: Executor, output: _Output, observer: _Observer) -> None:
    full: OSError | None = None
    done = evaluated = 0
    for plan in plans:
        records = executor.execute(plan)
        observer.see(plan, records)
        done = plan.step + 1
        try:
            output.write(records, executor.timeline)
        except OSError as error:
            if not executor.object(Flag.DISK_FULL):
                raise
            full = error  # the others learn of it by this rank's next vote
        if done % LOG_EVERY == 0:
            loss = next((f", loss {record.loss:.4f}" for record in records if record.loss is not None), "")
            log.info("step %d of about %d%s", done, output.total_steps, loss)
        if output.is_due(done):
            _evaluate(executor, output, done)
            evaluated = done
    if full is not None:
        raise full
    if evaluated < done:
        _evaluate(executor, output, done)


def _evaluate(executor: Executor, output: _Output, step: int) -> None:
    sums = executor.evaluate()
    if sums is None or not output.is_main:
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
    output.folder.add_evaluation(row)
    log.info("after step %d: dev loss %.4f, accuracy %.4f (majority %.4f)", *list(row.values())[:3], row["majority"])


def _perplexity(loss: float) -> float | None:
    """exp(loss); None beyond what a number holds, or where there is no loss."""
    return math.exp(loss) if loss < 700 else None


def _executor(config: RunConfig, samples: Samples, world: World, force: bool) -> Executor:
    if config.executor.kind == "simulated":
        return SimulatedExecutor(config, samples.train)
    if config.executor.kind == "virtual":
        from ddpsched.training.virtual import VirtualExecutor

        return VirtualExecutor(config, samples, force)
    from ddpsched.training.distributed import DistributedExecutor

    return DistributedExecutor(config, samples, world, force)


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


def _say(config: RunConfig, environment: dict[str, Any]) -> None:
    """Log what a user would not expect."""
    for remark in config.policy.remarks:
        log.info("%s", remark)
    seen, size = (config.steps or 0) * config.global_batch, environment["num_samples"]
    if config.order.sorts and config.order.pacing is None and not config.policy.varies and 0 < seen < size:
        log.info("%d steps run %d of %d samples, the easiest; use epochs, or order.pacing", config.steps, seen, size)
    if environment["num_over_budget"]:
        log.info(
            "%d samples are longer than policy.max_tokens_for_batch, and run alone", environment["num_over_budget"]
        )


def _environment(config: RunConfig, samples: Samples, executor: Executor) -> dict[str, Any]:
    machine, train = describe(), samples.train
    known = config.data.lengths == "known"
    facts = executor.facts
    return {
        **machine,
        **facts,
        "device": facts["device"] or machine["cpu"],
        "threads": config.executor.threads,
        "data": samples.dataset.source,
        "num_samples": len(train),
        "num_truncated": train.num_truncated if known else None,
        "num_over_budget": config.policy.over_budget(train.lengths(np.arange(len(train)))) if known else None,
        "num_dropped_tokens": samples.num_dropped_tokens,
        "caps": executor.caps,
    }
