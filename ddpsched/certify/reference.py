"""The target gradient, computed the plain way: one process, one micro-batch after another, losses summed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.modules.dropout import _DropoutNd

from ddpsched.certify.capture import CapturedGradient, trainable
from ddpsched.certify.gradient_comparison import TOLERANCES, compare
from ddpsched.certify.label_weights import SUMMED, LabelWeights, by_part
from ddpsched.certify.likeness import Likeness
from ddpsched.certify.target import Floats, Target, draw_coordinates
from ddpsched.config import RunConfig
from ddpsched.data.samples import Samples
from ddpsched.step_plan import Ids, StepPlan
from ddpsched.training.collate import NOT_LEARNT, Batch, Collator
from ddpsched.training.masks import enable_mask
from ddpsched.training.model import build_model

# what rounding alone may do to one sample's gradient, relatively: some bits beyond the last that a number has; one
# where products are rounded to bfloat16 and added up in float32
ROUNDING = {"float64": 2.0**-49, "float32": 2.0**-20, "bfloat16": 2.0**-8}
MOST = 0.1  # of a gradient is no rounding, however much cancels
STALE = "the gradient of the step that ran before is still in it: it was not cleared (zero_grad)"
SINGLY = 256  # an unexplained gradient of a batch up to this size is compared sample by sample
Losses = Callable[[torch.nn.Module, Any], torch.Tensor]  # (model, batch) -> (count,) the losses of what counts


def reference(
    model: torch.nn.Module, batches: Iterable[Any], losses: Losses, ranks: Sequence[int], **described: Any
) -> Target:
    """Return the gradient of ``sum of all losses / their number``; each batch is a part of the target.

    ``losses(model, batch)``: 1-D, one for each item that counts. ``ranks``: the rank of each batch. ``described``:
    ``others``, ``names``, ``world_size`` and ``unit`` of the ``Target``. The model's dropout should be off; its
    ``grad`` and buffers are not changed, and each rank's first batch finds the buffers that the model has.
    """
    sizes = {name: parameter.numel() for name, parameter in trainable(model)}
    parameters = [parameter for _, parameter in trainable(model)]
    coordinates = draw_coordinates(sum(sizes.values()))
    total = torch.zeros(sum(sizes.values()), dtype=parameters[0].dtype)
    counts, parts = [], []
    for _, of_rank in groupby(zip(ranks, batches, strict=True), key=itemgetter(0)):
        with buffers_kept(model):
            for _, batch in of_rank:
                values = losses(model, batch)
                counts.append(values.numel())
                part = np.zeros(len(coordinates))
                if values.numel():
                    pieces = torch.autograd.grad(values.sum(), parameters, allow_unused=True, materialize_grads=True)
                    gradient = torch.cat([dense(piece).reshape(-1).cpu() for piece in pieces])
                    total += gradient
                    part[:] = gradient.numpy()[coordinates]
                parts.append(part)
    total /= max(1, sum(counts))
    arrays = np.stack(parts), coordinates, np.array(counts), np.array(ranks)
    return Target(total.numpy(), *arrays, parameters=sizes, **described)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of an embedding with ``sparse=True``, too, as a dense tensor."""
    return gradient.to_dense() if gradient.is_sparse else gradient


