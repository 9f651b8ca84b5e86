"""Our own runs, certified: the config's epoch is planned on every rank, and its telling steps are run for real.

Each rank hands over what it planned and what its optimizer got; this process then computes the target and compares.
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
from ddpsched.certify.faults import Fault, named_fault
from ddpsched.certify.gradient_comparison import TOLERANCES, Likeness
from ddpsched.certify.rank_worker import Planned, Ran, Refused, Weights, attend, attend_alone
from ddpsched.certify.reference import RunReference
from ddpsched.certify.stream_checks import agreement, exactly_once, resumption, same_collectives
from ddpsched.config import RunConfig, parse
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError, RankFailure
from ddpsched.local_ranks import Outcome, at_fault, blame, run_ranks
from ddpsched.plan import Ids, StepPlan
from ddpsched.planning.policies.peer import PeerPolicy
from ddpsched.training.weights import weights_digest


def certify_run(config: RunConfig, fault: str | None = None) -> Certificate:
    """Certify what ``config`` would train. ``fault`` plants one, to show that it is found.

    Raises ConfigError for a config that computes no gradients, or a fault that it cannot have; RankFailure where a
    rank fails before it has planned; and whatever a run of the config would raise before its first step.
    """
    own = certified(config)
    named_fault(fault, own)
    samples = own.load_samples()  # ranks then read the tokens from the cache
    planted = named_fault(fault, own, len(samples.train))
    with TemporaryDirectory(prefix="ddpsched-certify-") as folder:
        outcomes = _attended(own, samples, planted, Path(folder))
        certificate = judge(config, samples, outcomes)
    if planted is None:
        return certificate
    return replace(certificate, facts=(f"planted on purpose: {planted}", *certificate.facts))


def judge(config: RunConfig, samples: Samples, outcomes: Sequence[Outcome]) -> Certificate:
    """The certificate of ``config`` from what its ranks told (``attend``, with ``certified(config)``).

    Raises RankFailure, or a rank's own error, where one did not come so far as to have planned.
    """
    own, planned = certified(config), _planned(outcomes)
    streams = [stream for each in planned for stream in each.streams]
    reference = RunReference(config, own, samples)
    telling = planned[0].telling
    checks = [
        _gradient(reference, outcomes, telling),
        _same_gradient(own, outcomes, telling),
        _same_weights(outcomes, reference.model),
        exactly_once(streams, len(samples.train)),
        _same_collectives(own, outcomes),
        _resumption(own, planned),
        _one_plan(own, [digests for each in planned for digests in each.digests], streams),
    ]
    facts = _facts(own, samples, planned[0], reference)
    if any(each.ended != "answered" and not each.waited for each in outcomes):
        facts.append(blame(outcomes))
    return Certificate(_subject(own), tuple(checks), tuple(facts))


def certified(config: RunConfig) -> RunConfig:
    """The same run in the form that is certified: two epochs, no dropout, no clipping, in float64 where that is free.

    Raises ConfigError for a config that computes no gradients.
    """
    if config.executor.kind == "simulated":
        raise ConfigError(
            'executor.kind = "simulated" computes no gradient to certify; use executor.kind=distributed (real ranks, '
            "started here) or executor.kind=virtual (all ranks in one process)"
        )
    values = config.model_dump(exclude_none=True)
    values.pop("steps", None)
    values["epochs"] = 2
    values["model"]["dropout"] = 0.0
    values["train"] |= {"max_grad_norm": 1e30, "non_finite": "stop"}
    values["executor"] |= {"timeline": False}
    values["executor"].pop("slowness", None)
    if config.train.precision == "auto":
        values["train"]["precision"] = "float64"
    if config.executor.device == "auto":
        values["executor"]["device"] = "cpu"
    return parse(values, source="certify")


def _attended(config: RunConfig, samples: Samples, fault: Fault | None, folder: Path) -> list[Outcome]:
    """What every rank had to say; one process says it for all where it plays them all."""
    if config.executor.kind == "distributed":
        return run_ranks(attend, config.world_size, config, fault, folder, timeout_s=config.executor.timeout_s)
    only = Outcome(0, "answered")
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            attend_alone(config, samples, fault, folder, only.posts.append)
    finally:
        torch.set_num_threads(threads)
    return [only]


def _planned(outcomes: Sequence[Outcome]) -> list[Planned]:
    """What each process planned; its error where one did not come so far."""
    found = [post for outcome in outcomes for post in outcome.posts if isinstance(post, Planned)]
    if len(found) == len(outcomes):
        return found
    for outcome in at_fault(outcomes):
        if outcome.error is not None:
            raise outcome.error
    raise RankFailure(blame(outcomes))


def _gradient(reference: RunReference, outcomes: Sequence[Outcome], telling: Sequence[StepPlan]) -> Check:
    """What rank 0's optimizer got, against the mean over the global batch."""
    name, what = "gradient", f"against the mean over the {reference.over}, computed by one process"
    ran = {post.step: post for post in outcomes[0].posts if isinstance(post, Ran)}
    judged: list[tuple[StepPlan, Likeness]] = []
    for plan in telling:
        if plan.step in ran:
            kept = ran[plan.step].kept
            assert kept.path is not None, "rank 0 keeps its gradients"
            judged.append((plan, reference.judge(plan, np.load(kept.path, mmap_mode="r"), kept.missing)))
    if not judged:
        return Check.not_made(name, *_why_not_run(outcomes, telling[0].step))
    wrong = [(plan, likeness) for plan, likeness in judged if not likeness.holds]
    told = ", ".join(f"step {plan.step}: {likeness.relative_error:.2g}" for plan, likeness in judged)
    if not wrong and len(judged) == len(telling):
        _, worst = max(judged, key=lambda each: each[1].relative_error)
        wider = f" ({reference.tolerance:g}, and more for rounding, as these samples' gradients nearly cancel)"
        note = wider if worst.tolerance > reference.tolerance else ""
        return Check(name, True, f"{what}: {worst.says}{note}; relative error of each: {told}", numbers=worst.numbers)
    if not wrong:
        why, cause = _why_not_run(outcomes, telling[len(judged)].step)
        return Check.not_made(name, f"{why} (before it, relative errors were right: {told})", cause)
    plan, worst = max(wrong, key=lambda each: each[1].relative_error)
    counts = ", ".join(map(str, plan.counts.tolist()))
    says = f"step {plan.step}, of {plan.global_batch} samples (by rank: {counts}), {what}: {worst.says}"
    return Check(name, False, f"{says}; relative error of each: {told}", worst.cause, worst.numbers)


