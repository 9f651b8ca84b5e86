"""Certification of a config's run: its epoch is planned on every rank, and selected steps are run.

Each rank reports what it planned and what its optimizer got; this process then computes the target and compares.
Nothing is written to the config's outputs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from ddpsched.certify.capture import counts_of, difference
from ddpsched.certify.certificate import Certificate, Check, count_of_ranks, first_few, ranks_named
from ddpsched.certify.certify_step import why_not_ended
from ddpsched.certify.faults import named_fault
from ddpsched.certify.gradient_comparison import TOLERANCES
from ddpsched.certify.rank_worker import Planned, Ran, Refused, Weights, work
from ddpsched.certify.reference import RunReference
from ddpsched.certify.stream_checks import agreement, exactly_once, resumption, same_collectives
from ddpsched.config import RunConfig, parse
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError, RankFailure
from ddpsched.local_ranks import Outcome, at_fault, blame, run_ranks
from ddpsched.plan import StepPlan
from ddpsched.planning.policies.peer import PeerPolicy
from ddpsched.training.weights import weights_digest


def certify_run(config: RunConfig, fault: str | None = None) -> Certificate:
    """Certify what ``config`` would train. ``fault``: plant this fault, to show that it is found.

    Raises ConfigError for a config that computes no gradients, or cannot have this fault; RankFailure where a rank
    fails before it has planned; and whatever a run of the config would raise before its first step.
    """
    run = certified(config)
    named_fault(fault, run)
    samples = run.load_samples()  # ranks then read the tokens from the cache
    planted = named_fault(fault, run, len(samples.train))
    with TemporaryDirectory(prefix="ddpsched-certify-") as name:
        folder = Path(name)
        if run.executor.kind == "distributed":
            outcomes = run_ranks(work, run.world_size, run, planted, folder, timeout_s=run.executor.timeout_s)
        else:
            outcomes = [Outcome(0, "answered")]
            threads = torch.get_num_threads()
            try:
                with torch.random.fork_rng(devices=[]):
                    work(run, planted, folder, samples, outcomes[0].posts.append)
            finally:
                torch.set_num_threads(threads)
        certificate = judge(config, samples, outcomes)
    if planted is None:
        return certificate
    return replace(certificate, facts=(f"planted on purpose: {planted}", *certificate.facts))


def judge(config: RunConfig, samples: Samples, outcomes: Sequence[Outcome]) -> Certificate:
    """Return the certificate of ``config`` from what its ranks reported (``work``, with ``certified(config)``).

    Raises RankFailure, or a rank's error, where one failed before it had planned.
    """
    run = certified(config)
    planned = [post for outcome in outcomes for post in outcome.posts if isinstance(post, Planned)]
    if len(planned) < len(outcomes):
        raise next((outcome.error for outcome in at_fault(outcomes) if outcome.error), RankFailure(blame(outcomes)))
    streams = [stream for each in planned for stream in each.streams]
    digests = [each for process in planned for each in process.digests]
    reference = RunReference(config, run, samples)
    selected = planned[0].selected
    same_gradient = _same_gradient(outcomes, selected, TOLERANCES[run.train.precision])
    waited = [outcome.rank for outcome in outcomes if outcome.waited]
    collectives = same_collectives([counts_of(outcome.posts) for outcome in outcomes], waited)
    one_plan = agreement(digests, streams)
    if run.executor.kind != "distributed":
        same_gradient = Check(same_gradient.name, True, "one process plays all ranks and holds one gradient")
        collectives = Check(collectives.name, True, "none: one process plays all ranks, and nothing is sent")
        one_plan = Check(one_plan.name, True, "one process plans for all ranks") if one_plan.holds else one_plan
    checks = (
        _gradient(reference, outcomes, selected), same_gradient, _same_weights(outcomes, reference.model),
        exactly_once(streams, len(samples.train)), collectives, _resumption(run, planned), one_plan,
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

    It has two epochs, no dropout, no clipping, and float64 where precision is "auto". Raises ConfigError for a config
    that computes no gradients.
    """
    if config.executor.kind == "simulated":
        raise ConfigError(
            'executor.kind = "simulated" computes no gradient to certify; use executor.kind=distributed (real ranks, '
            "started here) or executor.kind=virtual (all ranks in one process)"
        )
    values = config.model_dump(exclude_none=True, exclude={"steps": True, "executor": {"slowness"}})
    values["epochs"] = 2
    values["model"]["dropout"] = 0.0
    values["train"] |= {"max_grad_norm": 1e30, "non_finite": "stop"}
    values["executor"]["timeline"] = False
    if config.train.precision == "auto":
        values["train"]["precision"] = "float64"
    if config.executor.device == "auto":
        values["executor"]["device"] = "cpu"
    return parse(values, source="certify")


