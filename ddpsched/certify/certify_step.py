"""A training step of your own, certified in a test of your own: ``assert_gradient_exact``.

The step runs on real ranks (gloo, CPU, this machine); the gradient that it leaves is compared with the mean over
what counts, which this process computes from the same micro-batches in the plain way.
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

from ddpsched.certify.capture import Kept, counted, counts_of, difference, keep_gradient, trainable
from ddpsched.certify.certificate import Certificate, Check, first_few, ranks_named
from ddpsched.certify.gradient_comparison import TOLERANCES, Likeness, compare
from ddpsched.certify.reference import Losses, reference, without_dropout
from ddpsched.certify.stream_checks import same_collectives
from ddpsched.certify.target import Target, draw_coordinates
from ddpsched.errors import ConfigError
from ddpsched.local_ranks import Outcome, at_fault, blame, join_group, run_ranks
from ddpsched.training.weights import weights_digest

Mean = Literal["sample_mean", "token_mean"]
Step = Callable[[torch.nn.Module, list[Any]], Any]
Build = Callable[[], torch.nn.Module]
Batches = Sequence[Sequence[Any]]


GRADIENT, SAME, WEIGHTS = "gradient", "same gradient on all ranks", "same weights"


@dataclass(frozen=True)
class _Left:
    """Of a rank: the digest of its ``weights`` before the step; after it the gradient, parameters that ``moved``, and
    those that the step froze, thawed or added (``others``).
    """

    weights: str
    kept: Kept | None
    moved: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def assert_gradient_exact(
    train_step: Step,
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

    ``batches[r]``: micro-batches of rank r, dicts of tensors with "labels"; the list may be empty.
    ``train_step(model, microbatches)``: your code, called on every rank in a process group that is there already,
    with that rank's list. It wraps the model in DDP, shards it or does without, runs forward and backward, and leaves
    the gradient in ``model.parameters()``; no optimizer steps. ``build_model()``: called on every rank and here,
    seeded alike. ``losses(model, batch)``: 1-D tensor, the losses of what counts; by default cross-entropy of each
    row (``row_losses``) or of each next token that has a label (``token_losses``). ``tolerance``: relative error; by
    default 1e-12 in float64, 1e-6 in float32. ``timeout_s``: how long ranks wait for one that does not come.

    The functions must lie in a module: ranks are processes that import them. Dropout is switched off, with a warning.
    The error's text is the certificate, which is returned where all holds. Raises ConfigError for arguments that
    cannot be used.
    """
    certificate, failed = _certified(train_step, build_model, batches, losses, target, tolerance, timeout_s)
    if not certificate.holds:
        raise AssertionError("\n\n".join(filter(None, (certificate.verdict, certificate.text(), failed))))
    return certificate


def certify_step(train_step: Step, build_model: Build, batches: Batches, target: Mean = "sample_mean") -> Certificate:
    """The certificate that ``assert_gradient_exact`` asks for, whatever it says."""
    return _certified(train_step, build_model, batches, None, target, None, 60.0)[0]


def _certified(
    train_step: Step,
    build_model: Build,
    batches: Batches,
    losses: Losses | None,
    target: Mean,
    tolerance: float | None,
    timeout_s: float,
) -> tuple[Certificate, str]:
    """The certificate, and the tracebacks of ranks that failed."""
    _check(train_step, build_model, batches, losses, target)
    if tolerance is not None and not 0 < tolerance < 1:
        raise ConfigError(f"tolerance = {tolerance!r}: a relative error between 0 and 1, such as 1e-6")
    model, weights, dropout = _built(build_model)
    if dropout:
        warnings.warn(f"dropout {dropout:g} of the model is switched off: gradients would be random", stacklevel=3)
    goal = _Reference(model, batches, losses or DEFAULTS[target], target)
    precision = str(goal.target.gradient.dtype)
    limit = TOLERANCES.get(precision, TOLERANCES["bfloat16"]) if tolerance is None else tolerance
    with tempfile.TemporaryDirectory(prefix="ddpsched-step-") as folder:
        path = Path(folder, "gradient.npy")
        outcomes = run_ranks(
            _on_rank, len(batches), train_step, build_model, batches, path, timeout_s, timeout_s=timeout_s
        )
        ended = all(outcome.ended == "answered" for outcome in outcomes)
        if ended:
            checks = _judged([outcome.value for outcome in outcomes], path, goal, weights, limit)
        else:
            checks = [_not_run(outcomes, batches)]
    waited = [outcome.rank for outcome in outcomes if outcome.waited]
    checks.append(same_collectives([counts_of(outcome.posts) for outcome in outcomes], waited))
    step = getattr(train_step, "func", train_step)  # of a functools.partial
    subject = f"{getattr(step, '__qualname__', step)}: {target} on {len(batches)} ranks"
    certificate = Certificate(subject, tuple(checks), tuple(_facts(batches, goal, dropout, precision)))
    return certificate, "" if ended else blame(outcomes)


