"""The way a Trainer's loss depends on a batch and on the step's count, found by trying it on some samples.

Trainer believes of every model whose ``forward`` takes ``**kwargs`` that it divides the sum over labels by
``num_items_in_batch``, the labels of the whole step. Many heads take the mean of their batch instead, so their gradient
is wrong. What a loss really does is seen in its values, whoever computes it.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
import torch

from ddpsched.errors import ConfigError
from ddpsched.integrations.step_loader import StepLoader

Rule = Literal["step", "labels", "samples"]  # divided by the step's labels; mean over the batch's labels or samples
Batch = Mapping[str, Any]

TRIED = 64  # samples looked at, of which those that differ most are tried
MOST = 16  # samples of a batch that is tried
TOLERANCE = {8: 1e-6, 4: 1e-4, 2: 3e-2, 1: 3e-2}  # by bytes of a weight


def find_rule(trainer: Any, steps: StepLoader) -> Rule:
    """Return how ``trainer.compute_loss`` weighs samples, as some of ``steps`` show, one by one and in a batch.

    "step": a sum over labels, divided by the given count. "labels" and "samples": the mean over those of the batch,
    whatever the count. The samples have other lengths, numbers of labels and labels, as far as there are such. The
    model runs in evaluation mode, without gradients and autocast. Raises ConfigError where the loss of the batch
    follows from none of these.
    """
    model = trainer.model
    ids, labels = _samples(trainer, steps)
    parts, batch = [steps.batch([id]) for id in ids], steps.batch(ids)
    total, trained = max(1, sum(labels)), model.training
    model.eval()
    try:
        with torch.no_grad():
            one, twice = (_loss(trainer, batch, count) for count in (total, 2 * total))
            if _near(model, one, 2 * twice):
                if _near(model, one, sum(_loss(trainer, part, total) for part in parts)):
                    return "step"
            elif _near(model, one, twice):
                each = [_loss(trainer, part, None) for part in parts]
                mean = _loss(trainer, batch, None)
                by_label = sum(count * loss for count, loss in zip(labels, each, strict=True)) / total
                if len(set(labels)) > 1 and _near(model, mean, by_label):
                    return "labels"
                if _near(model, mean, sum(each) / len(each)):
                    return "labels" if len(set(labels)) == 1 < labels[0] else "samples"
    finally:
        model.train(trained)
    name = type(model).__name__
    raise ConfigError(
        f"{name}: the loss of {len(ids)} samples is neither a sum divided by num_items_in_batch nor their mean, so the "
        "gradient of a step that ranks share would depend on which of them share a batch; give Trainer a "
        "compute_loss_func(outputs, labels, num_items_in_batch) that returns the sum over labels divided by it"
    )


def _samples(trainer: Any, steps: StepLoader) -> tuple[list[int], list[int]]:
    """Return some samples of at most the median length, and their numbers of labels, none of them 0 if so.

    Those that differ in their labels come first, as a loss that weighs classes or lengths shows in these alone.
    """
    lengths = steps.plan_source.lengths
    order = np.argsort(lengths.lengths(np.arange(len(lengths))), kind="stable")
    shorter = order[: len(order) // 2 + 1]
    ids = shorter[np.unique(np.linspace(0, len(shorter) - 1, TRIED).astype(np.int64))].tolist()
    found: dict[Any, list[tuple[int, int]]] = {}
    for id in ids:
        batch = steps.batch([id])
        count = count_labels(trainer, batch)
        found.setdefault(_kind(batch, count), []).append((id, count))
    rounds = [pair for pairs in zip_longest(*found.values()) for pair in pairs if pair is not None]
    chosen = [pair for pair in rounds if pair[1]] or rounds
    most = max(2, min(MOST, trainer.args.per_device_train_batch_size))
    picked = chosen[:most] if len(chosen) > 1 else chosen * 2
    return [id for id, _ in picked], [count for _, count in picked]


def _kind(batch: Batch, count: int) -> Any:
    """Return what tells a sample's labels from others': the label itself, or how many there are."""
    labels = batch.get("labels")
    if isinstance(labels, torch.Tensor) and labels.numel() == 1:
        return count, float(labels.flatten()[0])
    return count, None


def count_labels(trainer: Any, batch: Batch) -> int:
    """Return the labels of a batch as Trainer counts them: those that a causal model predicts, without -100."""
    labels = batch.get("shift_labels", batch.get("labels"))
    if labels is None:
        return 0
    if "shift_labels" not in batch and getattr(trainer, "_loss_shifts_labels", False):
        labels = labels[..., 1:]
    return int(labels.ne(-100).sum())


def without_labels(batch: Batch) -> dict[str, Any]:
    """Return the labels of a batch, all -100, as a stand-in has none to count."""
    keys = [key for key in ("labels", "shift_labels") if key in batch]
    return {key: torch.full_like(batch[key], -100) for key in keys}


def _loss(trainer: Any, batch: Batch, count: int | None) -> float:
    inputs = trainer._prepare_inputs(dict(batch))
    device = trainer.args.device
    items = None if count is None else torch.tensor(count, device=device)
    return float(trainer.compute_loss(trainer.model, inputs, num_items_in_batch=items))


def _near(model: Any, one: float, other: float) -> bool:
    width = min(parameter.dtype.itemsize for parameter in model.parameters())
    return abs(one - other) <= TOLERANCE[width] * max(abs(one), abs(other))