def _gradient(reference: RunReference, outcomes: Sequence[Outcome], selected: Sequence[StepPlan]) -> Check:
    """Compare what rank 0's optimizer got with the mean over the global batch."""
    name, what = "gradient", f"against the mean over the {reference.over}, computed by one process"
    ran = {post.step: post.gradient for post in outcomes[0].posts if isinstance(post, Ran)}
    judged = []
    for plan in selected:
        if plan.step in ran:
            gradient = ran[plan.step]
            assert gradient.path is not None, "rank 0 keeps its gradients"
            judged.append((plan, reference.judge(plan, np.load(gradient.path, mmap_mode="r"), gradient.missing)))
    errors = ", ".join(f"step {plan.step}: {likeness.relative_error:.2g}" for plan, likeness in judged)
    wrong = [(plan, likeness) for plan, likeness in judged if not likeness.holds]
    if not wrong and len(judged) < len(selected):
        why, cause = _why_not_run(outcomes, selected[len(judged)].step)
        return Check.not_made(name, why + f" (before it, relative errors were right: {errors})" * bool(judged), cause)
    plan, worst = max(wrong or judged, key=lambda each: each[1].relative_error)
    if wrong:
        counts = ", ".join(map(str, plan.counts.tolist()))
        what = f"step {plan.step}, of {plan.global_batch} samples (by rank: {counts}), {what}"
    says = f"{what}: {worst.says}"
    if not wrong and worst.tolerance > reference.tolerance:
        says += f" ({reference.tolerance:g}, and more for rounding, as these samples' gradients nearly cancel)"
    return Check(name, not wrong, f"{says}; relative error of each: {errors}", worst.cause, worst.numbers)


def _why_not_run(outcomes: Sequence[Outcome], step: int) -> tuple[str, str]:
    """Return why a step has no gradient, and the cause."""
    for post in (post for outcome in outcomes for post in outcome.posts if isinstance(post, Refused)):
        return f"the ranks refused step {post.step} before the optimizer", post.why
    return why_not_ended(outcomes, f"step {step}")


def _same_gradient(outcomes: Sequence[Outcome], selected: Sequence[StepPlan], tolerance: float) -> Check:
    """Check that every rank's optimizer gets what rank 0's gets."""
    name, steps = "same gradient on all ranks", [plan.step for plan in selected]
    ran = [{post.step: post.gradient for post in outcome.posts if isinstance(post, Ran)} for outcome in outcomes]
    for step in steps:
        if not all(step in gradients for gradients in ran):
            return Check.not_made(name, f"step {step} did not reach the optimizer on all ranks", "see: gradient")
        apart = difference([gradients[step] for gradients in ran], tolerance)
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
    length, steps = len(planned.streams[0]), first_few(plan.step for plan in planned.selected)
    batch = "a global batch that varies" if config.policy.varies else f"global_batch = {config.global_batch}"
    facts = [
        f"{config.model.name}, {reference.size:,} parameters, {config.train.precision}",
        f"{len(samples.train):,} samples, {batch}: an epoch of {length:,} steps",
        f"planned: an epoch and more; run at learning rate 0, unclipped: steps {steps} (first, most uneven, last)",
    ]
    if config.model.task == "causal_lm":
        by_sample = "sample, whose loss is the mean over its label tokens,"
        weighs = by_sample if config.target == "sample_mean" else "label token"
        facts.append(f"train.target = {config.target}: every {weighs} weighs the same")
    if reference.dropout:
        facts.append(f"dropout (up to {reference.dropout:g}) was switched off: with it on, a gradient is a random draw")
    if config.cost.online:
        facts.append("cost.online: ranks were planned for as equally fast")
    if config.executor.kind == "virtual":
        facts.append("one process: certify executor.kind=distributed to check the synchroniser too")
    return facts
