"""The dev split: loss and right answers, of samples or of label tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddpsched.data.datasets import Split
from ddpsched.data.samples import Samples
from ddpsched.data.slices import SliceTable
from ddpsched.data.token_table import TokenTable
from ddpsched.training.collate import Batch, Collator
from ddpsched.training.loss import following, loss_sum
from ddpsched.training.sync.fsdp import whole

MOST_TOKENS = 4096  # padded, per batch
MOST_LOGITS = 2**25  # numbers per batch; a language model has a vocabulary of them for each token


@dataclass(frozen=True)
class Evaluation:
    """Sums over the dev split, or over a share of it.

    ``num_targets``: label tokens, of which loss and right answers are then sums; None for a classifier, where they are
    sums over samples. ``majority``: share of the most frequent label in the whole split.
    """

    loss_sum: float
    num_correct: float
    num_samples: float
    majority: float
    num_targets: float | None = None

    @property
    def count(self) -> float:
        """What loss and right answers are sums over."""
        return self.num_samples if self.num_targets is None else self.num_targets


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, samples: Samples, mask: str, device: torch.device, rank: int = 0, size: int = 1
) -> Evaluation | None:
    """On every ``size``-th dev sample from ``rank`` on; None without a dev split."""
    dev, split = samples.dev, samples.dataset.dev
    if dev is None or split is None:
        return None
    ids = np.arange(rank, len(dev), size)
    lengths = dev.lengths(ids)
    ids = ids[np.argsort(-lengths, kind="stable")]
    collate = Collator(dev, split.labels, samples.pad_id, device, mask)
    most = MOST_TOKENS if split.labels is not None else min(MOST_TOKENS, MOST_LOGITS // samples.vocab_size)
    model.eval()
    total, correct, start = 0.0, 0, 0
    with whole(model):
        while start < len(ids):
            # longest first, so the next one is the longest of its batch
            count = max(1, most // int(dev.lengths(ids[start : start + 1])[0]))
            batch = collate(ids[start : start + count])
            logits = model(**batch.inputs).logits
            total += float(loss_sum(logits, batch.labels))
            correct += _num_correct(logits, batch)
            start += count
    model.train()
    num_targets = None if split.labels is not None else int(dev.num_targets(ids).sum())
    return Evaluation(total, correct, len(ids), _majority(dev, split), num_targets)


def _num_correct(logits: Any, batch: Batch) -> int:
    """Label tokens that are not learnt have label -100, which no answer is."""
    labels = batch.labels if batch.labels.dim() == 1 else following(batch.labels, -100)
    return int((logits.argmax(-1) == labels).sum())


def _majority(dev: TokenTable | SliceTable, split: Split) -> float:
    if split.labels is not None:
        return float(np.bincount(split.labels).max() / len(split))
    labels = np.concatenate([dev.labels(id)[1:] for id in range(len(dev))])
    counts = np.bincount(labels[labels >= 0])
    return float(counts.max() / counts.sum())
