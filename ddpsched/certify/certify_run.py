"""Certification of a config's run: three epochs are planned on every rank, and selected steps of two are run.

Each rank does its ``work``: it plans the epochs, resumes them, runs the steps, and reports what it planned and what its
optimizer got. This process then computes the target and compares (``judge``). Nothing is written to the config's
outputs.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from ddpsched.certify.capture import CapturedGradient, captured_gradients, counted, counts_of, difference
from ddpsched.certify.certificate import Certificate, Check, count_of_ranks, first_few, ranks_named
from ddpsched.certify.certify_step import why_not_ended
from ddpsched.certify.faults import Fault, named_fault, planted, skip_next_vote, take_own_mean
from ddpsched.certify.gradient_comparison import TOLERANCES
from ddpsched.certify.likeness import Likeness
from ddpsched.certify.reference import RunReference
from ddpsched.certify.run_plans import EPOCHS, plan_epochs, select_steps
from ddpsched.certify.stream_checks import agreement, exactly_once, resumption, same_collectives
from ddpsched.config import RunConfig, parse
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError, NonFiniteError, PlanMismatch, RankFailure, StepOutOfMemory
from ddpsched.local_ranks import Outcome, at_fault, blame, post, run_ranks
from ddpsched.planning.policies.peer import PeerPolicy
from ddpsched.step_plan import Ids, StepPlan
from ddpsched.training.distributed import DistributedExecutor
from ddpsched.training.model import weights_digest
from ddpsched.training.virtual import VirtualExecutor
from ddpsched.world import World

MEANS = {  # in words
    "sample_mean": "every sample, whose loss is the mean over its label tokens, weighs the same",
    "token_mean": "every label token weighs the same",
    "constant_length": "every sample, whose loss is the sum over its label tokens by train.length, weighs the same",
    "group_mean": "every group, whose loss is the mean over its label tokens in the step, weighs the same",
    "window_token_mean": "every label token of a window (a group of the data) weighs the same; so do windows' means",
}


@dataclass(frozen=True)
class Planned:
    """The plans of one process.

    ``streams[i][e]``: ids of epoch e's steps, for the process's i-th rank. ``digests[i]``: of all steps as that rank
    follows them. ``whole``: digests of all steps as planned. ``resumed``: (at, digests after resuming behind step at).
    ``selected``: the plans of the steps that are run.
    """

    streams: list[list[list[Ids]]]
    digests: list[list[int]]
    whole: list[int]
    resumed: list[tuple[int, list[int]]]
    selected: list[StepPlan]


@dataclass(frozen=True)
class Ran:
    """A step that was run, and its gradient. ``norm``: the gradient's before it was clipped, as the run measured it."""

    step: int
    gradient: CapturedGradient
    norm: float


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
Gradients = dict[int, Ran]  # of one rank, by step


def certify_run(config: RunConfig, fault: str | None = None) -> Certificate:
    """Certify what ``config`` would train. ``fault``: plant this fault, to show that it is found.

    Raises ConfigError for a config that computes no gradients, or cannot have this fault; RankFailure where a rank
    fails before it has planned; and whatever a run of the config would raise before its first step.
    """
    run = certified(config)
    named_fault(fault, run)
    samples = run.load_samples()  # ranks then read the tokens from the cache
    chosen = named_fault(fault, run, len(samples.train))
    with TemporaryDirectory(prefix="ddpsched-certify-") as name:
        folder = Path(name)
        if run.executor.kind == "distributed":
            outcomes = run_ranks(work, run.world_size, run, chosen, folder, timeout_s=run.executor.timeout_s)
        else:
            outcomes = [Outcome(0, "answered")]
            threads = torch.get_num_threads()
            try:
                with torch.random.fork_rng(devices=[]):
                    work(run, chosen, folder, samples, outcomes[0].posts.append)
            finally:
                torch.set_num_threads(threads)
        certificate = judge(config, samples, outcomes)
    purpose = () if chosen is None else (f"planted on purpose: {chosen}",)
    return replace(certificate, facts=(*purpose, *certificate.facts))