@contextmanager
def buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Give the model back the buffers that it has, whatever its forward makes of them meanwhile."""
    owners = [
        (module, name) for module in model.modules() for name, buffer in module._buffers.items() if buffer is not None
    ]
    saved = [module._buffers[name].clone() for module, name in owners]  # type: ignore[union-attr]
    try:
        yield
    finally:
        for (module, name), buffer in zip(owners, saved, strict=True):
            module._buffers[name] = buffer


@contextmanager
def nudged(model: torch.nn.Module) -> Iterator[None]:
    """Change each weight by at most its last bit, at random, for as long: what rounds then rounds differently."""
    random = torch.Generator().manual_seed(0)
    parameters = [parameter for _, parameter in trainable(model)]
    saved = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            signs = 2.0 * torch.rand(parameter.shape, generator=random) - 1.0
            parameter.mul_(1.0 + torch.finfo(parameter.dtype).eps * signs.to(parameter))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(parameters, saved, strict=True):
                parameter.copy_(before)


def without_dropout(model: torch.nn.Module) -> float:
    """Switch off every dropout of the model, and return the highest rate that was on.

    These are dropout modules, and rates that forward reads from a module's attributes or the model's config.
    """
    rates, config = [0.0], getattr(model, "config", None)
    for owner in [*model.modules(), *([] if config is None else [config])]:
        for name in ["p"] * isinstance(owner, _DropoutNd) + [key for key in vars(owner) if "drop" in key]:
            rate = getattr(owner, name)
            if isinstance(rate, float) and rate > 0:
                rates.append(rate)
                setattr(owner, name, 0.0)
    return max(rates)


def _loaded(captured: CapturedGradient) -> Floats:
    gradient: Floats = np.load(str(captured.path), mmap_mode="r")
    return gradient


class RunReference:
    """The model of a config's run in this process, and the target gradient of any of its steps.

    ``config`` as it was given, ``certified`` as it is certified. ``dropout``: the highest rate that the model had.
    """

    def __init__(self, config: RunConfig, certified: RunConfig, samples: Samples) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(certified.seed)
            # with the config's dropout, to report it; the weights do not depend on it
            model = build_model(config.model, certified.data.num_labels, samples.vocab_size, samples.pad_id)
        enable_mask(model, certified.model.name, certified.model.mask, certified.data.max_length)
        self.dropout = without_dropout(model)
        self._config, self._samples, self._precision = certified, samples, certified.train.precision
        dtype = torch.float64 if self._precision == "float64" else torch.float32
        self.model: torch.nn.Module = model.to(dtype).train()
        self.tolerance = TOLERANCES[self._precision]
        self.size = sum(parameter.numel() for _, parameter in trainable(self.model))
        self._by_token = certified.target == "token_mean"
        self.over = ("label tokens of the " if self._by_token else "") + "global batch"
        self._groups = samples.dataset.train.numbered_groups
        self._windows = dict[int, tuple[int, int]]()  # samples, and label tokens, of each
        if certified.target == "window_token_mean":
            assert self._groups is not None
            label_tokens = samples.train.num_targets(np.arange(len(samples.train))).tolist()
            for group, count in zip(self._groups.tolist(), label_tokens, strict=True):
                before, tokens = self._windows.get(group, (0, 0))
                self._windows[group] = (before + 1, tokens + count)
        labels, device = samples.dataset.train.labels, torch.device("cpu")
        self._collate = Collator(samples.train, labels, samples.pad_id, device, certified.model.mask)

    def judge(
        self, plan: StepPlan, captured: CapturedGradient, norm: float, before: CapturedGradient | None = None
    ) -> Likeness:
        """Compare a step's gradient, of which ``captured.path`` has all, with its target.

        The parts are the plan's micro-batches, or single samples where micro-batches do not explain the gradient, or
        rounding might. ``norm``: the gradient's before it was clipped. ``before``: the gradient of the step that ran
        before it.
        """
        micro = [(rank, each.counted) for rank, microbatches in enumerate(plan.ranks) for each in microbatches]
        micro = [(rank, ids) for rank, ids in micro if len(ids)]  # a split sample as the whole that it is
        goal = self._target(micro)
        clipping = min(1.0, self._config.train.max_grad_norm / (norm + 1e-6))  # as of torch's clip_grad_norm_
        gradient = _loaded(captured) / clipping
        about: dict[str, Any] = {"missing": captured.missing}
        likeness = compare(gradient, goal, self.tolerance, again=lambda: self._again(micro), **about)
        if likeness.holds or likeness.explained:
            return likeness
        if before is not None and self._is_sum(gradient, goal.gradient + _loaded(before)):
            return replace(likeness, cause=STALE)
        if plan.global_batch > SINGLY:
            unseen = f"single samples were not compared, as this step has {plan.global_batch:,}; up to {SINGLY} are"
            cause = f"{likeness.cause} ({unseen}: a lower global_batch shows whether one is lost)"
            return replace(likeness, cause=cause)
        target = self._target([(rank, ids[i : i + 1]) for rank, ids in micro for i in range(len(ids))])
        rounding = min(MOST, ROUNDING[self._precision] * target.cancellation)  # more, where samples nearly cancel
        return compare(gradient, target, self.tolerance, rounding=rounding, **about)

    def _is_sum(self, gradient: Floats, whole: Floats) -> bool:
        """Return whether the gradient is ``whole`` up to a factor, as clipping makes one."""
        size, other = float(np.linalg.norm(gradient)), float(np.linalg.norm(whole))
        near = 30 * self.tolerance
        return bool(size and other) and float(np.linalg.norm(gradient / size - whole / other)) <= near

    def _again(self, parts: Sequence[tuple[int, Ids]]) -> Floats:
        with nudged(self.model):
            return self._target(parts).gradient

    def _target(self, parts: Sequence[tuple[int, Ids]]) -> Target:
        lengths = [self._samples.train.lengths(ids) for _, ids in parts]
        others = {
            "tokens": np.array([each.sum() for each in lengths]),
            "padded tokens": np.array([len(each) * each.max() for each in lengths]),
        }
        if self._by_token:
            others["samples"] = np.array([len(each) for each in lengths])
        weights, rules = self._weights([ids for _, ids in parts])
        batches = ((self._collate(ids), each) for (_, ids), each in zip(parts, weights, strict=True))
        return reference(
            self.model, batches, self._losses, [rank for rank, _ in parts],
            names=tuple(f"sample {ids[0]}" for _, ids in parts) if all(len(ids) == 1 for _, ids in parts) else (),
            others=others, rules=rules, world_size=self._config.world_size,
            unit="tokens" if self._by_token else "samples",
        )  # fmt: skip

    def _weights(self, parts: Sequence[Ids]) -> tuple[list[Floats | None], dict[str, Floats]]:
        """Return B times the weight of label tokens of each part's samples, and what other rules make of it."""
        target, ids = self._config.target, np.concatenate(parts)
        if self._config.model.task != "causal_lm":
            return [None] * len(parts), {}
        groups = None if self._groups is None else self._groups[ids].tolist()
        length: Any = self._config.train.length
        tokens = None
        if self._windows:
            assert groups is not None
            tokens = np.array([max(1, self._windows[group][1]) for group in groups], dtype=np.float64)
            length = tokens / [self._windows[group][0] for group in groups]
        weights = LabelWeights(self._samples.train.num_targets(ids).tolist(), groups, length, tokens)
        ends = np.cumsum([len(each) for each in parts])
        place = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
        rules = by_part(weights.others(target), place, len(parts))
        if target not in SUMMED:
            return [None] * len(parts), rules
        return list(np.split(len(ids) * weights.of(target), ends[:-1])), rules

    def _losses(self, model: torch.nn.Module, part: tuple[Batch, Floats | None]) -> torch.Tensor:
        batch, weights = part
        mixed = self._precision == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits = model(**batch.inputs).logits
        logits = logits.float() if mixed else logits
        if batch.labels.dim() == 1:
            return F.cross_entropy(logits, batch.labels, reduction="none")
        # (count, longest - 1): the losses of next tokens, 0 where these are not learnt
        next_ones = batch.labels[:, 1:]
        tokens = F.cross_entropy(logits[:, :-1].transpose(1, 2), next_ones, reduction="none")
        learnt = next_ones != NOT_LEARNT
        if self._by_token:
            return tokens[learnt]
        return tokens.sum(1) / learnt.sum(1).clamp(min=1) if weights is None else tokens.sum(1) * torch.tensor(weights)
