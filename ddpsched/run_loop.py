"""run(config): the one loop. Plans come in, an executor executes them, records go to the run's folder."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.advise.choice import settled
from ddpsched.alike import failing_together, same_start
from ddpsched.config import RunConfig, dump, parse
from ddpsched.costs.memory_cap import UNLIMITED
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.quarantine import write_quarantine
from ddpsched.data.samples import Samples
from ddpsched.environment import describe
from ddpsched.errors import ConfigError, RunFinishedError, RunStopped, StepOutOfMemory
from ddpsched.exchange import Flag
from ddpsched.executors import Executor, executor_of, met
from ddpsched.guard import Guard
from ddpsched.heartbeat import Beat, Heartbeat, no_heartbeat
from ddpsched.monitor.progress import ProgressOfRun
from ddpsched.monitor.sending import Sending
from ddpsched.monitor.sinks import Naming, check_installed, open_sinks
from ddpsched.plan_stream import PlanStream
from ddpsched.records import RecordWriter, StepRecord, compact
from ddpsched.recovery.keeper import Keeper
from ddpsched.recovery.start import find_start, identity_of
from ddpsched.run_folder import RunFolder
from ddpsched.run_totals import Evaluations, Tally
from ddpsched.step_plan import StepPlan
from ddpsched.watch import Watch, start_watch
from ddpsched.world import World

log = logging.getLogger("ddpsched")


def run(
    config: RunConfig,
    *,
    overwrite: bool = False,
    restart: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    launch: Mapping[str, Any] | None = None,
) -> Path:
    """Run to the end and return the run's folder; under torchrun, as one rank of many.

    A run of this name that was stopped goes on from its last checkpoint, if it wrote one. ``restart``: it begins anew
    instead. ``overwrite``: replace a finished run of this name, as soon as the new one can start. ``force``: use
    calibrations of another model or device, which are refused else. ``watch``: this process's, where it was started
    before the config was read; the caller closes it. ``launch``: the runs that its times are compared with, for
    environment.json.

    Raises RunExistsError where a finished run has this name and RunHeldError where a living one has, ConfigError and
    DataError before anything is written, RunError for what fails later. Then status.json says "failed" and the reason,
    on whichever rank it happened.
    """
    config = as_launched(config)
    world = world_of(config)
    with watched(config, watch) as watch:
        try:
            folder = RunFolder(config.run_dir, dump(config), overwrite, restart)
            for _ in run_steps(config, folder, world, watch, force=force, launch=launch):
                pass
        except RunFinishedError as finished:  # by the ranks before these, which have written all that there is
            log.info("%s", finished)
    return config.run_dir


def run_steps(
    config: RunConfig,
    folder: RunFolder,
    world: World,
    watch: Watch | None,
    *,
    force: bool = False,
    launch: Mapping[str, Any] | None = None,
) -> Generator[int, None, None]:
    """Run, and yield the number of steps done: as soon as all ranks are ready, then after each step.

    Between two steps other runs of this process may have their turn. ``launch``: which runs these are, for
    environment.json. An error thrown in here is this run's, and ends it as one of its steps would. Raises as ``run``.
    """
    with folder.held(world.is_main), Guard(folder, world, watch) as guard:
        if not world.is_main:
            folder.lock.await_rank_0(config.executor.timeout_s, folder.refuse_finished)
        for done in _run(config, folder, world, guard, force, launch):
            with guard.aside():
                yield done


def _run(
    config: RunConfig, folder: RunFolder, world: World, guard: Guard, force: bool, launch: Mapping[str, Any] | None
) -> Iterator[int]:
    check_installed(config.log.sinks)
    guard.resources.enter_context(met(config, world))
    samples = config.load_samples()
    start = find_start(folder.path, identity_of(config, samples), folder.may_go_on())
    executor = guard.resources.enter_context(closing(executor_of(config, samples, world, force)))
    config, chosen = settled(config, executor, samples, folder.path if start.goes_on else None, force)
    train, menu = samples.train, config.menu(samples.train, start.goes_on, start.batch_ranks)
    executor.use(config, menu)
    exchange, spec = executor.exchange, config.plan_spec(executor.caps, start.batch_ranks, menu)
    executor.cap = UNLIMITED if spec.caps is None else spec.caps[world.rank]
    same_start(start, exchange)
    environment = _environment(config, samples, executor) | chosen
    environment["contents"] = start.identity["contents"]
    environment["launch"] = None if launch is None else dict(launch)
    speeds = [Speed() for _ in exchange.ranks] if spec.refined else None
    if start.checkpoint is not None:
        executor.restore(start.checkpoint)
        start.restore_speeds(speeds or (), exchange.ranks, config.world_size)
    position = start.position if start.goes_on else None
    plans = PlanStream(spec, train, exchange, speeds, position, start.ranks_before, start.rooms(config.world_size))
    guard.resources.enter_context(closing(plans))
    total_steps = plans.num_steps()
    executor.expect(total_steps, start.position.step)
    if config.executor.kind == "distributed":
        guard.watch_peers(exchange, lambda: executor.object(Flag.STOP))
    first = list(itertools.islice(plans, 1))  # a solver or caps that cannot plan fail here
    if world.is_main:  # only now is an earlier run of this name given up
        environment["starts"] = start.listed(config.world_size)
        sending = _sending(config, folder, environment["starts"])
        guard.resources.callback(sending.close, failed=True)
        start.rewind()
        sizes = {"world_size": config.world_size, "global_batch": config.global_batch}
        about = config.labels | sizes | {"peer": getattr(config.policy, "peer", None)}
        folder.begin(environment, start.goes_on, about=about, total_steps=total_steps)
        sending.begin()
    exchange.barrier()
    guard.begun(start.goes_on)
    beat = no_heartbeat
    if config.executor.kind == "distributed":
        heart = guard.resources.enter_context(closing(Heartbeat(folder.path / "logs", world.rank)))
        executor.beat_into(heart)
        beat = heart.beat
    if start.goes_on:
        log.info("going on after step %d", start.position.step)
    if world.is_main and config.data.on_bad == "skip":
        write_quarantine(folder.path, samples.dataset.quarantined)
    _log_remarks(config, environment)
    evaluations = Evaluations(folder, world.is_main, config.train.eval_every, total_steps)
    # rank 0's file, so that all evaluate together
    evaluated = int(exchange.vote(np.full((len(exchange.ranks), 1), evaluations.last(), dtype=np.int64))[0, 0])
    tally = Tally(spec, train, speeds or ())
    if start.goes_on:
        tally.count(folder.path)
    snapshot = executor.snapshot() if config.train.checkpoint_every else None
    takes_turns = launch is not None and launch.get("how") == "interleaved"
    keeper = Keeper(config, world.rank, exchange, snapshot, tally.speeds, start)
    progress = ProgressOfRun(total_steps, start.position.step, has_bar=world.is_main and not takes_turns)
    if takes_turns:
        plans.settle()
    yield start.position.step
    writing = closing(RecordWriter(folder.path, world.rank, start.goes_on))
    with writing as writer, closing(keeper), closing(progress):
        try:
            for plan, records in _loop(
                executor, plans, itertools.chain(first, plans), writer, evaluations, keeper, beat,
                done=start.position.step, evaluated=evaluated,
            ):  # fmt: skip
                tally.add(plan, records)
                progress.add(plan.step + 1, records)
                if world.is_main:
                    sending.look()
                keeper.checkpoint(plan, plans.rooms)
                beat("plan", plan.step + 1)
                if takes_turns:
                    plans.settle()
                yield plan.step + 1
        except RunStopped:  # of all ranks alike, before they changed their weights
            keeper.stopped(plans.rooms)
            guard.hold_reports()
            exchange.barrier()  # rank 0 has its checkpoint: a rank that ends before would look like one that died
            raise
        keeper.finish()
    environment |= tally.summary() | {"ledger": keeper.head}
    # a rank alone ends its process, and so all; ranks whose runs take turns have others to go on with
    together = partial(failing_together, exchange, guard) if takes_turns else nullcontext
    with together():
        if config.train.save_model:
            executor.save_model(folder.path / "model")
    truncated = exchange.total(train.num_truncated)
    exchange.barrier()  # every rank's records are written
    with together():
        if world.is_main:
            if config.data.lengths == "online":  # each rank knows its windows alone
                environment["num_truncated"] = int(truncated)
            folder.write_environment(environment)
            folder.done(compact(folder.path))
            sending.close(failed=False)  # only now: whatever a sink waits for, the run is done
            folder.lock.give_back()  # before any rank ends: its caller may begin another run in this folder at once
    exchange.part(guard.is_done)  # until then the other ranks can report a failure of rank 0


def _sending(config: RunConfig, folder: RunFolder, starts: Sequence[Mapping[str, Any]]) -> Sending:
    """Return the sinks that a config names, open. Raises ConfigError where one cannot begin."""
    naming = Naming(
        folder.path, config.study, config.name, config.model_dump(mode="json"),
        goes_on=len(starts) > 1, begun=str(starts[0]["at"]),
    )  # fmt: skip
    sinks = open_sinks(config.log.sinks, naming)
    return Sending(sinks, folder.path, config.target == "token_mean", folder.note_sinks)


@contextmanager
def watched(config: RunConfig, watch: Watch | None) -> Iterator[Watch | None]:
    """Yield the watch that this run needs: the one given, or a new one, where it is one rank of many."""
    if config.executor.kind != "distributed":
        if watch is not None:
            watch.close()
        yield None
    elif watch is not None:
        try:
            yield watch
        finally:
            watch.stop()
    else:
        started = start_watch()
        with closing(started) if started is not None else nullcontext():
            yield started


def _loop(
    executor: Executor,
    stream: PlanStream,
    plans: Iterable[StepPlan],
    writer: RecordWriter,
    evaluations: Evaluations,
    keeper: Keeper,
    beat: Beat,
    done: int,
    evaluated: int,
) -> Iterator[tuple[StepPlan, list[StepRecord]]]:
    """Execute all plans; write records, timeline and evaluations; yield each plan with its records here.

    ``done``, ``evaluated``: steps before the first plan, and those before the last evaluation.
    """
    full: OSError | None = None
    for planned in plans:
        plan, records = _executed(executor, planned, stream)
        done = plan.step + 1
        try:
            writer.write(*records, timeline=executor.timeline)
            keeper.commit(plan, records)
        except OSError as error:
            if not executor.object(Flag.DISK_FULL):
                raise
            full = error  # the others learn of it by this rank's next vote
        if evaluations.are_due(done):
            beat("evaluation", plan.step)
            evaluations.add(done, executor.evaluate())
            evaluated = done
        beat("checkpoint", plan.step)
        yield plan, records
    if full is not None:
        raise full
    if evaluated < done:
        evaluations.add(done, executor.evaluate())


def _executed(executor: Executor, planned: StepPlan, stream: PlanStream) -> tuple[StepPlan, list[StepRecord]]:
    """Execute a step; return its plan as it ran, and its records.

    Where ranks run out of memory, the step is repeated with their micro-batches cut into halves, and later plans give
    them no more than fitted then. Raises StepOutOfMemory where one sample does not fit, or no step can be repeated.
    """
    plan, short = planned, set[int]()
    while True:
        try:
            records = executor.execute(plan)
            break
        except StepOutOfMemory as error:
            smaller = plan.halved(error.ranks) if error.ranks and executor.repeats else None
            if smaller is None:
                raise
            short |= {*error.ranks}
            log.warning("step %d: ranks %s ran out of memory; repeated in halves", plan.step, [*error.ranks])
        executor.recover()  # only now is the error's trace gone, with all that the step had allocated
        plan = smaller
    if short and stream.lower({rank: executor.needs[rank] for rank in short}):
        executor.expect(stream.num_steps(), plan.step + 1)
    return plan, records


def as_launched(config: RunConfig) -> RunConfig:
    """Return the config with the world size that the launcher started, if it is elastic. Raises ConfigError."""
    size = World.detect().size
    if not config.executor.elastic or size == config.world_size:
        return config
    policy = config.policy.resized(size, config.global_batch).model_dump(exclude_none=True)
    values = config.model_dump(exclude_none=True) | {"world_size": size, "policy": policy}
    return parse(values, f"executor.elastic, {size} ranks")


def world_of(config: RunConfig) -> World:
    """Return this process's rank and world size. Raises ConfigError where launcher and config disagree."""
    world = World.detect()
    if config.executor.kind != "distributed":
        if world.size > 1:
            raise ConfigError(
                f"executor.kind = {config.executor.kind!r} runs all ranks in one process, but {world.size} were "
                f"started; start one, or set executor.kind=distributed world_size={world.size}"
            )
        return World()
    if world.size != config.world_size:
        raise ConfigError(
            f"world_size = {config.world_size}, but {world.size} process(es) were started; start them with: "
            f"torchrun --standalone --nproc-per-node {config.world_size} -m ddpsched train CONFIG "
            f'(or set world_size={world.size}, or executor.kind="virtual")'
        )
    return world


