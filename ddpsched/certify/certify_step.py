"""``assert_gradient_exact``: certify a training step of yours, in a test of yours.

The step runs on real ranks (gloo, CPU, this machine). The gradient that it leaves is compared with the mean over what
counts, which this process computes from the same micro-batches in the plain way.
"""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ddpsched.certify.capture import CapturedGradient, capture_gradient, counted, counts_of, difference, trainable
from ddpsched.certify.certificate import Certificate, Check, first_few, ranks_named
from ddpsched.certify.gradient_comparison import TOLERANCES
from ddpsched.certify.reference import Losses, without_dropout
from ddpsched.certify.step_reference import DEFAULTS, Batches, Lengths, StepReference
from ddpsched.certify.stream_checks import same_collectives
from ddpsched.denominators import Target as Mean
from ddpsched.denominators import check_target
from ddpsched.errors import ConfigError
from ddpsched.local_ranks import Outcome, at_fault, blame, join_group, run_ranks
from ddpsched.training.model import host_array, weights_digest

TrainStep = Callable[[torch.nn.Module, list[Any]], Any]
Build = Callable[[], torch.nn.Module]

GRADIENT, SAME, WEIGHTS, BUFFERS = "gradient", "same gradient on all ranks", "same weights", "same buffers"


@dataclass(frozen=True)
class _RankResult:
    """The result of a step on a rank.

    ``weights``: their digest before the step. ``moved``: parameters that the step changed. ``others``: parameters that
    it froze, thawed or added. ``buffers``: each after the step. ``shares``: DDP broadcasts rank 0's buffers.
    ``autocast``: the precision that forward ran in, where that was not the parameters'.
    """

    weights: str
    gradient: CapturedGradient | None
    moved: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    buffers: Mapping[str, np.ndarray] = field(default_factory=dict)
    shares: bool = False
    autocast: str | None = None


def assert_gradient_exact(
    train_step: TrainStep,
    build_model: Build,
    batches: Batches,
    *,
    losses: Losses | None = None,
    target: Mean = "sample_mean",
    length: Lengths = None,
    tolerance: float | None = None,
    timeout_s: float = 60.0,
) -> Certificate:
    """Run ``train_step`` on ``len(batches)`` ranks, and raise AssertionError unless its gradient is the target's.

        target = sum_r sum_m sum_i grad l_i / T        T: samples ("sample_mean") or label tokens ("token_mean")

    and the other means of ``ddpsched.token_weights`` likewise.

    The functions must lie in a module: ranks are processes that import them. Dropout is switched off, with a warning.

    Args:
        train_step: ``train_step(model, microbatches)``, your code. It is called on every rank, inside a process group,
            with that rank's list. It wraps the model in DDP, shards it or does neither, runs forward and backward, and
            leaves the gradient in ``model.parameters()``; no optimizer steps.
        build_model: ``build_model()``, called on every rank and here, with equal seeds.
        batches: ``batches[r]`` are the micro-batches of rank r, dicts of tensors with "labels"; may be empty.
        losses: ``losses(model, batch)`` returns a 1-D tensor, the losses of what counts; by default cross-entropy of
            each row (``row_losses``) or of each next token that has a label (``token_losses``); for other targets of
            each row, summed over its label tokens (``row_sums``).
        target: "sample_mean", "token_mean", "constant_length", "group_mean" or "window_token_mean". The last two need
            batch["group_ids"], (count,): the number of each row's prompt, or window; forward does not get it.
        length: of "constant_length" L; of "window_token_mean" the samples and label tokens of each whole generation
            window, by its number: {0: (64, 9_120)}.
        tolerance: relative error; by default 1e-12 in float64, 1e-6 in float32.
        timeout_s: seconds that ranks wait for one that does not join a collective.

    Returns:
        The certificate, where all checks hold.

    Raises:
        AssertionError: a check failed; the text is the certificate, and the tracebacks of ranks that failed.
        ConfigError: arguments that cannot be used.
    """
    certificate = certify_step(
        train_step,
        build_model,
        batches,
        target,
        losses=losses,
        length=length,
        tolerance=tolerance,
        timeout_s=timeout_s,
    )
    if not certificate.holds:
        raise AssertionError(f"{certificate.verdict}\n\n{certificate.text()}")
    return certificate