def judge(config: RunConfig, samples: Samples, outcomes: Sequence[Outcome]) -> Certificate:
    """Return the certificate of ``config`` from what its ranks reported (``work``, with ``certified(config)``).

    Raises RankFailure, or a rank's error, where one failed before it had planned.
    """
    run = certified(config)
    planned = [post for outcome in outcomes for post in outcome.posts if isinstance(post, Planned)]
    if len(planned) < len(outcomes):
        raise next((outcome.error for outcome in at_fault(outcomes) if outcome.error), RankFailure(blame(outcomes)))
    streams = [stream for each in planned for stream in each.streams]
    reference, selected = RunReference(config, run, samples), planned[0].selected
    ran = [{post.step: post for post in outcome.posts if isinstance(post, Ran)} for outcome in outcomes]
    same_gradient = _same_gradient(ran, selected, TOLERANCES[run.train.precision])
    waited = [outcome.rank for outcome in outcomes if outcome.waited]
    collectives = same_collectives([counts_of(outcome.posts) for outcome in outcomes], waited)
    flat = [[ids for epoch in stream for ids in epoch] for stream in streams]
    one_plan = agreement([digests for each in planned for digests in each.digests], flat)
    if run.executor.kind != "distributed":
        same_gradient = Check(same_gradient.name, True, "one process plays all ranks and holds one gradient")
        collectives = Check(collectives.name, True, "none: one process plays all ranks, and nothing is sent")
        one_plan = Check(one_plan.name, True, "one process plans for all ranks") if one_plan.holds else one_plan
    checks = (
        _gradient(reference, ran[0], outcomes, selected), same_gradient, _same_weights(outcomes, reference.model),
        _once(streams, len(samples.train)), collectives, _resumption(run, planned), one_plan,
    )  # fmt: skip
    facts = _facts(run, samples, planned[0], reference)
    if any(each.ended != "answered" and not each.waited for each in outcomes):
        facts.append(blame(outcomes))
    most = run.policy.model_dump().get("max_microbatches", 1)
    policy = f"{run.policy.kind}{f', max_microbatches = {most}' if most > 1 else ''}"
    where = f"distributed, sync {run.sync.kind}" if run.executor.kind == "distributed" else "virtual"
    subject = f"{run.name}: policy {policy}; {count_of_ranks(run.world_size)}, {where}"
    return Certificate(subject, checks, tuple(facts))


def certified(config: RunConfig) -> RunConfig:
    """Return the run in the form that is certified.

    It has three epochs, no dropout, and float64 where precision is "auto". Raises ConfigError for a config that
    computes no gradients.
    """
    if config.executor.kind == "simulated":
        raise ConfigError(
            'executor.kind = "simulated" computes no gradient to certify; use executor.kind=distributed (real ranks, '
            "started here) or executor.kind=virtual (all ranks in one process)"
        )
    values = config.model_dump(exclude_none=True, exclude={"steps": True, "executor": {"slowness"}}) | {
        "epochs": EPOCHS
    }
    precision, device = config.train.precision, config.executor.device
    values["model"]["dropout"] = 0.0
    values["train"] |= {"non_finite": "stop", "precision": "float64" if precision == "auto" else precision}
    values["executor"] |= {"timeline": False, "device": "cpu" if device == "auto" else device}
    return parse(values, source="certify")


