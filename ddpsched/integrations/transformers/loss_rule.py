"""The way a Trainer's loss depends on a batch and on the step's count, found by trying it on two samples.

Trainer believes of every model whose ``forward`` takes ``**kwargs`` that it divides the sum over labels by
``num_items_in_batch``, the labels of the whole step. Many heads take the mean of their batch instead, so their gradient
is wrong. What a loss really does is seen in its values, whoever computes it.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from ddpsched.errors import ConfigError
from ddpsched.integrations.step_loader import StepLoader

Rule = Literal["step", "labels", "samples"]  # divided by the step's labels; mean over the batch's labels or samples
Batch = Mapping[str, Any]

TRIED = 16  # pairs of samples
TOLERANCE = {8: 1e-6, 4: 1e-3, 2: 3e-2, 1: 3e-2}  # by bytes of a weight


def find_rule(trainer: Any, steps: StepLoader) -> Rule:
    """Return how ``trainer.compute_loss`` weighs samples, as two of ``steps`` show that are about as long.

    "step": a sum over labels, divided by the given count. "labels" and "samples": the mean over those of the batch,
    whatever the count. The model runs in evaluation mode, without gradients and autocast. Raises ConfigError where the
    loss of two samples follows from neither.
    """
    model = trainer.model
    pair, labels = _pair(trainer, steps)
    parts, both = [steps.batch([id]) for id in pair], steps.batch(pair)
    total, trained = max(1, sum(labels)), model.training
    model.eval()
    try:
        with torch.no_grad():
            one, twice = (_loss(trainer, both, count) for count in (total, 2 * total))
            if _near(model, one, 2 * twice):
                if _near(model, one, sum(_loss(trainer, part, total) for part in parts)):
                    return "step"
            elif _near(model, one, twice):
                each = [_loss(trainer, part, None) for part in parts]
                mean = _loss(trainer, both, None)
                weighed = sum(count * loss for count, loss in zip(labels, each, strict=True))
                if labels[0] != labels[1] and _near(model, mean * total, weighed):
                    return "labels"
                if _near(model, mean * 2, sum(each)):
                    return "labels" if total > len(parts) else "samples"
    finally:
        model.train(trained)
    name = type(model).__name__
    raise ConfigError(
        f"{name}: the loss of two samples is neither a sum divided by num_items_in_batch nor their mean, so the "
        "gradient of a step that ranks share would depend on which of them share a batch; give Trainer a "
        "compute_loss_func(outputs, labels, num_items_in_batch) that returns the sum over labels divided by it"
    )


def _pair(trainer: Any, steps: StepLoader) -> tuple[list[int], list[int]]:
    """Return two samples, of equal length where there are such, and their numbers of labels, none of them 0 if so."""
    lengths = steps.plan_source.lengths
    every = lengths.lengths(np.arange(len(lengths)))
    order = np.argsort(every, kind="stable")
    middle = [order[first : first + 2].tolist() for first in range(len(order) // 2, len(order) - 1)]
    pairs = sorted(middle[:TRIED], key=lambda pair: bool(np.ptp(every[pair]))) or [[0, 0]]
    found = [(pair, [count_labels(trainer, steps.batch([id])) for id in pair]) for pair in pairs]
    return next((each for each in found if all(each[1])), found[0])


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