def certify_step(
    train_step: TrainStep,
    build_model: Build,
    batches: Batches,
    target: Mean = "sample_mean",
    *,
    losses: Losses | None = None,
    length: Lengths = None,
    tolerance: float | None = None,
    timeout_s: float = 60.0,
) -> Certificate:
    """Return the certificate that ``assert_gradient_exact`` asks for, whether it holds or not.

    Arguments and errors are the same; a certificate that does not hold is returned and not raised. Raises ConfigError.
    """
    _check(train_step, build_model, batches, losses, target, length)
    if tolerance is not None and not 0 < tolerance < 1:
        raise ConfigError(f"tolerance = {tolerance!r}: a relative error between 0 and 1, such as 1e-6")
    model, weights, dropout = _built(build_model)
    if dropout:
        warnings.warn(f"dropout {dropout:g} of the model is switched off: gradients would be random", stacklevel=3)
    goal = StepReference(model, batches, losses or DEFAULTS[target], target, length)
    precision, world_size = str(goal.target.gradient.dtype), len(batches)
    limit = TOLERANCES.get(precision, TOLERANCES["bfloat16"]) if tolerance is None else tolerance
    with tempfile.TemporaryDirectory(prefix="ddpsched-step-") as folder:
        path = Path(folder, "gradient.npy")
        args = train_step, build_model, batches, path, timeout_s
        outcomes = run_ranks(_on_rank, world_size, *args, timeout_s=timeout_s)
        narrow = None
        if all(outcome.ended == "answered" for outcome in outcomes):
            results = [outcome.value for outcome in outcomes]
            narrow = next((each.autocast for each in results if each.autocast), None)
            if narrow is not None and tolerance is None:
                limit = max(limit, TOLERANCES.get(narrow, TOLERANCES["bfloat16"]))
            failed, checks = [], _judged(results, path, goal, weights, limit)
        else:
            idle = [rank for rank, microbatches in enumerate(batches) if not microbatches]
            failed, checks = [blame(outcomes)], [Check.not_made(GRADIENT, *why_not_ended(outcomes, "the step", idle))]
    waited = [outcome.rank for outcome in outcomes if outcome.waited]
    checks.append(same_collectives([counts_of(outcome.posts) for outcome in outcomes], waited))
    counts = np.bincount(goal.target.ranks, weights=goal.target.counts, minlength=world_size)
    facts = [
        f"{world_size} gloo ranks; micro-batches {', '.join(str(len(each)) for each in batches)}; {goal.target.unit} "
        f"{', '.join(f'{count:g}' for count in counts)} by rank; {len(goal.target.gradient):,} parameters, {precision}",
        "not applicable to a single step: every sample once, resumption, one plan",
    ]
    if narrow is not None:
        facts.append(f"forward ran under autocast in {narrow}, the target without it, within {limit:g} of each other")
    if dropout:
        facts.append(f"dropout {dropout:g} was switched off: gradients would be random")
    step = getattr(train_step, "func", train_step)  # of a functools.partial
    subject = f"{getattr(step, '__qualname__', step)}: {target} on {world_size} ranks"
    return Certificate(subject, tuple(checks), (*facts, *failed))


def _check(
    train_step: TrainStep, build_model: Build, batches: Batches, losses: Losses | None, target: str, length: Lengths
) -> None:
    check_target(target)
    if (target in ("constant_length", "window_token_mean")) != (length is not None):
        fault = "needs" if length is None else "takes no"
        raise ConfigError(f"target = {target!r} {fault} length, L or (samples, label tokens) of each window")
    if not isinstance(batches, Sequence) or not batches:
        raise ConfigError(f"batches is {batches!r:.80}: it holds a list of micro-batches for each rank, at least one")
    for name, function in (("train_step", train_step), ("build_model", build_model)):
        try:
            pickle.dumps(function)
        except Exception as error:
            raise ConfigError(
                f"{name} cannot be sent to ranks ({error}): they are processes that import it, so define it at the "
                "top level of a module, not as a lambda or inside a function; functools.partial adds arguments"
            ) from None
    for rank, microbatches in enumerate(batches):
        if isinstance(microbatches, Mapping | torch.Tensor) or not isinstance(microbatches, Sequence):
            kind = type(microbatches).__name__
            raise ConfigError(f"batches[{rank}] is {kind}: it is the list of rank {rank}'s micro-batches")
        for index, batch in enumerate(microbatches):
            if losses is None and not (isinstance(batch, Mapping) and "labels" in batch):
                what = f"keys {sorted(batch)}" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
                raise ConfigError(f"batches[{rank}][{index}] has {what}: give a dict with 'labels', or losses=...")
    if not any(map(len, batches)):
        raise ConfigError("batches hold no micro-batch at all: batches[r] is the list of rank r's micro-batches")