def _gradient(
    reference: RunReference, ran: Gradients, outcomes: Sequence[Outcome], selected: Sequence[StepPlan]
) -> Check:
    """Compare what rank 0's optimizer got, ``ran``, with the mean over the global batch."""
    name, what = "gradient", f"against the mean over the {reference.over}, computed by one process"
    done = [plan for plan in selected if plan.step in ran]
    judged = [
        (plan, _judged(reference, plan, ran[plan.step], None if before is None else ran[before.step]))
        for before, plan in zip([None, *done], done, strict=False)
    ]
    errors = ", ".join(f"step {plan.step}: {likeness.relative_error:.2g}" for plan, likeness in judged)
    wrong = [(plan, likeness) for plan, likeness in judged if not likeness.holds]
    if not wrong and len(judged) < len(selected):
        why, cause = why_not_ended(outcomes, f"step {selected[len(judged)].step}")
        refused = next((post for outcome in outcomes for post in outcome.posts if isinstance(post, Refused)), None)
        if refused is not None:
            why, cause = f"the ranks refused step {refused.step} before the optimizer", refused.why
        return Check.not_made(name, why + f" (before it, relative errors were right: {errors})" * bool(judged), cause)
    plan, worst = max(wrong or judged, key=lambda each: each[1].relative_error)
    if wrong:
        counts = ", ".join(map(str, plan.counts.tolist()))
        what = f"step {plan.step}, of {plan.global_batch} samples (by rank: {counts}), {what}"
    says = f"{what}: {worst.says}"
    if not wrong and worst.tolerance > reference.tolerance:
        says += f" ({reference.tolerance:g}, and more for rounding, as these samples' gradients nearly cancel)"
    return Check(name, not wrong, f"{says}; relative error of each: {errors}", worst.cause, worst.numbers)


def _judged(reference: RunReference, plan: StepPlan, ran: Ran, before: Ran | None) -> Likeness:
    return reference.judge(plan, ran.gradient, ran.norm, None if before is None else before.gradient)


def _once(streams: Sequence[Sequence[Sequence[Ids]]], num_samples: int) -> Check:
    """Check that every sample runs once in each epoch."""
    checks = [exactly_once(epoch, num_samples) for epoch in zip(*streams, strict=True)]
    for epoch, check in enumerate(checks):
        if not check.holds:
            return replace(check, says=f"epoch {epoch}: {check.says}")
    return replace(checks[0], says=f"{checks[0].says}, in each of {len(checks)} epochs")


def _same_gradient(ran: Sequence[Gradients], selected: Sequence[StepPlan], tolerance: float) -> Check:
    """Check that every rank's optimizer gets what rank 0's gets."""
    name, steps = "same gradient on all ranks", [plan.step for plan in selected]
    for step in steps:
        if not all(step in gradients for gradients in ran):
            return Check.not_made(name, f"step {step} did not reach the optimizer on all ranks", "see: gradient")
        apart = difference([gradients[step].gradient for gradients in ran], tolerance)
        if apart:
            return Check(name, False, f"step {step}: {apart[0]}", apart[1])
    return Check(name, True, f"the same on {count_of_ranks(len(ran))} in steps {first_few(steps)}")


def _same_weights(outcomes: Sequence[Outcome], model: torch.nn.Module) -> Check:
    """Check that all ranks and the reference hold the same weights, before the steps and after."""
    name, right = "same weights", weights_digest(model)
    digests = {each.rank: [post.digest for post in each.posts if isinstance(post, Weights)] for each in outcomes}
    odd = [rank for rank, given in digests.items() if given[:1] != [right]]
    if odd:
        says = f"{ranks_named(odd)} began with other weights than one process that builds the model from the same seed"
        return Check(name, False, says, "weights are not broadcast, or drawn from a rank's own random numbers")
    moved = [rank for rank, given in digests.items() if set(given) != {right}]
    if moved:
        says = f"{ranks_named(moved)}: a step at learning rate 0 moved them"
        return Check(name, False, says, "the optimizer has other learning rates")
    when = "before the steps and after" if all(len(given) > 1 for given in digests.values()) else "before the steps"
    return Check(name, True, f"on every rank those that one process builds from the same seed, {when} (by digest)")


def _resumption(config: RunConfig, planned: Sequence[Planned]) -> Check:
    """Check the plans that follow every rank's saved positions."""
    name = "resumption"
    if not planned[0].resumed:
        if isinstance(config.policy, PeerPolicy):
            why = f'policy.kind = "peer": {config.policy.peer} gives no position to resume from'
            return Check.not_made(name, why, "resume such a run at the start of an epoch")
        return Check.not_made(name, "no step follows the first; lower global_batch")
    for rank, each in enumerate(planned):
        for at, digests in each.resumed:
            check = resumption(each.whole, digests, at)
            if not check.holds:
                return replace(check, says=f"rank {rank}: {check.says}")
    ranges = first_few(f"after step {at:,} the next {len(digests):,}" for at, digests in planned[0].resumed)
    return Check(name, True, f"from a position saved as JSON, the same steps as without interruption: {ranges}")


