"""The way a Trainer's loss depends on a batch and on the step's count, found by trying it on some samples.

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
from ddpsched.training.random_states import kept_random_states

Rule = Literal["step", "labels", "samples"]  # divided by the step's labels; mean over the batch's labels or samples
Batch = Mapping[str, Any]

TRIED = 64  # samples looked at, of which those that differ most are tried
MOST = 16  # samples of a batch that is tried
SKETCH = 1024  # values of each parameter's gradient that are compared
CLASSES = 64  # labels below this are taken for classes, each of which is to be tried
TOLERANCE = {8: 1e-6, 4: 3e-4, 2: 8e-2, 1: 8e-2}  # by bytes of a weight

Values = torch.Tensor  # (S,): a loss and some values of its gradient


def find_rule(trainer: Any, steps: StepLoader, ids: list[int] | None = None) -> tuple[Rule, set[float]]:
    """Return how ``trainer.compute_loss`` weighs samples, as some of ``steps`` show, one by one and in a batch.

    "step": a sum over labels, divided by the given count. "labels" and "samples": the mean over those of the batch,
    whatever the count. The samples have other lengths, numbers of labels and labels, as far as there are such; what is
    compared is the gradient, as losses alone may be equal. The model runs in evaluation mode and without
    autocast. ``ids``: the samples to try; without them some that differ. Returns the classes that were among their
    labels, too. Random generators are left as they were. Raises ConfigError where the batch follows from its samples in
    none of these ways.
    """
    with kept_random_states():
        return _found(trainer, steps, _samples(trainer, steps) if ids is None else ids)


def _found(trainer: Any, steps: StepLoader, ids: list[int]) -> tuple[Rule, set[float]]:
    model, batch = trainer.model, steps.batch(ids)
    # a random collate function, as of a masked language model, makes other samples when it is asked for each alone
    parts = [steps.batch([id]) for id in ids] if _same(batch, steps.batch(ids)) else _rows(model, batch, len(ids))
    labels, classes = [count_labels(trainer, part) for part in parts], set[float]().union(*map(classes_of, parts))
    total, trained = max(1, sum(labels)), model.training
    model.eval()
    try:
        one, twice = (_values(trainer, batch, count) for count in (total, 2 * total))
        if _near(model, one, 2 * twice):
            if _near(model, one, _sum([_values(trainer, part, total) for part in parts], labels)):
                return "step", classes
        elif _near(model, one, twice):
            each = [_values(trainer, part, None) for part in parts]
            mean = _values(trainer, batch, None)
            ways: dict[Rule, Values] = {
                "labels": _sum([count * one for count, one in zip(labels, each, strict=True)], labels) / total,
                "samples": _sum(each, labels) / len(each),
            }
            rule = min(ways, key=lambda way: _apart(mean, ways[way]))  # the former where they are alike
            if _near(model, mean, ways[rule]):
                alike = len(set(labels)) == 1
                return ("samples" if alike and labels[0] == 1 and not _is_stock(trainer) else rule), classes
    finally:
        model.train(trained)
    name = type(model).__name__
    raise ConfigError(
        f"{name}: the loss of {len(ids)} samples is neither a sum divided by num_items_in_batch nor their mean, so the "
        "gradient of a step that ranks share would depend on which of them share a batch; give Trainer a "
        "compute_loss_func(outputs, labels, num_items_in_batch) that returns the sum over labels divided by it"
    )


def _same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(value, other[key]) for key, value in one.items() if isinstance(value, torch.Tensor))


def _rows(model: Any, batch: Batch, count: int) -> list[Batch]:
    """Return each row of a batch as a batch of one sample. Raises ConfigError where rows are not samples."""
    odd = [name for name, value in batch.items() if not isinstance(value, torch.Tensor) or len(value) != count]
    if odd:
        raise ConfigError(
            f"{type(model).__name__}: the collate function makes another batch of the same {count} samples each time, "
            f"and its {odd[0]!r} has not one row a sample, so how the loss weighs samples cannot be tried; change "
            "samples at random in the data set, or return tensors of one row a sample"
        )
    return [{name: value[row : row + 1] for name, value in batch.items()} for row in range(count)]


def _sum(each: list[Values], labels: list[int]) -> Values:
    """Return the sum; a sample without labels adds nothing, and its mean over these is NaN."""
    has = any(labels)
    return torch.stack([one for one, count in zip(each, labels, strict=True) if count or not has]).sum(0)


def _is_stock(trainer: Any) -> bool:
    """Return whether the model's own head takes the loss: those of transformers leave out labels of -100."""
    from transformers import Trainer

    return type(trainer).compute_loss is Trainer.compute_loss and trainer.compute_loss_func is None