def row_losses(model: torch.nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Cross-entropy of each row: (count,). ``batch``: the inputs of forward, and "labels" (count,)."""
    return F.cross_entropy(logits_of(model, batch), batch["labels"], reduction="none")


def token_losses(model: torch.nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Cross-entropy of each next token whose label is not -100: (label tokens,). ``batch``: the inputs of forward, and
    "labels" (count, length), in place: the token at position i is predicted at i - 1.
    """
    logits, labels = logits_of(model, batch)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    return F.cross_entropy(logits[labels != -100], labels[labels != -100], reduction="none")


DEFAULTS: dict[str, Losses] = {"sample_mean": row_losses, "token_mean": token_losses}
UNITS = {"sample_mean": "samples", "token_mean": "tokens"}


def logits_of(model: torch.nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Of a model that returns them, or outputs with "logits"."""
    outputs = model(**{name: value for name, value in batch.items() if name != "labels"})
    return outputs if isinstance(outputs, torch.Tensor) else outputs["logits"]


def _check(train_step: Step, build_model: Build, batches: Batches, losses: Losses | None, target: str) -> None:
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
    for rank, own in enumerate(batches):
        if isinstance(own, Mapping | torch.Tensor) or not isinstance(own, Sequence):
            raise ConfigError(f"batches[{rank}] is {type(own).__name__}: it is the list of rank {rank}'s micro-batches")
        for index, batch in enumerate(own):
            if losses is None and not (isinstance(batch, Mapping) and "labels" in batch):
                what = f"keys {sorted(batch)}" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
                raise ConfigError(f"batches[{rank}][{index}] has {what}: give a dict with 'labels', or losses=...")
    if not any(map(len, batches)):
        raise ConfigError("batches hold no micro-batch at all: batches[r] is the list of rank r's micro-batches")


def _built(build_model: Build) -> tuple[torch.nn.Module, str, float]:
    """The model as every rank builds it, the digest of its weights, and the dropout that was on."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model()
    if not isinstance(model, torch.nn.Module) or not trainable(model):
        raise ConfigError(
            f"build_model() gave {type(model).__name__}: it must return a module with parameters to train"
        )
    return model, weights_digest(model), without_dropout(model)


class _Reference:
    """The model alone in this process, and what its gradient is to be."""

    def __init__(self, model: torch.nn.Module, batches: Batches, losses: Losses, target: Mean) -> None:
        self._model, self._losses, self._unit, self._size = model, losses, UNITS[target], len(batches)
        self._parts = [(rank, batch) for rank, own in enumerate(batches) for batch in own]
        first, second = (losses(model, self._parts[0][1]).detach() for _ in range(2))
        if first.ndim != 1:
            raise ConfigError(
                f"losses(model, batch) has shape {tuple(first.shape)}: give one number for each that counts"
            )
        if not torch.equal(first, second):
            raise ConfigError("the model's losses differ from call to call: switch off what is random in build_model()")
        self.target = self._target(self._parts)
        if not self.target.total:
            raise ConfigError("no micro-batch has anything that counts: every label is -100")

    def judge(self, found: np.ndarray, tolerance: float, missing: Collection[str] = ()) -> Likeness:
        """By micro-batches; row by row where those do not explain what was found. ``missing``: parameters whose
        ``grad`` is None.
        """
        likeness = compare(found, self.target, tolerance, missing=missing)
        if likeness.holds or likeness.explained:
            return likeness
        rows = _rows(self._parts)
        if rows is None:
            return likeness
        likeness = compare(found, self._target(rows, "row"), tolerance, missing=missing)
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
            others = {"samples": [len(each) for each in labels], "all tokens": [each.numel() for each in labels]}
        return reference(
            self._model, (batch for _, batch in parts), self._losses, [rank for rank, _ in parts], others=others,
            names=[f"{name} {i}" for i in range(len(parts))] if name else (), world_size=self._size, unit=self._unit,
        )  # fmt: skip


def _rows(parts: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]] | None:
    """The same, every row a part; None where batches cannot be cut so."""
    found: list[tuple[int, Any]] = []
    for rank, batch in parts:
        if not isinstance(batch, Mapping) or not all(isinstance(each, torch.Tensor) for each in batch.values()):
            return None
        counts = {len(each) if each.ndim else 0 for each in batch.values()}
        if len(counts) != 1:
            return None
        found += [(rank, {name: each[i : i + 1] for name, each in batch.items()}) for i in range(*counts)]
    return found


def _on_rank(train_step: Step, build_model: Build, batches: Batches, path: Path, timeout_s: float) -> _Left:
    """In a rank: the step, and what it leaves."""
    join_group(timeout_s)
    rank = dist.get_rank()
    model, weights, _ = _built(build_model)
    before = {name: parameter.detach().clone() for name, parameter in trainable(model)}
    with counted("the step"):
        train_step(model, list(batches[rank]))
    after = dict(trainable(model))  # other tensors, where the step shards the model
    if others := tuple(sorted(set(after) ^ set(before))):
        return _Left(weights, None, others=others)
    moved = tuple(name for name in after if not torch.equal(_whole(after[name].detach()), before[name]))
    if all(parameter.grad is None for parameter in after.values()):
        return _Left(weights, None, moved)
    coordinates = draw_coordinates(sum(old.numel() for old in before.values()), np.random.default_rng(0))
    return _Left(weights, keep_gradient(model, coordinates, path if rank == 0 else None), moved)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _judged(left: Sequence[_Left], path: Path, goal: _Reference, weights: str, tolerance: float) -> list[Check]:
    """Gradient, the same on all ranks, and the weights."""
    odd = [rank for rank, own in enumerate(left) if own.weights != weights]
    if odd:
        says = f"{ranks_named(odd)} built other weights than this process"
        cause = "build_model() draws from a generator of its own, or from the rank: seed it alike everywhere"
        return [Check(WEIGHTS, False, says, cause)]
    others = [rank for rank, own in enumerate(left) if own.others]
    if others:
        says = (
            f"{ranks_named(others)} changed which parameters require a gradient: {first_few(left[others[0]].others, 2)}"
        )
        return [
            Check.not_made(GRADIENT, says, "train_step freezes, thaws or adds parameters: leave that to build_model")
        ]
    kept = [own.kept for own in left]
    moved = [rank for rank, own in enumerate(left) if own.moved]
    bare = [rank for rank, each in enumerate(kept) if each is None]
    if bare:
        cause = "backward did not run there, or ran on a copy of the model, or the gradient was cleared"
        says = f"{ranks_named(bare)} left no gradient in model.parameters()"
        checks = [Check.not_made(GRADIENT, says, "an optimizer stepped and cleared it" if moved else cause)]
    else:
        likeness = goal.judge(np.load(path), tolerance, left[0].kept.missing if left[0].kept else ())
        what = f"against the mean over all {goal.target.total:g} {goal.target.unit}, computed by one process"
        checks = [Check(GRADIENT, likeness.holds, f"{what}: {likeness.says}", likeness.cause, likeness.numbers)]
        checks.append(_same_gradient([each for each in kept if each is not None], tolerance))
    says = "every rank's are still those that build_model() gave"
    if moved:
        says = f"{ranks_named(moved)} moved {first_few(left[moved[0]].moved, 2)}"
    cause = "the step takes an optimizer's step: leave it to the caller of train_step, as the gradient is asked for"
    return [*checks, Check(WEIGHTS, not moved, says, cause if moved else None)]


def _same_gradient(kept: Sequence[Kept], tolerance: float) -> Check:
    for rank, own in enumerate(kept):
        if found := difference(rank, own, kept[0], tolerance):
            return Check(SAME, False, *found)
    return Check(SAME, True, f"{len(kept)} ranks")


def _not_run(outcomes: Sequence[Outcome], batches: Batches) -> Check:
    """Why the step has no gradient."""
    guilty = at_fault(outcomes)
    bare = [rank for rank, own in enumerate(batches) if not own]
    if all(each.waited for each in guilty):
        cause = "a rank joins fewer collectives than the others"
        if bare:
            cause += f": {ranks_named(bare)}, without micro-batches, must still join them, with zeros"
        return Check.not_made(GRADIENT, f"{ranks_named(each.rank for each in guilty)} waited in vain", cause)
    if any("ModuleNotFoundError" in each.says for each in guilty):
        cause = "put train_step and build_model into a module that a fresh process can import, or set PYTHONPATH"
        return Check.not_made(GRADIENT, f"ranks cannot import: {guilty[0].says.splitlines()[-1]}", cause)
    last = [f"rank {each.rank} {each.brief}" for each in guilty]
    return Check.not_made(GRADIENT, "the step did not end", first_few(last, 2, "; "))


def _facts(batches: Batches, goal: _Reference, dropout: float, precision: str) -> list[str]:
    counts = np.bincount(goal.target.ranks, weights=goal.target.counts, minlength=len(batches))
    facts = [
        f"{len(batches)} gloo ranks; micro-batches {', '.join(str(len(own)) for own in batches)}; {goal.target.unit} "
        f"{', '.join(f'{count:g}' for count in counts)} by rank; {len(goal.target.gradient):,} parameters, {precision}",
        "not applicable to a single step: every sample once, resumption, one plan",
    ]
    return [*facts, f"dropout {dropout:g} was switched off: gradients would be random"] if dropout else facts