def _log_remarks(config: RunConfig, environment: dict[str, Any]) -> None:
    """Log what a user would not expect."""
    for remark in config.policy.remarks:
        log.info("%s", remark)
    seen, size = (config.steps or 0) * config.global_batch, environment["num_samples"]
    if config.order.sorts and config.order.pacing is None and not config.policy.varies and 0 < seen < size:
        log.info("%d steps run %d of %d samples, the easiest; use epochs, or order.pacing", config.steps, seen, size)
    if over := environment["num_over_budget"]:
        log.info("%d samples are longer than policy.max_tokens_for_batch, and run alone", over)


def _environment(config: RunConfig, samples: Samples, executor: Executor) -> dict[str, Any]:
    machine, train, known = describe(), samples.train, config.data.lengths == "known"
    return {
        **machine,
        **executor.facts,
        "device": executor.facts["device"] or machine["cpu"],
        "threads": config.executor.threads,
        "data": samples.dataset.source,
        "num_samples": len(train),
        "num_quarantined": len(samples.dataset.quarantined),
        "num_truncated": train.num_truncated if known else None,
        "num_over_budget": config.policy.over_budget(train.lengths(np.arange(len(train)))) if known else None,
        "num_dropped_tokens": samples.num_dropped_tokens,
        "caps": executor.caps,
    }