def _why_not_run(outcomes: Sequence[Outcome], step: int) -> tuple[str, str | None]:
    """Why a step has no gradient, and what is behind that."""
    for outcome in outcomes:
        for post in outcome.posts:
            if isinstance(post, Refused):
                see = " (see: one plan)" if post.plan else ""
                return f"the ranks refused step {post.step} before the optimizer", post.why + see
    guilty = at_fault(outcomes)
    waited = [outcome.rank for outcome in guilty if outcome.waited]
    if waited:
        return f"step {step} did not end: {ranks_named(waited)} waited in vain in a collective", "see: same collectives"
    last = first_few(
        (f"rank {each.rank} {each.says.splitlines()[0]} {each.says.splitlines()[-1]}" for each in guilty), 2
    )
    return f"step {step} did not end", last


def _same_gradient(config: RunConfig, outcomes: Sequence[Outcome], telling: Sequence[StepPlan]) -> Check:
    """Every rank's optimizer gets what rank 0's gets."""
    name = "same gradient on all ranks"
    if config.executor.kind != "distributed":
        return Check(name, True, "one process plays all ranks and holds one gradient")
    ran = [{post.step: post.kept for post in outcome.posts if isinstance(post, Ran)} for outcome in outcomes]
    steps = [plan.step for plan in telling]
    for step in steps:
        if not all(step in own for own in ran):
            return Check.not_made(name, f"step {step} did not come to the optimizer on all ranks", "see: gradient")
        first = ran[0][step]
        for rank, own in enumerate(ran):
            if found := difference(rank, own[step], first, TOLERANCES[config.train.precision]):
                return Check(name, False, f"step {step}: {found[0]}", found[1])
    return Check(name, True, f"the same on {count_of_ranks(len(ran))} in steps {first_few(steps)}")


