"""The choice of policy auto: times of this model are measured or kept, each candidate predicted, the fastest taken."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

from ddpsched.config import CompileConfig, RunConfig
from ddpsched.costs.calibration import Seconds
from ddpsched.costs.config import CostConfig
from ddpsched.costs.cost_model import CostModel, padded_tokens
from ddpsched.costs.shape_menu import Shape
from ddpsched.costs.step_times import QUIET, StepTimes, calibrated_times, evenly, keep, kept_in, load_kept
from ddpsched.data.lengths import Lengths
from ddpsched.data.samples import Samples
from ddpsched.environment import versions
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import Exchange
from ddpsched.executors import Executor
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import num_steps
from ddpsched.planning.policies import POLICIES
from ddpsched.planning.policies.auto import Auto
from ddpsched.planning.policy import Policy
from ddpsched.planning.prediction import COMPILED, STEPS, Prediction, next_plans, predict, sampled, taken
from ddpsched.records import read_json
from ddpsched.simulated import SimulatedExecutor
from ddpsched.step_plan import Ids
from ddpsched.terminal import plain_console

log = logging.getLogger("ddpsched")
SHAPES, ROWS = 16, 8  # padded micro-batches and packed rows that are measured
MEASURED_S, TRIED_S = 45.0, 10.0  # of measuring and trying together, and of trying at least
WIDTH = 80  # of the ranking
ENTRY = "auto"  # of environment.json
CHANGED = ("policy", "cost", "compile")  # tables of the config that a choice sets


@dataclass(frozen=True)
class Choice:
    """The choice of a run.

    ``given``: the config of policy auto. ``ranking``: the fastest first. ``times``: measured. ``seconds``: that
    choosing took, the measurement aside. ``chosen``: the one that is taken, on rank 0's word.
    """

    given: RunConfig
    ranking: list[Prediction]
    times: StepTimes
    seconds: float
    chosen: Prediction

    @property
    def config(self) -> RunConfig:
        """The config that a run goes on with: with the policy that is taken, its cost, and compiled or not."""
        return as_predicted(self.given, self.chosen)

    @property
    def facts(self) -> dict[str, Any]:
        """An entry of environment.json, from which a run that goes on takes the same choice."""
        ranking = [
            {"name": p.name, "step_s": p.step_s, "ratio": p.ratio, "band": p.band, "microbatches": p.microbatches}
            for p in self.ranking
        ]
        changed = {name: getattr(self.config, name).model_dump() for name in CHANGED}
        known = {"chosen": self.chosen.name, "seconds": round(self.seconds, 4)}
        return {ENTRY: {**known, **changed, "ranking": ranking, "times": self.times.model_dump()}}

    def table(self) -> Table:
        """Return the ranking as a table."""
        rows = Table(title="predicted, the fastest first", title_justify="left")
        for head in ("policy", "step ms", "times static", "micro-batches", ""):
            rows.add_column(head, justify="left" if head in ("policy", "") else "right")
        for each in self.ranking:
            band = "" if each.name == "static" else f" ± {each.band * each.ratio:.3f}"
            mark = "taken" if each is self.chosen else ""
            cells = f"{1e3 * each.step_s:.1f}", f"{each.ratio:.3f}{band}", f"{each.microbatches:.2f}"
            rows.add_row(each.name, *cells, mark)
        return rows


def settled(
    config: RunConfig, executor: Executor, samples: Samples, folder: Path | None, force: bool = False
) -> tuple[RunConfig, dict[str, Any]]:
    """Return the config that a run goes on with, and an entry for environment.json; all ranks call it together.

    ``folder``: of a run that goes on, which has chosen before; else None. ``force``: measure anew, whatever is kept.
    A config of another policy is returned as it is.
    """
    if not isinstance(config.policy, Auto):
        return config, {}
    stored = {} if folder is None else read_json(folder / "environment.json", "begin anew with --restart")
    if before := stored.get(ENTRY):
        policy = POLICIES[before["policy"]["kind"]].model_validate(before["policy"])
        cost, compiled = CostConfig.model_validate(before["cost"]), CompileConfig.model_validate(before["compile"])
        return config.model_copy(update={"policy": policy, "cost": cost, "compile": compiled}), {ENTRY: before}
    choice = choose(config, executor, samples, force)
    if 0 in executor.exchange.ranks:
        plain_console(at_least=WIDTH).print(choice.table())
    log.info("auto takes %s", choice.chosen.name)
    return choice.config, choice.facts


def choose(config: RunConfig, executor: Executor, samples: Samples, force: bool = False, whole: bool = False) -> Choice:
    """Return the choice for a config of policy auto; all ranks call it together, and rank 0's numbers decide.

    ``whole``: rank all candidates, those too that this run is too short for; the choice is the run's all the same.
    """
    policy = config.policy
    assert isinstance(policy, Auto)
    spec, lengths = config.plan_spec(executor.caps), samples.train
    candidates = policy.candidates(executor.packs)
    times = _times(config, executor, lengths, spec, candidates, force)
    if times.is_noisy and 0 in executor.exchange.ranks:
        log.warning(
            "auto: passes over the same micro-batches differ by %.0f %% in the median, so the device is busy or noisy, "
            "and predictions are rough; run it on a quiet one, which measures anew, or name a policy",
            100 * times.spread,
        )
    begin = perf_counter()
    steps = num_steps(replace(spec, policy=candidates["static"]), lengths)
    menu = partial(config.shapes_of, lengths=lengths)
    ranking = predict(spec, lengths, candidates, times, menu, steps)
    if times.compiled is not None and not any(each.compiled for each in ranking):
        log.info(
            "auto: compiling takes %.0f s a program, which this run cannot win back; it stays eager", times.compile_s
        )
    names = [*candidates, *(f"{name}{COMPILED}" for name in candidates)]  # the same on all ranks
    best = names.index(taken(ranking, steps).name)
    row = np.full((len(executor.exchange.ranks), 1), best, dtype=np.int64)
    name = names[int(executor.exchange.vote(row)[0, 0])]  # rank 0's, as hosts may round otherwise
    seconds = perf_counter() - begin
    if whole:
        ranking = predict(spec, lengths, candidates, times, menu)
    return Choice(config, ranking, times, seconds, next(each for each in ranking if each.name == name))


def as_predicted(config: RunConfig, prediction: Prediction) -> RunConfig:
    """Return the config with the policy, the cost and the compilation that were predicted."""
    changed = {"policy": prediction.policy, "cost": as_config(prediction.cost)}
    return config.model_copy(update=changed if prediction.compiled else {**changed, "compile": CompileConfig()})


def as_config(cost: CostModel) -> CostConfig:
    """Return the [cost] of a config with these coefficients, in seconds."""
    return CostConfig(kind="affine_quadratic", **Seconds.of(cost).model_dump())


def _times(
    config: RunConfig, executor: Executor, lengths: Lengths, spec: PlanSpec, candidates: dict[str, Policy], force: bool
) -> StepTimes:
    """Return the times that rank 0 has, kept or measured."""
    if isinstance(executor, SimulatedExecutor):
        compiled = None if config.compile.kind == "eager" else executor.times.padded
        quiet = {"noise": QUIET, "compiled": compiled, "compiled_rest_s": executor.times.rest_s}
        return executor.times.model_copy(update=quiet)
    from ddpsched.advise.trials import try_candidates
    from ddpsched.training.calibrate import identity_of
    from ddpsched.training.compiled_times import with_compiled
    from ddpsched.training.distributed import DistributedExecutor
    from ddpsched.training.trial_times import measure_times
    from ddpsched.training.virtual import VirtualExecutor

    assert isinstance(executor, VirtualExecutor | DistributedExecutor), "all others are simulated"
    learner = executor.learner
    known = [versions()[name] for name in ("python", "torch", "transformers")]
    compiler = config.compile.model_dump_json(include={"kind", "backend", "mode", "split"})
    setting = f"{config.executor.kind} {config.sync.kind} {config.global_batch} {config.data.pad_to} {compiler}"
    setting += f" {config.sync.bucket_mb} {config.model.packed_attention} {config.order.kind} {sorted(candidates)}"
    # points are those of the candidates' plans, so times hold for samples of these lengths
    setting += f" {blake2b(np.bincount(lengths.lengths(np.arange(len(lengths)))).tobytes()).hexdigest()}"
    path = kept_in(identity_of(config, learner), config.world_size, setting, known)
    names = [*candidates]
    kept = None if force else load_kept(path)
    if kept is not None and kept.packed is None and any(policy.packs for policy in candidates.values()):
        kept = None  # of a run that tried no packed rows
    if not _votes(executor.exchange, kept is not None).all():
        begin = perf_counter()
        shapes, rows = _points(spec, lengths, candidates)
        log.info("auto: measuring %d micro-batches of this model", len(shapes) + len(rows))

        def decided(more: bool) -> bool:
            return bool(_votes(executor.exchange, more)[0])

        kept = _of_rank_0(measure_times(learner, config, shapes, rows, decided), executor.exchange, names)
        left_s = max(TRIED_S, MEASURED_S - (perf_counter() - begin))
        left_s = float(_votes(executor.exchange, round(left_s))[0])  # rank 0's
        tried = try_candidates(learner, spec, lengths, candidates, kept, executor.exchange, decided, left_s)
        kept = kept.model_copy(update={"tried": tried})
        keep(path, kept)
    assert kept is not None
    # after a compiler that failed, as it may work by now
    if config.compile.kind != "eager" and not _votes(executor.exchange, kept.compiled is not None).all():
        found = with_compiled(kept, learner, config, _points(spec, lengths, candidates)[0])
        kept = _of_rank_0(found, executor.exchange, names)  # the same file, whichever writes it last
        keep(path, kept)
    times = _of_rank_0(kept, executor.exchange, names)
    return times if force else _with_given(config, times)


def _of_rank_0(times: StepTimes, exchange: Exchange, names: Sequence[str]) -> StepTimes:
    """Return these times with rank 0's numbers. ``names``: of all candidates."""
    row = np.array([times.as_row(names)], dtype=np.int64)
    return times.with_row(exchange.vote(np.repeat(row, len(exchange.ranks), axis=0))[0].tolist(), names)