def _facts(config: RunConfig, samples: Samples, planned: Planned, reference: RunReference) -> list[str]:
    length, steps = len(planned.streams[0][0]), first_few((plan.step for plan in planned.selected), 6)
    clipped = config.train.max_grad_norm
    batch = "a global batch that varies" if config.policy.varies else f"global_batch = {config.global_batch}"
    facts = [
        f"{config.model.name}, {reference.size:,} parameters, {config.train.precision}",
        f"{len(samples.train):,} samples, {batch}: an epoch of {length:,} steps",
        f"planned: {EPOCHS} epochs; run at learning rate 0, clipped to {clipped:g}: steps {steps} (the first, the most "
        "uneven and the last of two epochs)",
    ]
    if config.model.task == "causal_lm":
        facts.append(f"train.target = {config.target}: {MEANS[config.target]}")
    if reference.dropout:
        facts.append(f"dropout (up to {reference.dropout:g}) was switched off: with it on, a gradient is a random draw")
    if config.cost.online:
        facts.append("cost.online: ranks were planned for as equally fast")
    if config.executor.kind == "virtual":
        facts.append("one process: certify executor.kind=distributed to check the synchroniser too")
    return facts


def work(
    config: RunConfig, fault: Fault | None, folder: Path, samples: Samples | None = None, report: Report = post
) -> None:
    """Do the work of one rank, or of all ranks where ``executor.kind`` is "virtual".

    ``folder`` gets rank 0's gradients. ``samples`` are loaded where they are not given. ``report`` takes the results;
    by default they go to the process that started the rank.
    """
    samples = samples or config.load_samples()
    menu = config.menu(samples.train)
    executor: DistributedExecutor | VirtualExecutor = (
        DistributedExecutor(config, samples, World.detect(), force=True)
        if config.executor.kind == "distributed"
        else VirtualExecutor(config, samples, force=True)
    )
    with closing(executor):
        executor.use(config, menu)
        ranks, model = executor.exchange.ranks, executor.learner.model
        plans, resumed = plan_epochs(config, samples, executor, menu)
        epochs = [list(each) for _, each in groupby(plans, key=lambda plan: plan.epoch)]
        steps = [step for epoch in epochs[:2] for step in select_steps(epoch, samples)]
        middle = steps[1 % len(steps)]
        given = planted(plans, fault, middle, ranks[0])
        ends = np.cumsum([len(epoch) for epoch in epochs]).tolist()
        parts = [given[start:end] for start, end in pairwise([0, *ends])]
        streams = [[[plan.rank_ids(rank) for plan in part] for part in parts] for rank in ranks]
        digests = [[plan.digest for plan in given] for _ in ranks]
        report(Planned(streams, digests, [plan.digest for plan in plans], resumed, [given[step] for step in steps]))
        report(Weights(weights_digest(model)))
        for step in steps:
            hook = None
            if fault == "no_scale":
                counts = [executor.learner.counts(micros) for micros in given[step].ranks]
                hook = take_own_mean(model, [count.of(config.target) for count in counts], ranks[0])
            if fault == "missing_collective" and step == middle and ranks[0] == config.world_size - 1:
                skip_next_vote(executor.exchange, config.world_size)
            path = folder / f"step{step}.npy" if ranks[0] == 0 else None
            try:
                with counted(f"step {step}"), captured_gradients(model, path) as captured:
                    record = executor.execute(given[step])[0]
            except (PlanMismatch, NonFiniteError, StepOutOfMemory) as error:
                report(Refused(step, f"{error}{' (see: one plan)' * isinstance(error, PlanMismatch)}"))
                return
            if hook is not None:
                hook.remove()
            report(Ran(step, captured[-1], record.grad_norm or 0.0))
        report(Weights(weights_digest(model)))
