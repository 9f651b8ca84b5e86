"""The target gradient of a training step of yours: the same micro-batches in one process, losses summed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ddpsched.certify.capture import trainable
from ddpsched.certify.gradient_comparison import compare
from ddpsched.certify.label_weights import SUMMED, LabelWeights, by_part
from ddpsched.certify.likeness import Likeness
from ddpsched.certify.reference import Losses, buffers_kept, nudged, reference
from ddpsched.certify.target import Floats, Target
from ddpsched.denominators import Target as Mean
from ddpsched.errors import ConfigError
from ddpsched.training.model import host_array

Lengths = float | Mapping[int, tuple[int, int]] | None  # L, or samples and label tokens of each window
Batches = Sequence[Sequence[Any]]


def row_losses(model: torch.nn.Module, batch: Mapping[str, Any], smoothing: float = 0.0) -> torch.Tensor:
    """Return the cross-entropy of each row, (count,). ``batch``: the inputs of forward, and "labels", (count,)."""
    return F.cross_entropy(logits_of(model, batch), batch["labels"], reduction="none", label_smoothing=smoothing)


def token_losses(model: torch.nn.Module, batch: Mapping[str, Any], smoothing: float = 0.0) -> torch.Tensor:
    """Return the cross-entropy of each next token whose label is not -100, (label tokens,).

    ``batch``: the inputs of forward, and "labels", (count, length), not shifted: the token at position i is predicted
    at i - 1.
    """
    logits, labels = logits_of(model, batch)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    learnt = labels != -100
    return F.cross_entropy(logits[learnt], labels[learnt], reduction="none", label_smoothing=smoothing)


def row_sums(model: torch.nn.Module, batch: Mapping[str, Any], smoothing: float = 0.0) -> torch.Tensor:
    """Return the sum of each row's ``token_losses``, (count,)."""
    logits, labels = logits_of(model, batch)[:, :-1].transpose(1, 2), batch["labels"][:, 1:]
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing).sum(1)


DEFAULTS: dict[str, Losses] = {"sample_mean": row_losses, "token_mean": token_losses, **dict.fromkeys(SUMMED, row_sums)}