def _with_given(config: RunConfig, times: StepTimes) -> StepTimes:
    """Return the times with the seconds that the config gives in place of those of padded micro-batches."""
    if config.cost.kind not in ("calibrated", "affine_quadratic"):
        return times
    given = calibrated_times(config.cost)
    changed = {name: getattr(given, name) for name in ("padded", "padded_curve", "error")}
    return times.model_copy(update={**changed, "tried": {}})  # which were off by other times


def _votes(exchange: Exchange, number: int) -> Ids:
    """Return each rank's number, (world_size,); 1 or 0 where it is whether something holds."""
    return exchange.vote(np.full((len(exchange.ranks), 1), number, dtype=np.int64))[:, 0]


def _points(spec: PlanSpec, lengths: Lengths, candidates: dict[str, Policy]) -> tuple[list[Shape], list[Ids]]:
    """Return the micro-batches to measure: of those that the candidates plan, from the smallest to the largest."""
    shapes, rows = set[Shape](), list[Ids]()
    fault: InfeasibleError | None = None
    for policy in candidates.values():
        trial = replace(spec, policy=policy, cost=padded_tokens, steps=STEPS, epochs=None)
        try:
            plans = next_plans(sampled(trial, lengths), STEPS)
        except InfeasibleError as error:  # which is no candidate then
            fault = fault or error
            continue
        for micro in (micro for plan in plans for rank in plan.ranks for micro in rank):
            if micro.packed:
                rows.append(micro.ids)
            else:
                shapes.add((len(micro), micro.padded_length(lengths.lengths(micro.ids))))
    if not shapes and fault is not None:
        raise fault
    if not shapes:
        raise ConfigError("policy.kind = 'auto' needs samples to plan with; there are none")
    ordered = sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape))
    rows.sort(key=lambda ids: int(lengths.lengths(ids).sum()))
    return evenly(ordered, SHAPES), evenly(rows, ROWS)
