"""``assert_gradient_exact``: certify a training step of yours, in a test of yours.

The step runs on real ranks (gloo, CPU, this machine). The gradient that it leaves is compared with the mean over what
counts, which this process computes from the same micro-batches in the plain way.
"""

import pickle
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from ddpsched.certify.capture import CapturedGradient, capture_gradient, counted, counts_of, difference, trainable
from ddpsched.certify.certificate import Certificate, Check, first_few, ranks_named
from ddpsched.certify.gradient_comparison import TOLERANCES, Likeness, compare
from ddpsched.certify.reference import Losses, reference, without_dropout
from ddpsched.certify.stream_checks import same_collectives
from ddpsched.certify.target import Target
from ddpsched.errors import ConfigError
from ddpsched.local_ranks import Outcome, at_fault, blame, join_group, run_ranks
from ddpsched.training.model import weights_digest

Mean = Literal["sample_mean", "token_mean"]
TrainStep = Callable[[torch.nn.Module, list[Any]], Any]
Build = Callable[[], torch.nn.Module]
Batches = Sequence[Sequence[Any]]

GRADIENT, SAME, WEIGHTS = "gradient", "same gradient on all ranks", "same weights"


@dataclass(frozen=True)
class _RankResult:
    """The result of a step on a rank.

    ``weights``: their digest before the step. ``moved``: parameters that the step changed. ``others``: parameters that
    it froze, thawed or added.
    """

    weights: str
    gradient: CapturedGradient | None
    moved: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def assert_gradient_exact(
    train_step: TrainStep,
    build_model: Build,
    batches: Batches,
    *,
    losses: Losses | None = None,
    target: Mean = "sample_mean",
    tolerance: float | None = None,
    timeout_s: float = 60.0,
) -> Certificate:
    """Run ``train_step`` on ``len(batches)`` ranks, and raise AssertionError unless its gradient is the target's.

        target = sum_r sum_m sum_i grad l_i / T        T: samples ("sample_mean") or label tokens ("token_mean")

    The functions must lie in a module: ranks are processes that import them. Dropout is switched off, with a warning.

    Args:
        train_step: ``train_step(model, microbatches)``, your code. It is called on every rank, inside a process group,
            with that rank's list. It wraps the model in DDP, shards it or does neither, runs forward and backward, and
            leaves the gradient in ``model.parameters()``; no optimizer steps.
        build_model: ``build_model()``, called on every rank and here, with equal seeds.
        batches: ``batches[r]`` are the micro-batches of rank r, dicts of tensors with "labels"; may be empty.
        losses: ``losses(model, batch)`` returns a 1-D tensor, the losses of what counts; by default cross-entropy of
            each row (``row_losses``) or of each next token that has a label (``token_losses``).
        target: "sample_mean" or "token_mean".
        tolerance: relative error; by default 1e-12 in float64, 1e-6 in float32.
        timeout_s: seconds that ranks wait for one that does not join a collective.

    Returns:
        The certificate, where all checks hold.

    Raises:
        AssertionError: a check failed; the text is the certificate, and the tracebacks of ranks that failed.
        ConfigError: arguments that cannot be used.
    """
    certificate = certify_step(
        train_step, build_model, batches, target, losses=losses, tolerance=tolerance, timeout_s=timeout_s
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
    tolerance: float | None = None,
    timeout_s: float = 60.0,
) -> Certificate:
    """Return the certificate that ``assert_gradient_exact`` asks for, whether it holds or not.

    Arguments and errors are the same; a certificate that does not hold is returned and not raised. Raises ConfigError.
    """
    _check(train_step, build_model, batches, losses, target)
    if tolerance is not None and not 0 < tolerance < 1:
        raise ConfigError(f"tolerance = {tolerance!r}: a relative error between 0 and 1, such as 1e-6")
    model, weights, dropout = _built(build_model)
    if dropout:
        warnings.warn(f"dropout {dropout:g} of the model is switched off: gradients would be random", stacklevel=3)
    goal = _Reference(model, batches, losses or DEFAULTS[target], target)
    precision, world_size = str(goal.target.gradient.dtype), len(batches)
    limit = TOLERANCES.get(precision, TOLERANCES["bfloat16"]) if tolerance is None else tolerance
    with tempfile.TemporaryDirectory(prefix="ddpsched-step-") as folder:
        path = Path(folder, "gradient.npy")
        args = train_step, build_model, batches, path, timeout_s
        outcomes = run_ranks(_on_rank, world_size, *args, timeout_s=timeout_s)
        if all(outcome.ended == "answered" for outcome in outcomes):
            failed, checks = [], _judged([outcome.value for outcome in outcomes], path, goal, weights, limit)
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
    if dropout:
        facts.append(f"dropout {dropout:g} was switched off: gradients would be random")
    step = getattr(train_step, "func", train_step)  # of a functools.partial
    subject = f"{getattr(step, '__qualname__', step)}: {target} on {world_size} ranks"
    return Certificate(subject, tuple(checks), (*facts, *failed))