def _samples(trainer: Any, steps: StepLoader) -> list[int]:
    """Return some samples, no more than a micro-batch may hold.

    Those whose classes differ come first, then those with other numbers of labels, as a loss that weighs classes or
    lengths shows in these alone.
    """
    lengths = steps.plan_source.lengths
    order = np.argsort(lengths.lengths(np.arange(len(lengths))), kind="stable")
    ids = order[np.unique(np.linspace(0, len(order) - 1, TRIED).astype(np.int64))].tolist()
    batches = [steps.batch([id]) for id in ids]
    counts, classes = [count_labels(trainer, batch) for batch in batches], list(map(classes_of, batches))
    most = max(2, min(MOST, trainer.args.per_device_train_batch_size))
    chosen, seen = list[int](), set[float]()
    while len(chosen) < most and (place := max(range(len(ids)), key=lambda i: len(classes[i] - seen))) not in chosen:
        chosen.append(place)
        seen |= classes[place]
    by_count = sorted(range(len(ids)), key=lambda i: (-counts[i], i))
    spread = by_count[:: max(1, len(ids) // most)]
    chosen = list(dict.fromkeys([*chosen[: most - 1], *spread, *by_count]))[:most]
    return [ids[i] for i in (chosen if len(chosen) > 1 else chosen * 2)]


def classes_of(batch: Batch) -> set[float]:
    """Return the classes among the labels of a batch; none where they are tokens of a vocabulary."""
    labels = batch.get("labels")
    values = set(labels.flatten().tolist()) if isinstance(labels, torch.Tensor) else set()
    return values if max(values, default=0) < CLASSES else set()


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


def _values(trainer: Any, batch: Batch, count: int | None) -> Values:
    """Return the loss of a batch, and some values of its gradient, in the order of the parameters."""
    inputs = trainer._prepare_inputs(dict(batch))
    items = None if count is None else torch.tensor(count, device=trainer.args.device)
    learnt = [each for each in trainer.model.parameters() if each.requires_grad]
    if any(hasattr(each, "to_local") for each in learnt):  # of a sharded model, whose gradients are of all ranks
        with torch.no_grad():
            only: torch.Tensor = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=items)
            return only.double().reshape(1)
    with torch.enable_grad():
        loss: torch.Tensor = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=items)
    if not loss.requires_grad:
        return loss.detach().double().reshape(1)
    gradients = torch.autograd.grad(loss, learnt, allow_unused=True)
    sketches = [each.flatten()[:: max(1, each.numel() // SKETCH)].double() for each in gradients if each is not None]
    return torch.cat([loss.detach().double().reshape(1), *sketches])


def _near(model: Any, one: Values, other: Values) -> bool:
    """Return whether the losses are near each other, and the gradients are."""
    width = min(parameter.dtype.itemsize for parameter in model.parameters())
    return _apart(one, other) <= TOLERANCE[width]


def _apart(one: Values, other: Values) -> float:
    """Return how far two are apart, of their size: the loss, or the gradient where that is more."""
    pairs = [(one[:1], other[:1]), (one[1:], other[1:])]
    sizes = [max(float(a.norm()), float(b.norm())) for a, b in pairs]
    return max(float((a - b).norm()) / size if size else 0.0 for (a, b), size in zip(pairs, sizes, strict=True))
