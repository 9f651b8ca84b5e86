"""Loss functions that give transformers' ``Trainer`` the gradient of the mean, on any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F


def summed_cross_entropy(
    outputs: Mapping[str, Any], labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Return the summed cross-entropy of these labels over all labels of the step: ``Trainer(compute_loss_func=...)``.

        loss = sum_i l_i / N        N = num_items_in_batch, labels of the step over all ranks and micro-batches

    Trainer multiplies it by the number of ranks, since DDP averages; what is left is the mean over the step's labels,
    whatever the ranks' and micro-batches' sizes. (The head of a sequence or token classifier takes the mean over its
    batch instead, which Trainer multiplies all the same.)

    ``outputs["logits"]``: (..., num_labels), of a sequence classifier (count, num_labels), of a token classifier
    (count, length, num_labels). ``labels``: (...), int64; -100 is ignored. Without ``num_items_in_batch``, N is the
    number of labels given. Raises ValueError for labels that are missing.

    >>> logits, labels = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    >>> summed_cross_entropy({"logits": logits}, labels, 6)        # 3 of the step's 6 labels: half of log 2
    tensor(0.3466)
    """
    if labels is None:
        raise ValueError("labels = None: summed_cross_entropy needs the key 'labels' in every batch of the data set")
    logits = outputs["logits"]
    flat, targets = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    # float64 stays float64; half precisions are summed in float32
    summed = F.cross_entropy(flat.float() if flat.dtype.itemsize < 4 else flat, targets, reduction="sum")
    if num_items_in_batch is None:
        num_items_in_batch = (targets != -100).sum().clamp(min=1)
    return summed / num_items_in_batch