def row_losses(model: torch.nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the cross-entropy of each row, (count,). ``batch``: the inputs of forward, and "labels", (count,)."""
    return F.cross_entropy(logits_of(model, batch), batch["labels"], reduction="none")


def token_losses(model: torch.nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the cross-entropy of each next token whose label is not -100, (label tokens,).

    ``batch``: the inputs of forward, and "labels", (count, length), not shifted: the token at position i is predicted
    at i - 1.
    """
    logits, labels = logits_of(model, batch)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    return F.cross_entropy(logits[labels != -100], labels[labels != -100], reduction="none")


DEFAULTS: dict[str, Losses] = {"sample_mean": row_losses, "token_mean": token_losses}
UNITS = {"sample_mean": "samples", "token_mean": "tokens"}


def logits_of(model: torch.nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the logits of a model that returns them, or outputs with "logits"."""
    outputs = model(**{name: value for name, value in batch.items() if name != "labels"})
    return outputs if isinstance(outputs, torch.Tensor) else outputs["logits"]


def _check(train_step: TrainStep, build_model: Build, batches: Batches, losses: Losses | None, target: str) -> None:
    if target not in DEFAULTS:
        raise ConfigError(f"target = {target!r}: it is one of {sorted(DEFAULTS)}")
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


class _Reference:
    """The model in this process, and its target gradient."""

    def __init__(self, model: torch.nn.Module, batches: Batches, losses: Losses, target: Mean) -> None:
        self._model, self._losses, self._unit, self._size = model, losses, UNITS[target], len(batches)
        self._parts = [(rank, batch) for rank, microbatches in enumerate(batches) for batch in microbatches]
        first, second = (losses(model, self._parts[0][1]).detach() for _ in range(2))
        if first.ndim != 1:
            shape = tuple(first.shape)
            raise ConfigError(f"losses(model, batch) has shape {shape}: give one number for each that counts")
        if not torch.equal(first, second):
            raise ConfigError("the model's losses differ from call to call: switch off what is random in build_model()")
        self.target = self._target(self._parts)
        if not self.target.total:
            raise ConfigError("no micro-batch has anything that counts: every label is -100")

    def judge(self, gradient: np.ndarray, tolerance: float, missing: Collection[str] = ()) -> Likeness:
        """Compare by micro-batches, and row by row where those do not explain the gradient.

        ``missing``: parameters whose ``grad`` is None.
        """
        likeness = compare(gradient, self.target, tolerance, missing=missing)
        rows = None if likeness.holds or likeness.explained else _rows(self._parts)
        if rows is None:
            return likeness
        likeness = compare(gradient, self._target(rows, "row"), tolerance, missing=missing)
        if likeness.cause is None:
            return likeness
        cause = likeness.cause.replace("micro-batch", "row")
        if cause.startswith("every row weighs the same"):
            cause = "every sample weighs the same, however many of its tokens count: sample weights on a token loss"
        return replace(likeness, cause=cause)

    def _target(self, parts: Sequence[tuple[int, Any]], name: str | None = None) -> Target:
        labels: list[Any] = [batch.get("labels") for _, batch in parts if isinstance(batch, Mapping)]
        others = {}
        if self._unit == "tokens" and len(labels) == len(parts) and all(each is not None for each in labels):
            others["samples"] = np.array([len(each) for each in labels])
            others["all tokens"] = np.array([each.numel() for each in labels])
        ranks, batches = [rank for rank, _ in parts], (batch for _, batch in parts)
        names = tuple(f"{name} {i}" for i in range(len(parts))) if name else ()
        about: dict[str, Any] = {"others": others, "names": names, "world_size": self._size, "unit": self._unit}
        return reference(self._model, batches, self._losses, ranks, **about)


def _rows(parts: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]] | None:
    """Return the rows as parts; None where batches cannot be cut into rows."""
    rows: list[tuple[int, Any]] = []
    for rank, batch in parts:
        values = list(batch.values()) if isinstance(batch, Mapping) else []
        if not all(isinstance(each, torch.Tensor) and each.ndim for each in values) or len(set(map(len, values))) != 1:
            return None
        rows += [(rank, {name: each[i : i + 1] for name, each in batch.items()}) for i in range(len(values[0]))]
    return rows


def _on_rank(train_step: TrainStep, build_model: Build, batches: Batches, path: Path, timeout_s: float) -> _RankResult:
    """Run the step in a rank."""
    join_group(timeout_s)
    rank = dist.get_rank()
    model, weights, _ = _built(build_model)
    before = {name: parameter.detach().clone() for name, parameter in trainable(model)}
    with counted("the step"):
        train_step(model, list(batches[rank]))
    after = {name: parameter.detach() for name, parameter in trainable(model)}
    if others := tuple(sorted(set(after) ^ set(before))):
        return _RankResult(weights, None, others=others)
    # these are other tensors, where the step shards the model
    whole = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in after.items()}
    moved = tuple(name for name, each in whole.items() if not torch.equal(each, before[name]))
    if all(parameter.grad is None for _, parameter in trainable(model)):
        return _RankResult(weights, None, moved)
    return _RankResult(weights, capture_gradient(model, path if rank == 0 else None), moved)


def _judged(
    results: Sequence[_RankResult], path: Path, goal: _Reference, weights: str, tolerance: float
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
    if not moved:
        return [*checks, Check(WEIGHTS, True, "on every rank still those that build_model() gave")]
    says = f"{ranks_named(moved)} moved {first_few(results[moved[0]].moved, 2)}"
    cause = "train_step takes an optimizer's step: leave that to its caller, and the gradient in place"
    return [*checks, Check(WEIGHTS, False, says, cause)]


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