def _built(build_model: Build) -> tuple[torch.nn.Module, str, float]:
    """Return the model as every rank builds it, the digest of its weights, and the dropout that was on."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model()
    if not isinstance(model, torch.nn.Module) or not trainable(model):
        kind = type(model).__name__
        raise ConfigError(f"build_model() gave {kind}: it must return a module with parameters to train")
    return model, weights_digest(model), without_dropout(model)


def _on_rank(train_step: TrainStep, build_model: Build, batches: Batches, path: Path, timeout_s: float) -> _RankResult:
    """Run the step in a rank."""
    join_group(timeout_s)
    rank = dist.get_rank()
    model, weights, _ = _built(build_model)
    before = {name: parameter.detach().clone() for name, parameter in trainable(model)}
    with counted("the step"), _watched(model) as seen:
        train_step(model, list(batches[rank]))
    after = {name: parameter.detach() for name, parameter in trainable(model)}
    if others := tuple(sorted(set(after) ^ set(before))):
        return _RankResult(weights, None, others=others)
    # these are other tensors, where the step shards the model
    whole = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in after.items()}
    moved = tuple(name for name, each in whole.items() if not torch.equal(each, before[name]))
    if all(parameter.grad is None for _, parameter in trainable(model)):
        return _RankResult(weights, None, moved)
    gradient = capture_gradient(model, path if rank == 0 else None)
    return _RankResult(weights, gradient, moved, (), _buffers_of(model), seen["shares"], seen["autocast"])


@contextmanager
def _watched(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Yield what is seen of a step: whether a DDP that shares buffers was made, and the autocast of forward."""
    seen: dict[str, Any] = {"shares": False, "autocast": None}
    wrapper: Any = DistributedDataParallel
    wrap = wrapper.__init__

    def wrapped(ddp: Any, *args: Any, **words: Any) -> None:
        wrap(ddp, *args, **words)
        seen["shares"] = seen["shares"] or ddp.broadcast_buffers

    def look(*_: Any) -> None:
        kind = next(model.parameters()).device.type
        if torch.is_autocast_enabled(kind):
            seen["autocast"] = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")

    handle = model.register_forward_pre_hook(look)
    wrapper.__init__ = wrapped
    try:
        yield seen
    finally:
        wrapper.__init__ = wrap
        handle.remove()


def _buffers_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: host_array(each).copy() for name, each in model.named_buffers()}