def _same_weights(outcomes: Sequence[Outcome], model: torch.nn.Module) -> Check:
    """All ranks and the reference hold the same weights, before the steps and after."""
    name = "same weights"
    told = [[post.digest for post in outcome.posts if isinstance(post, Weights)] for outcome in outcomes]
    right = weights_digest(model)
    odd = [outcome.rank for outcome, own in zip(outcomes, told, strict=True) if own[:1] != [right]]
    if odd:
        says = f"{ranks_named(odd)} began with other weights than one process that builds the model from the same seed"
        return Check(name, False, says, "weights are not broadcast, or drawn from a rank's own random numbers")
    moved = [outcome.rank for outcome, own in zip(outcomes, told, strict=True) if set(own) != {right}]
    if moved:
        return Check(name, False, f"{ranks_named(moved)}: a step at rate 0 moved them", "the optimizer has other rates")
    when = "before the steps and after" if all(len(own) > 1 for own in told) else "before the steps"
    return Check(name, True, f"on every rank those that one process builds from the same seed, {when} (by digest)")


def _same_collectives(config: RunConfig, outcomes: Sequence[Outcome]) -> Check:
    if config.executor.kind != "distributed":
        return Check("same collectives", True, "none: one process plays all ranks, and nothing travels")
    waited = [outcome.rank for outcome in outcomes if outcome.waited]
    return same_collectives([counts_of(outcome.posts) for outcome in outcomes], waited)


def _resumption(config: RunConfig, planned: Sequence[Planned]) -> Check:
    """Positions of every rank, through JSON and back."""
    name = "resumption"
    if not planned[0].resumed:
        if isinstance(config.policy, PeerPolicy):
            why = f'policy.kind = "peer": {config.policy.peer} tells no position to resume from'
            return Check.not_made(name, why, "resume such a run at the start of an epoch")
        return Check.not_made(name, "no step follows the first; lower global_batch")
    for rank, own in enumerate(planned):
        for at, digests in own.resumed:
            check = resumption(own.whole, digests, at)
            if not check.holds:
                return Check(name, False, f"rank {rank}: {check.says}", check.cause)
    told = first_few(f"after step {at:,} the next {len(digests):,}" for at, digests in planned[0].resumed)
    return Check(name, True, f"from a position saved as JSON, the same steps as without interruption: {told}")


def _one_plan(config: RunConfig, digests: Sequence[Sequence[int]], streams: Sequence[Sequence[Ids]]) -> Check:
    check = agreement(digests, streams)
    if check.holds and config.executor.kind != "distributed":
        return Check(check.name, True, "one process plans for all ranks")
    return check


def _subject(config: RunConfig) -> str:
    most = config.policy.model_dump().get("max_microbatches", 1)
    how = f"{config.policy.kind}{f', max_microbatches = {most}' if most > 1 else ''}"
    where = f"distributed, sync {config.sync.kind}" if config.executor.kind == "distributed" else "virtual"
    return f"{config.name}: policy {how}; {count_of_ranks(config.world_size)}, {where}"


def _facts(config: RunConfig, samples: Samples, planned: Planned, reference: RunReference) -> list[str]:
    length, steps = len(planned.streams[0]), [plan.step for plan in planned.telling]
    batch = "a global batch that varies" if config.policy.varies else f"global_batch = {config.global_batch}"
    facts = [
        f"{config.model.name}, {reference.size:,} parameters, {config.train.precision}",
        f"{len(samples.train):,} samples, {batch}: an epoch of {length:,} steps",
        f"planned: the whole epoch and more; run: steps {first_few(steps)} (first, most uneven, last), at rate 0 and "
        "without clipping",
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