def logits_of(model: torch.nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the logits of a model that returns them, or outputs with "logits"."""
    outputs = model(**{name: value for name, value in batch.items() if name not in ("labels", "group_ids")})
    return outputs if isinstance(outputs, torch.Tensor) else outputs["logits"]


class StepReference:
    """The model in this process, and its target gradient. ``length``: as of ``assert_gradient_exact``."""

    def __init__(
        self, model: torch.nn.Module, batches: Batches, losses: Losses, target: Mean, length: Lengths = None
    ) -> None:
        self.model, self._losses, self._size, self._length = model, losses, len(batches), length
        self._mean, self._unit = target, "tokens" if target == "token_mean" else "samples"
        self.running: set[str] = set()  # buffers that forward changes
        self.buffers_after: dict[int, dict[str, np.ndarray]] = {}  # after it, of ranks with one micro-batch
        self._parts = [(rank, batch) for rank, microbatches in enumerate(batches) for batch in microbatches]
        first, second = (self._losses_of(self._parts[0][1]) for _ in range(2))
        if self.running:
            for rank, microbatches in enumerate(batches):
                if len(microbatches) == 1:
                    self._losses_of(microbatches[0], self.buffers_after.setdefault(rank, {}))
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
        about: dict[str, Any] = {"missing": missing, "again": self._again, "additions": self._additions}
        likeness = compare(gradient, self.target, tolerance, **about)
        rows = None if likeness.holds or likeness.explained else self._rows(tolerance)
        if rows is None:
            return likeness
        likeness = compare(gradient, rows, tolerance, **about)
        if likeness.cause is None:
            return likeness
        cause = likeness.cause.replace("micro-batch", "row")
        if cause.startswith("every row weighs the same"):
            cause = "every sample weighs the same, however many of its tokens count: sample weights on a token loss"
        return replace(likeness, cause=cause)

    def _losses_of(self, batch: Any, buffers: dict[str, np.ndarray] | None = None) -> torch.Tensor:
        """Return the losses of a batch; ``buffers`` gets those that forward changed."""
        before = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with buffers_kept(self.model):
            losses = self._losses(self.model, batch).detach()
            after = dict(self.model.named_buffers())
            self.running |= {name for name, each in before.items() if not torch.equal(each, after[name])}
            if buffers is not None:
                buffers |= {name: host_array(after[name]).copy() for name in self.running}
            return losses

    def _rows(self, tolerance: float) -> Target | None:
        """Return the target row by row; None where batches cannot be cut, or rows count for each other."""
        rows = _cut(self._parts)
        if rows is None:
            return None
        try:
            target = self._target(rows, "row")
        except (ValueError, RuntimeError):  # as of batch norm, which needs several rows
            return None
        apart = float(np.linalg.norm(target.gradient - self.target.gradient))
        return target if apart <= 1e3 * tolerance * float(np.linalg.norm(self.target.gradient)) else None

    def _again(self) -> Floats:
        with nudged(self.model):
            return self._target(self._parts).gradient

    @property
    def _additions(self) -> dict[str, Callable[[], Floats]]:
        """Vectors that mistakes often add: label smoothing, where the losses are our own, and L2."""

        def smoothed() -> Floats:
            whole: Losses = partial(self._losses, smoothing=1.0)  # type: ignore[call-arg] # the mean over all classes
            return self._of(self._parts, whole).gradient - self.target.gradient

        def weights() -> Floats:
            return np.concatenate([host_array(parameter) for _, parameter in trainable(self.model)])

        own = {"{} times the weights is added to the gradient: weight decay belongs to the optimizer": weights}
        if self._losses not in DEFAULTS.values():
            return own
        return {"label smoothing of {} in the loss, which the target is without; give losses=...": smoothed, **own}

    def _target(self, parts: Sequence[tuple[int, Any]], name: str | None = None) -> Target:
        labels: list[Any] = [batch.get("labels") for _, batch in parts if isinstance(batch, Mapping)]
        others = {}
        if self._unit == "tokens" and len(labels) == len(parts) and all(each is not None for each in labels):
            others["samples"] = np.array([len(each) for each in labels])
            others["all tokens"] = np.array([each.numel() for each in labels])
        names = tuple(f"{name} {i}" for i in range(len(parts))) if name else ()
        about: dict[str, Any] = {"others": others, "names": names, "world_size": self._size, "unit": self._unit}
        return self._of(parts, self._losses, **about)

    def _of(self, parts: Sequence[tuple[int, Any]], losses: Losses, **about: Any) -> Target:
        batches = [batch for _, batch in parts]
        each, rules = self._weights(batches)

        def weighted(model: torch.nn.Module, part: tuple[Any, torch.Tensor | None]) -> torch.Tensor:
            batch, weights = part
            values = losses(model, batch)
            return values if weights is None else values * weights.to(values)

        pairs = zip(batches, each, strict=True)
        return reference(self.model, pairs, weighted, [rank for rank, _ in parts], rules=rules, **about)

    def _weights(self, batches: Sequence[Any]) -> tuple[Sequence[torch.Tensor | None], dict[str, Floats]]:
        """Return B times the weight of the summed loss of each batch's rows, and what other rules make of it."""
        labels: list[Any] = [batch.get("labels") if isinstance(batch, Mapping) else None for batch in batches]
        if not all(isinstance(each, torch.Tensor) and each.ndim == 2 for each in labels):
            if self._mean in SUMMED:
                raise ConfigError(
                    f"target = {self._mean!r} needs batches with 'labels', (count, length), -100 for none"
                )
            return [None] * len(batches), {}
        sizes = [len(each) for each in labels]
        counts = [int(count) for each in labels for count in (each[:, 1:] != -100).sum(1)]
        grouped = all("group_ids" in batch for batch in batches)
        groups = [int(group) for batch in batches for group in batch["group_ids"]] if grouped else None
        length: Any = self._length
        tokens = None
        if self._mean == "window_token_mean":
            if not isinstance(length, Mapping) or groups is None or not set(groups) <= set(length):
                raise ConfigError(
                    "target = 'window_token_mean' needs batch['group_ids'], (count,), and a length for each of these "
                    f"windows, {{0: (samples, label tokens)}}; got {sorted(set(groups or []))} and {length!r:.80}"
                )
            tokens = np.array([length[group][1] for group in groups], dtype=np.float64)
            length = tokens / np.array([length[group][0] for group in groups])
        weights = LabelWeights(counts, groups, length, tokens)
        parts = np.repeat(np.arange(len(batches)), sizes)
        rules = by_part(weights.others(self._mean), parts, len(batches))
        if self._mean not in SUMMED:
            return [None] * len(batches), rules
        return torch.tensor(len(counts) * weights.of(self._mean)).split(sizes), rules


def _cut(parts: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]] | None:
    """Return the rows as parts; None where batches cannot be cut."""
    cut: list[tuple[int, Any]] = []
    for rank, batch in parts:
        values = list(batch.values()) if isinstance(batch, Mapping) else []
        if not all(isinstance(each, torch.Tensor) and each.ndim for each in values) or len(set(map(len, values))) != 1:
            return None
        cut += [(rank, {name: each[i : i + 1] for name, each in batch.items()}) for i in range(len(values[0]))]
    return cut