def _judged(
    results: Sequence[_RankResult], path: Path, goal: StepReference, weights: str, tolerance: float
) -> list[Check]:
    """Return the checks of the gradient, of its being the same on all ranks, and of the weights."""
    odd = [rank for rank, result in enumerate(results) if result.weights != weights]
    if odd:
        says = f"{ranks_named(odd)} built other weights than this process"
        cause = "build_model() draws from its own generator, or from the rank: seed it equally everywhere"
        return [Check(WEIGHTS, False, says, cause)]
    others = [rank for rank, result in enumerate(results) if result.others]
    if others:
        names = first_few(results[others[0]].others, 2)
        says = f"{ranks_named(others)} changed which parameters require a gradient: {names}"
        cause = "train_step freezes, thaws or adds parameters: leave that to build_model"
        return [Check.not_made(GRADIENT, says, cause)]
    gradients = [result.gradient for result in results if result.gradient is not None]
    moved = [rank for rank, result in enumerate(results) if result.moved]
    if len(gradients) < len(results):
        bare = ranks_named(rank for rank, result in enumerate(results) if result.gradient is None)
        cause = "backward did not run there, or ran on a copy of the model, or the gradient was cleared"
        cause = "an optimizer stepped and cleared it" if moved else cause
        checks = [Check.not_made(GRADIENT, f"{bare} left no gradient in model.parameters()", cause)]
    else:
        likeness = goal.judge(np.load(path), tolerance, gradients[0].missing)
        what = f"against the mean over all {goal.target.total:g} {goal.target.unit}, computed by one process"
        apart = difference(gradients, tolerance)
        checks = [
            Check(GRADIENT, likeness.holds, f"{what}: {likeness.says}", likeness.cause, likeness.numbers),
            Check(SAME, False, *apart) if apart else Check(SAME, True, f"{len(results)} ranks"),
        ]
    if any(result.buffers for result in results):
        checks.append(_same_buffers(results, goal))
    if not moved:
        return [*checks, Check(WEIGHTS, True, "on every rank still those that build_model() gave")]
    says = f"{ranks_named(moved)} moved {first_few(results[moved[0]].moved, 2)}"
    cause = "train_step takes an optimizer's step: leave that to its caller, and the gradient in place"
    return [*checks, Check(WEIGHTS, False, says, cause)]


def _same_buffers(results: Sequence[_RankResult], goal: StepReference) -> Check:
    """Check the buffers after the step: those that forward leaves alone are as they were, of others ranks are told."""
    built, by_rank = _buffers_of(goal.model), [result.buffers for result in results]
    for rank, buffers in enumerate(by_rank):
        odd = {name for name in {**built, **buffers} if not _equal(buffers.get(name), built.get(name))} - goal.running
        if odd:
            says = f"rank {rank} changed {first_few(sorted(odd), 2)}, which the model's forward leaves as it is"
            return Check(BUFFERS, False, says, "train_step sets it; set it in build_model(), equally on all ranks")
    apart = [name for name in sorted(goal.running) if not all(_equal(each[name], by_rank[0][name]) for each in by_rank)]
    if not apart:
        return Check(BUFFERS, True, f"{len(built)} on each of {len(results)} ranks")
    for rank, buffers in enumerate(by_rank):
        own = goal.buffers_after.get(rank, {})
        odd = {name for name in apart if name in own and not _near(buffers[name], own[name])}
        if odd:
            says = f"rank {rank} has {first_few(sorted(odd), 2)} other than forward of its samples leaves it"
            return Check(BUFFERS, False, says, "train_step sets it; leave running buffers to forward")
    if not any(result.shares for result in results):
        says = f"{first_few(apart, 2)} follow each rank's own samples, and nothing makes them equal again"
        cause = "DDP(broadcast_buffers=False), or no DDP: ranks end with other models; share them, or SyncBatchNorm"
        return Check(BUFFERS, False, says, cause)
    says = (
        f"{first_few(apart, 2)} follow each rank's own samples; DDP gives all ranks those of rank 0 before the next "
        "forward, so that the others' samples do not count (SyncBatchNorm counts all)"
    )
    return Check(BUFFERS, True, says)


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is not None and other is not None and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype.kind != "f" or bool(np.allclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True))


def why_not_ended(outcomes: Sequence[Outcome], step: str, idle: Sequence[int] = ()) -> tuple[str, str]:
    """Return why ``step`` did not end, and the likely cause. ``idle``: ranks without micro-batches."""
    guilty = at_fault(outcomes)
    if all(each.waited for each in guilty):
        more = f"; {ranks_named(idle)}, without micro-batches, must still join them, with zeros" if idle else ""
        waited = ranks_named(each.rank for each in guilty)
        return f"{step} did not end: {waited} waited in vain in a collective", f"see: same collectives{more}"
    if any("ModuleNotFoundError" in each.says for each in guilty):
        cause = "put train_step and build_model into a module that a fresh process can import, or set PYTHONPATH"
        return f"ranks cannot import: {guilty[0].says.splitlines()[-1]}", cause
    return f"{step} did not end", first_few((f"rank {each.rank} {each.brief}" for each in guilty), 2, "; ")
